"""Command lines: a real bash completes it, and a real kubectl finds the plug-in."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from lab.waiting import wait_until
from tests.cli import test_commands
from tests.cli.test_commands import manifest

from ropeteam.cli.connect import connected
from ropeteam.cli.manifest.apply import apply_manifest
from ropeteam.cli.manifest.read import read_manifest

home, up = test_commands.home, test_commands.up
ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"
GUIDE = ROOT / "docs" / "install.md"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On PATH, what an installer makes of [project.scripts]."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, value in tomllib.loads(PROJECT.read_text())["project"]["scripts"].items():
        point = EntryPoint(name, value, "console_scripts")
        script = folder / name
        start = f"import sys\nfrom {point.module} import {point.attr}\nsys.exit({point.attr}())\n"
        script.write_text(f"#!{sys.executable}\n{start}")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def completed(*arguments: str) -> list[str]:
    """Completions of bash for the last argument, set up as in our guide."""
    [line] = re.findall(r"^\| bash .*?`(.*?)`", GUIDE.read_text(), re.MULTILINE)
    script = (
        f"{line}\n"
        'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
        'complete -p "$1" >/dev/null && _ropeteam_completion "$1" && printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", script, "bash", "ropeteam", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.usefixtures("programs")
def test_bash_completes_commands_and_options() -> None:
    assert completed("r") == ["run"]
    assert {"watch", "logs", "explain"} <= set(completed(""))
    assert completed("logs", "--fo") == ["--follow"]


@pytest.mark.usefixtures("programs", "up")
def test_bash_completes_names_of_jobs(tmp_path: Path, home: Path) -> None:
    read = read_manifest(manifest(tmp_path, "import time; time.sleep(3600)", suspend=True))

    async def create() -> None:
        async with connected(home / "kubeconfig") as client:
            await apply_manifest(client, read, tmp_path)

    asyncio.run(create())
    for command in ("watch", "logs", "snapshot", "doctor"):
        named = partial(completed, command, "--home", str(home), "j")
        assert wait_until("an answer within the seconds that a prompt waits", named) == ["job"]
        assert completed(command, "--home", str(home), "x") == []
        assert completed(command, "--home", str(home), "-n", "other", "") == []


@pytest.mark.usefixtures("programs")
def test_no_cluster_completes_nothing_and_prints_nothing(tmp_path: Path) -> None:
    assert completed("watch", "--kubeconfig", str(tmp_path / "nowhere"), "") == []


@pytest.mark.usefixtures("programs")
def test_kubectl_finds_the_plug_in() -> None:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not kubectl:
        pytest.fail("no kubectl: install one, or say where it is in KUBECTL")
    output = subprocess.run(
        [kubectl, "ropeteam", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert output.startswith("Usage: kubectl ropeteam [OPTIONS] COMMAND")
