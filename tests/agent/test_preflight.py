"""Faults known before anything is started: final faults at once, passing ones only after they lasted."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from ropeteam_trainer.agent import preflight
from ropeteam_trainer.contract.config import CheckpointConfig, WorkerConfig
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.launchers import Launch

PASSING = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.ENOSPC, errno.ENODEV)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Instead of sleeping."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


class Faulty:
    """The volume: a temporary file cannot be made in it, for so many tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, tries: int) -> None:
        self.number, self.left, self.fired = number, tries, 0
        self._real = tempfile.TemporaryFile
        monkeypatch.setattr(tempfile, "TemporaryFile", self._make)

    def _make(self, **fields: Any) -> Any:
        if self.left == 0:
            return self._real(**fields)
        self.left, self.fired = self.left - 1, self.fired + 1
        raise OSError(self.number, os.strerror(self.number))


def found(folder: Path, python: str = sys.executable, volume: str = "", **environ: str) -> Problem | None:
    checkpoint = CheckpointConfig(str(folder), volume=volume)
    settings = WorkerConfig("j", "n", "u", 1, 2, 1, "127.0.0.1:1", checkpoint=checkpoint)
    command = (python, "-c", "pass")
    environment = {"PATH": os.environ["PATH"], "ROPETEAM_STORE": "none", **environ}
    return preflight.plan_launch(command, settings, environment)[2]


@pytest.mark.parametrize("number", PASSING, ids=errno.errorcode.get)
def test_a_volume_that_is_away_for_seconds_is_no_problem(
    number: int, monkeypatch: pytest.MonkeyPatch, pauses: list[float], tmp_path: Path
) -> None:
    fault = Faulty(monkeypatch, number, tries=5)
    assert found(tmp_path) is None
    assert fault.fired == 5
    assert pauses == sorted(pauses)
    assert len(pauses) == 5


def test_a_volume_that_stays_away_may_be_the_nodes_fault(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], tmp_path: Path
) -> None:
    fault = Faulty(monkeypatch, errno.ESTALE, tries=-1)
    problem = found(tmp_path)
    assert problem is not None
    assert (problem.reason, problem.transient) == (FailReason.CHECKPOINT_NOT_WRITABLE, True)
    assert "Stale file handle" in problem.message
    assert "spec.checkpoint.volume" in problem.message
    assert fault.fired == len(pauses) + 1
    assert 25 < sum(pauses) < 60


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM], ids=errno.errorcode.get)
def test_a_folder_that_is_not_ours_is_reported_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch, pauses: list[float], tmp_path: Path
) -> None:
    fault = Faulty(monkeypatch, number, tries=-1)
    problem = found(tmp_path)
    assert problem is not None
    assert not problem.transient
    assert f"uid {os.getuid()}" in problem.message
    assert (fault.fired, pauses) == (1, [])


@pytest.mark.parametrize("path", ["link", "link/job"])
def test_a_link_in_the_volume_is_reported_at_once_and_makes_no_folder(
    path: str, pauses: list[float], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/link").symlink_to(tmp_path / "elsewhere")
    problem = found(tmp_path / "volume" / path, volume=str(tmp_path / "volume"))
    assert problem is not None
    assert (problem.reason, problem.transient) == (FailReason.CHECKPOINT_NOT_WRITABLE, False)
    assert "a part of spec.checkpoint.path, link, is a link; " in problem.message
    assert "uid" not in problem.message, "to give the volume to another user would not help"
    assert (pauses, [*(tmp_path / "elsewhere").iterdir()]) == ([], [])


def test_root_without_capabilities_is_reported_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    Faulty(monkeypatch, errno.EACCES, tries=-1)
    problem = found(tmp_path)
    assert problem is not None
    assert "uid 0" in problem.message
    assert "securityContext: {capabilities: {drop: []}}" in problem.message


class Slow:
    """subprocess.run of an interpreter that does not answer in time, for so many tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tries: int, error: Exception | None = None) -> None:
        self.left, self.error, self.patience = tries, error, list[float]()
        self._real = subprocess.run
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, argv: list[str], **fields: Any) -> Any:
        self.patience.append(fields["timeout"])
        if self.left == 0:
            return self._real(argv, **fields)
        self.left -= 1
        raise self.error or subprocess.TimeoutExpired(argv, fields["timeout"])


def test_a_wrapper_that_hangs_is_a_problem_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Slow(
        monkeypatch, tries=-1, error=subprocess.TimeoutExpired(["conda"], 9.0, stderr=b"waiting for a lock\n")
    )
    problem = preflight._with_wrapper(Launch(wrapper=("conda", "run")), {})
    assert isinstance(problem, Problem)
    assert problem.transient
    assert problem.message.startswith("conda run fails: waiting for a lock; correct")


def test_an_interpreter_that_is_slow_once_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = Slow(monkeypatch, tries=1)
    assert found(tmp_path, ROPETEAM_STORE="") is None
    assert slow.patience == [60, 120]


def test_an_interpreter_that_stays_slow_may_be_the_nodes_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = Slow(monkeypatch, tries=-1, error=OSError(errno.EIO, "Input/output error"))
    problem = found(tmp_path, ROPETEAM_STORE="")
    assert problem is not None
    assert (problem.reason, problem.transient) == (FailReason.INTERPRETER_WITHOUT_TORCH, True)
    assert len(slow.patience) == 2


def test_an_interpreter_without_torch_is_reported_at_once(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    problem = found(tmp_path, python=str(bare), ROPETEAM_STORE="")
    assert problem is not None
    assert (problem.reason, problem.transient) == (FailReason.INTERPRETER_WITHOUT_TORCH, False)


def test_an_interpreter_that_is_not_there_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = Slow(monkeypatch, tries=-1, error=FileNotFoundError(errno.ENOENT, "No such file or directory"))
    problem = found(tmp_path, ROPETEAM_STORE="")
    assert problem is not None
    assert not problem.transient
    assert len(gone.patience) == 1


def interpreter_of_torchrun(folder: Path) -> str:
    settings = WorkerConfig("j", "n", "u", 1, 2, 1, "127.0.0.1:1")
    environment = {"PATH": str(folder), "ROPETEAM_STORE": "none"}
    return preflight.plan_launch(("torchrun", "train.py"), settings, environment)[1]


@pytest.mark.parametrize("lines", ["#!/bin/sh # don't\n", "#!/bin/sh\n'''exec' \"/without/an/end/python\n"])
def test_a_launcher_whose_first_lines_cannot_be_parsed_names_no_interpreter(
    lines: str, tmp_path: Path
) -> None:
    (tmp_path / "torchrun").write_text(lines)
    (tmp_path / "torchrun").chmod(0o755)
    assert interpreter_of_torchrun(tmp_path) == "python3"


def test_a_launcher_that_cannot_be_read_names_no_interpreter(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unreadable:  # opening it fails for root, too
        unreadable.bind(str(tmp_path / "torchrun"))
        (tmp_path / "torchrun").chmod(0o755)
        assert interpreter_of_torchrun(tmp_path) == "python3"
