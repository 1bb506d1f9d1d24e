"""The agent as one file, on every Python that this machine has."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.agent.harness import a_plan, exit_of

from ropeteam_trainer.agent.pack import pack

PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """One that runs, by its usual name or as pyenv keeps it."""
    named = shutil.which(f"python{version}")
    preserved = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    for candidate in [*([named] if named else []), *map(str, preserved)]:
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.fixture(scope="module")
def pyz(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "agent.pyz"
    path.write_bytes(pack())
    return path


def test_the_same_sources_give_the_same_bytes(pyz):
    command = [sys.executable, "-m", "ropeteam_trainer.agent.pack"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == pyz.read_bytes()
    assert {entry.date_time for entry in zipfile.ZipFile(pyz).infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_library_is_in_it_and_nothing_of_others(pyz):
    names = set(zipfile.ZipFile(pyz).namelist())
    assert {"__main__.py", "ropeteam_trainer/job.py"} <= names
    assert {name.partition("/")[0] for name in names} == {"__main__.py", "ropeteam_trainer"}
    assert all(name.endswith(".py") for name in names)


SCRIPT = """
import sys, ropeteam_trainer
from ropeteam_trainer.contract import VERSION
print("hello from", *sys.version_info[:2], ropeteam_trainer.__file__, flush=True)
raise ValueError("the end")
"""


def installed(python: str) -> str | None:
    """Where this interpreter has our package by itself: an installed one wins over the agent's."""
    find = "import ropeteam_trainer; print(ropeteam_trainer.__file__)"
    done = subprocess.run([python, "-I", "-c", find], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


@pytest.mark.parametrize("version", PYTHONS)
async def test_it_runs_a_rank_on(version, pyz, make_pod, coordinator):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    pod = make_pod()
    (pod.folder / "x.py").write_text(SCRIPT)
    pod.start(python, "x.py", agent=(python, "-I", "-W", "error", str(pyz)))
    coordinator.order(plan=a_plan())
    exit = exit_of(await coordinator.wait_for(lambda r: r.plan and r.stopped))
    assert exit.fingerprint == "ValueError at x.py:5", pod.text()
    expected = installed(python) or f"{pyz}/ropeteam_trainer/__init__.py"
    await pod.printed(f"hello from 3 {version[2:]} {expected}")
    coordinator.order(plan=None, complete=a_plan().world_id, release=True)
    assert await pod.exit_code() == 0
    assert "Warning" not in pod.text()


def test_an_environment_that_is_not_a_pods_is_an_error_of_one_line(pyz):
    done = subprocess.run(
        [sys.executable, "-I", str(pyz), "--", "true"], env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("[ropeteam agent] this is not the environment of a worker pod")
    assert len(done.stderr.splitlines()) == 1
