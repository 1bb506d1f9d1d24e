"""Backup workers and the data: step n is computed on batch n, also by a process that takes the place of one
that was ordered to skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab.ranks import traces
from tests.trainer.test_parameterserver import ServedJob, request, served

from ropeteam_trainer.data.decisions.plan import DataPlan, Position
from ropeteam_trainer.data.feed import BatchRequest, Feed
from ropeteam_trainer.rank.world import World

SAMPLES, BATCH, EPOCHS = 50, 4, 3
PLAN = DataPlan(SAMPLES, BATCH, 7)


def batches_of(plan: DataPlan, rank: int, ways: int, count: int) -> list[tuple[int, ...]]:
    at, found = Position(), []
    for _ in range(count):
        found.append(plan.share(at, rank, ways).ids)
        at = plan.after(at)
    return found


def begun(saved: dict[str, int] | None) -> tuple[Feed, Iterator[torch.Tensor]]:
    feed = Feed(World(0, 1, torch.device("cpu")))
    feed.restore(saved)
    wanted = BatchRequest(torch.arange(SAMPLES), PLAN, EPOCHS)
    return feed, feed.batches(wanted, 1, 2, nullcontext)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_a_skip_is_part_of_the_position_that_is_saved(story: list[tuple[int, bool]]) -> None:
    """story: steps that the others make while this worker computes one; whether it is killed after."""
    expected = batches_of(PLAN, 1, 2, PLAN.steps(EPOCHS))
    feed, batches = begun(None)
    clock = 0
    for skipped, killed in story:
        batch = next(batches, None)
        if batch is None:
            assert clock >= len(expected), "the data end at the same step as those of the others"
            return
        assert tuple(batch.tolist()) == expected[clock]
        feed.skip(skipped)
        clock += 1 + skipped
        if killed:
            feed, batches = begun(feed.state())


@pytest.mark.parametrize("dies", [False, True], ids=["killed while it computes", "before it reports a skip"])
def test_a_successor_computes_each_step_on_the_batch_of_that_step(dies: bool, tmp_path: Path) -> None:
    steps, workers, late = 60, 3, 1
    slow = {"0": 0.02, str(late): 0.1, "2": 0.02}
    settings = request(served(backup_workers=1), "count", steps=steps, slow=slow)
    path = tmp_path / "group"
    if dies:
        settings["dies"] = {str(late): 4}
        settings["waits"] = dict.fromkeys(("0", "2"), (0, f"computed-{late}"))  # all begin together
    else:
        settings["waits"] = dict.fromkeys(("0", "2"), (40, "restarted"))
    with ServedJob(path, workers, 1, settings) as group:
        if dies:
            group.agent.wait((path / f"died-{late}").exists)
        else:
            group.reached(late, 4)
        group.ranks.restart(late)
        (path / "restarted").touch()
        group.wait()
        lines = traces.lines(group.ranks.trace, late)
    expected = batches_of(DataPlan(steps * settings["batch"], settings["batch"], 0), late, workers, steps)
    computed = [expected.index(line.samples) for line in lines]
    known = [0, *(line.step for line in lines)]
    assert len(computed) < steps, "it was slow, and skipped"
    restarts = [n for n, (batch, step) in enumerate(zip(computed, known, strict=False)) if batch != step]
    assert len(restarts) <= 1, f"batches {computed} at steps {known}"
    for n in restarts:  # it had reported nothing since it was answered to skip: the ledger knew
        assert computed[n] > known[n]
