"""Comparison of a recovering job with one replica that was never disturbed."""

from __future__ import annotations

import itertools
import json
import math
import signal
from pathlib import Path

from lab.ranks.processes import Ended, RankGroup
from lab.ranks.recovery import RecoveringJob, Step, fields, lines_of

STEPS = 270
"""More than any history makes, also on a busy machine: it steps until all new ranks have joined."""


def check(ended: Ended, undisturbed: list[Step], job: RecoveringJob) -> list[list[int]]:
    """All ranks have ended well after the last step, and no step had other bits. Returns the numbers of
    steps, by rank."""
    assert not any(ended.codes), ended.output
    lines = [*map(lines_of, ended.output)]
    for line in itertools.chain(*lines):
        assert line == undisturbed[line.step - 1]
    steps = [[line.step for line in each] for each in lines]
    for each in steps:
        assert each[-1] == job.permitted
        assert each == sorted({*each}), "no step was made twice"
    return steps


def check_others(ended: Ended, lost: int, undisturbed: list[Step], job: RecoveringJob) -> None:
    """As check(), of all but a rank that was killed and not replaced: they have made all steps."""
    codes, output = [*ended.codes], [*ended.output]
    assert codes.pop(lost) == -signal.SIGKILL
    output.pop(lost)
    steps = check(Ended(codes, output), undisturbed, job)
    assert steps == [through(job)] * len(steps)


def one_replica(path: Path, inner: dict[str, int], model: str, steps: int) -> list[Step]:
    """Steps of one replica under sync Exact, as each of its ranks prints them."""
    ranks = math.prod(inner.values())
    with RankGroup(path / "one", ranks) as group:
        ended = group.start("exact.py", json.dumps(fields(6, inner)), model, str(steps)).wait()
    assert not any(ended.codes), ended.output
    lines = lines_of(ended.output[0])
    assert len({line.digest for line in lines}) == len(lines) == steps, "each step changes the weights"
    return lines


def lose_the_sender(job: RecoveringJob, fault: str) -> None:
    """Rank 1 is lost, and rank 0 while it sends the state to the new one: this ends too, and the only one
    that is left trains alone. Both are replaced then."""
    job.start(faults={0: f"{fault} SIGKILL"})
    job.make_steps(2)
    job.lose(1)
    job.replace()
    job.step_until(lambda: 0 in job.dead())
    job.lose(0)
    assert job.lost == {0, 1}
    job.recover()


def through(job: RecoveringJob) -> list[int]:
    """Steps of a rank that was not lost."""
    return [*range(1, job.permitted + 1)]
