"""The benchmark `chaos` takes progress, recoveries and repeated steps from logs as they are."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
from benchmarks.chaos import Fault, Run, disturb, progress, recovered, repeated
from benchmarks.killlogs import Event, RankLog


def log_of(path: Path, *events: Event) -> RankLog:
    log = RankLog(path)
    log.events += events
    return log


def steps(pid: int, *made: tuple[int, float]) -> list[Event]:
    return [Event("step", pid, t, step) for step, t in made]


def test_what_is_made_again_is_progress_once(tmp_path: Path) -> None:
    ahead = log_of(tmp_path / "0", *steps(1, (1, 1.0), (2, 2.0), (3, 3.0)), *steps(2, (2, 6.0), (3, 7.0)))
    behind = log_of(tmp_path / "1", *steps(1, (1, 1.0), (2, 2.0)), *steps(3, (2, 6.0), (3, 7.0), (4, 8.0)))
    assert [progress([behind, ahead], at) for at in (0.5, 2.5, 6.5, 8.0)] == [0, 2, 3, 4]
    assert [repeated([log]) for log in (ahead, behind)] == [2, 1]
    assert repeated([ahead, behind]) == 2
    assert Run([behind, ahead], 2.0, 8.0, []).rate == pytest.approx(2 / 6)


def test_a_rank_has_recovered_if_a_new_process_has_made_a_step(tmp_path: Path) -> None:
    fault = Fault(5.0, 1, 10, fired=True)
    other = log_of(tmp_path / "0", *steps(20, (1, 4.0), (2, 6.0)))
    late = log_of(tmp_path / "1", *steps(10, (1, 4.0), (2, 5.001)), Event("start", 11, 7.0))
    assert not recovered(fault, [other, late])
    late.events += steps(11, (3, 8.0))
    assert recovered(fault, [other, late])


def test_a_kill_is_one_that_a_process_takes(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:
        logs = [log_of(tmp_path / f"{rank}", *steps(victim.pid, (1, 1.0))) for rank in range(3)]
        (fault,) = disturb(logs, 0.1, time.time(), 0.1, random.Random(0))
        assert (fault.pid, fault.fired) == (victim.pid, True)
        assert victim.wait() == -9
    (again,) = disturb(logs, 0.1, time.time(), 0.1, random.Random(0))
    assert not again.fired
