"""The benchmark `recovery` reads times, repeated steps and results from logs as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.killlogs import Event, Kill, RankLog, Victim, compared, median_step, outcome
from benchmarks.results import ROOT

OLD, NEW = 100, 200
VICTIM = Victim(rank=1, pid=OLD, killed=10.0)


def steps(first: int, *times: float, pid: int = OLD) -> list[Event]:
    return [Event("step", pid, t, first + index) for index, t in enumerate(times)]


def log_of(path: Path, *results: str) -> RankLog:
    """A rank that has made steps with these losses; the last is its digest."""
    events = [Event("step", 1, 0.0, step, loss) for step, loss in enumerate(results[:-1], 1)]
    events.append(Event("end", 1, 0.0, digest=results[-1]))
    path.write_text("".join(json.dumps(event._asdict()) + "\n" for event in events))
    log = RankLog(path)
    log.read()
    log.close()
    return log


def test_a_log_is_read_as_it_grows_and_a_line_once_it_is_complete(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "rank-0.jsonl")
    assert not log.read()
    with (tmp_path / "rank-0.jsonl").open("w", buffering=1) as file:
        file.write('{"kind": "start", "pid": 1, "t": 1.0}\n{"kind": "step", "pid": 1, ')
        file.flush()
        assert log.read()
        assert log.events == [Event("start", 1, 1.0)]
        assert not log.read()
        file.write('"t": 2.0, "step": 7}\n')
        assert log.read()
    assert log.steps() == [Event("step", 1, 2.0, 7)]
    assert log.steps(since=2) == []
    log.close()


def test_the_events_of_the_script_are_those_that_are_read(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "lab" / "scripts" / "train_exact.py"), str(tmp_path), "3", "0"]
    subprocess.run(command, check=True)
    log = RankLog(tmp_path / "rank-0.jsonl")
    log.read()
    log.close()
    assert [(event.kind, event.step) for event in log.events] == [
        ("start", 0), ("step", 1), ("step", 2), ("step", 3), ("end", 0)
    ]  # fmt: skip
    assert len({event.loss for event in log.steps()}) == 3
    assert len(log.events[-1].digest) == 64


def test_the_step_before_is_the_median() -> None:
    assert median_step(steps(1, 1.0, 1.1, 1.2, 9.0)) == pytest.approx(0.1)


def test_a_recovery_is_over_once_the_others_and_a_new_process_have_stepped() -> None:
    slow, fast = steps(1, 9.5, 9.75, 10.25, 10.375, 10.5), steps(1, 9.5, 9.75, 10.125, 10.375, 10.5)
    started = [*steps(1, 9.5, 9.75), Event("start", NEW, 10.375)]
    assert outcome(VICTIM, 0.25, [slow, started, fast]) is None
    new = [*started, *steps(5, 10.5, pid=NEW)]
    assert outcome(VICTIM, 0.25, [slow, new, steps(1, 9.5, 9.75)]) is None
    assert outcome(VICTIM, 0.25, [slow, new, fast]) == Kill(0.25, 0.5, 0.25, 0.5, repeated=0)


def test_steps_that_are_made_again_are_no_progress() -> None:
    """One of the others has ended a third step as its peer died: all resume from step 1."""
    again = [Event("start", NEW, 11.0), *steps(2, 12.0, 12.125, pid=NEW)]
    later = [Event("start", NEW, 11.0), *steps(2, 12.0, 12.25, pid=NEW)]
    old, fast = steps(1, 9.5, 9.75), steps(1, 9.5, 9.75, 10.0625)
    found = outcome(VICTIM, 0.25, [[*old, *again], [*old, *again], [*fast, *later]])
    assert found == Kill(0.25, 2.5, 2.25, 2.0, repeated=2)


def test_a_step_that_the_victim_logged_as_it_was_killed_is_not_that_of_a_new_process() -> None:
    others = steps(1, 9.8, 9.9, 10.1, 10.2)
    victim = [*steps(1, 9.8, 9.9, 10.001)]
    assert outcome(VICTIM, 0.1, [others, victim, others]) is None


def test_results_are_compared_rank_by_rank_and_step_by_step(tmp_path: Path) -> None:
    whole = [log_of(tmp_path / f"{rank}", "a", "b", "c", "digest") for rank in range(2)]
    assert compared(whole, whole) == (0, 8)
    other_loss = log_of(tmp_path / "other-loss", "a", "x", "c", "digest")
    assert compared([whole[0], other_loss], whole) == (1, 8)
    other_digest = log_of(tmp_path / "other-digest", "a", "b", "c", "y")
    assert compared([whole[0], other_digest], whole) == (1, 8)


def test_a_step_that_only_one_rank_made_is_enough_and_one_that_none_made_counts(tmp_path: Path) -> None:
    whole = [log_of(tmp_path / f"{rank}", "a", "b", "c", "digest") for rank in range(2)]
    away = log_of(tmp_path / "away", "a", "b", "c", "digest")
    del away.events[1:3]
    assert compared([whole[0], away], whole) == (0, 6)
    assert compared([away, away], whole) == (2, 6)
    more = log_of(tmp_path / "more", "a", "b", "c", "d", "digest")
    assert compared([whole[0], more], whole) == (1, 9)
