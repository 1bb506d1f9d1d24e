"""The image of the operator has no local cluster: the rest works, and what needs it names where it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REMOVED = "rm -r operator/ropeteam/local"
NEEDS_LOCAL = "ropeteam.cli.planning.dryrun"
IMPORTS = f"""
import importlib, pkgutil, ropeteam
for module in pkgutil.walk_packages(ropeteam.__path__, "ropeteam."):
    if not module.name.endswith("__main__") and module.name != {NEEDS_LOCAL!r}:
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator as in its image."""
    folder = tmp_path_factory.mktemp("site-packages")
    ignored = shutil.ignore_patterns("local", "__pycache__")
    shutil.copytree(ROOT / "operator" / "ropeteam", folder / "ropeteam", ignore=ignored)
    return folder


def python(installed: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(installed), str(ROOT / "trainer-image")))
    environment = os.environ | {"PYTHONPATH": path, "ROPETEAM_HOME": str(installed / "home")}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, text=True, capture_output=True, timeout=120
    )


def test_the_image_of_the_operator_leaves_it_out_and_the_local_one_does_not() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    (build,) = (each for each in stages if " AS build\n" in each)
    (local,) = (each for each in stages if " AS local\n" in each)
    assert build.index(REMOVED) < build.index("hatchling build -t wheel")
    assert REMOVED not in local
    assert re.findall("^COPY (.*)", stages[-1], re.MULTILINE) == ["--from=build /opt/ropeteam /opt/ropeteam"]


def test_nothing_that_stays_imports_it(installed: Path) -> None:
    done = python(installed, "-c", IMPORTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [("up",), ("run", "--", "python", "x.py")])
def test_a_command_that_needs_it_names_the_image_that_has_it(
    command: tuple[str, ...], installed: Path
) -> None:
    done = python(installed, "-m", "ropeteam.cli", *command)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the local cluster is not installed (the operator's image ")
    assert "docker build --target local" in done.stderr


def test_a_plan_is_made_without_running_the_script(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    done = python(installed, "-m", "ropeteam.cli", "plan", "--", "python", "x.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the script was not run: the local cluster is not installed" in done.stdout
