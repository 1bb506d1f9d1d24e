"""Logs of ranks of which one is killed, for recovery.py: files are read as they grow.

Order: steps -> kill -> outcome() of the events since, whenever there are new ones.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Event(NamedTuple):
    """A line of a script's log."""

    kind: str
    """start, step, end"""
    pid: int
    t: float
    step: int = 0
    loss: str = ""
    digest: str = ""


class RankLog:
    """Events of one rank, in the order of its file."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._path = path
        self._file: BinaryIO | None = None
        self._unfinished = b""

    def read(self) -> bool:
        """Read what is new. Whether there was any."""
        if self._file is None:
            if not self._path.exists():
                return False
            self._file = self._path.open("rb")
        *lines, self._unfinished = (self._unfinished + self._file.read()).split(b"\n")
        self.events += [Event(**json.loads(line)) for line in lines]
        return bool(lines)

    def steps(self, since: int = 0) -> list[Event]:
        """Steps among the events from this index on."""
        return [event for event in self.events[since:] if event.kind == "step"]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True)
class Kill:
    """Seconds are those since the SIGKILL."""

    undisturbed: float
    """Length of the victim's median step before."""
    step: float
    """Length of the step in which it was killed, or of the one after it, from the end of the step before; of
    the slowest other rank."""
    progress: float
    """Until all other ranks have ended a step that they had not made before."""
    whole: float
    """Until a new process of the victim's rank has made a step."""
    repeated: int
    """Steps that a rank made again; of the rank with most of them."""
    recovered: bool = True


@dataclass(frozen=True)
class Victim:
    rank: int
    pid: int
    killed: float
    """Time of the SIGKILL."""


def median_step(steps: Sequence[Event]) -> float:
    times = [step.t for step in steps]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def outcome(victim: Victim, undisturbed: float, logs: Sequence[Sequence[Event]]) -> Kill | None:
    """The recovery, from recent events of each rank, some of them before the kill. None: there is more to
    come."""
    length, progress, repeated = [], [], []
    for rank, events in enumerate(logs):
        steps = [event for event in events if event.kind == "step"]
        after = [step for step in steps if step.t > victim.killed]
        before = [step for step in steps if step.t <= victim.killed]
        highest = max(step.step for step in before)
        made = {step.step: step.t for step in after if step.step > highest}  # if again, then when again
        if not made:
            return None
        if rank != victim.rank:
            length.append(min(made.values()) - before[-1].t)
            progress.append(min(made.values()) - victim.killed)
        repeated.append(_repeated(highest, after))
    first = next((step for step in logs[victim.rank] if step.kind == "step" and step.pid != victim.pid), None)
    if first is None:
        return None
    return Kill(undisturbed, max(length), max(progress), first.t - victim.killed, max(repeated))


def _repeated(highest: int, steps: Sequence[Event]) -> int:
    count = 0
    for each in steps:
        count += each.step <= highest
        highest = max(highest, each.step)
    return count


class Compared(NamedTuple):
    """Losses and digests of a run beside those of an undisturbed one."""

    differ: int
    """Results that differ, and steps that no rank made."""
    all: int


def compared(logs: Sequence[RankLog], undisturbed: Sequence[RankLog]) -> Compared:
    expected = {(rank, event.kind, event.step): event for rank, event in _results(undisturbed)}
    differ, made = 0, set()
    for rank, event in _results(logs):
        beside = expected.get((rank, event.kind, event.step))
        differ += beside is None or (event.loss, event.digest) != (beside.loss, beside.digest)
        made.add((event.kind, event.step))
    missing = {(kind, step) for _, kind, step in expected} - made
    return Compared(differ + len(missing), len(_results(logs)) + len(missing))


def _results(logs: Sequence[RankLog]) -> list[tuple[int, Event]]:
    return [(rank, event) for rank, log in enumerate(logs) for event in log.events if event.kind != "start"]
