"""Batches that a thread loads ahead: the same order, the same errors, and nothing that outlives its use."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab.ranks import traces
from lab.ranks.processes import RankGroup
from tests.trainer.test_job import alone
from torch import nn

from ropeteam_trainer.data.prefetch import prefetched

TIMEOUT_SECONDS = 60


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ropeteam-prefetch"]


class Watched:
    """Numbers, and a count of the requested ones."""

    def __init__(self, size: int, fails_at: int | None = None) -> None:
        self.size, self.fails_at = size, fails_at
        self.requested: list[int] = []
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        with self._changed:
            self.requested.append(index)
            self._changed.notify_all()
        if len(self.requested) == self.fails_at:
            raise LookupError("no such sample")
        return index

    def wait_for(self, requested: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requested) >= requested, TIMEOUT_SECONDS)


@given(items=st.lists(st.integers(), max_size=20), count=st.integers(1, 5), taken=st.integers(0, 25))
def test_the_items_are_the_same_and_the_thread_ends(items: list[int], count: int, taken: int) -> None:
    """Whether all are taken or it is closed before."""
    source = prefetched(iter(items), count)
    found = [item for item, _ in zip(source, range(taken), strict=False)]
    source.close()
    assert found == items[:taken]
    assert threads() == []


def test_so_many_are_ready_and_one_is_being_made() -> None:
    made: list[int] = []
    released = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            released.release()
            yield number

    ahead = prefetched(source(), 3)
    assert next(ahead) == 0
    for _ in range(5):
        assert released.acquire(timeout=TIMEOUT_SECONDS)
    assert not released.acquire(timeout=0.2), "the sixth waits for room"
    assert made == [0, 1, 2, 3, 4]
    ahead.close()


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_error_of_the_data_comes_at_its_step_with_its_traceback(prefetch: int) -> None:
    job, data = alone(), Watched(20, fails_at=8)
    steps = []

    def train() -> None:
        for batch in job.batches(data, global_batch=3, prefetch=prefetch):
            steps.append(batch)
            job.report()

    with pytest.raises(LookupError) as error:
        train()
    assert len(steps) == 2
    names = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert names[0] != "__getitem__"
    assert names[-1] == "__getitem__"
    assert "train" in names
    assert threads() == []


def leave_the_loop(batches: Any, _job: Any) -> None:
    next(batches)
    batches.close()


def end_the_job(batches: Any, job: Any) -> None:
    """With the generator still referred to, as by the traceback of an error."""
    next(batches)
    job._at_exit()


@pytest.mark.parametrize("leave", [leave_the_loop, end_the_job])
def test_the_thread_ends_with_the_loop_and_with_the_job(leave: Callable[[Any, Any], None]) -> None:
    job, data = alone(), Watched(100)
    batches = job.batches(data, global_batch=1, prefetch=2)
    leave(batches, job)
    assert threads() == []
    assert len(data.requested) <= 4


def test_a_checkpoint_holds_the_position_of_the_batch_that_was_taken(tmp_path: Path) -> None:
    first, data = alone(tmp_path, every=1), Watched(10)
    first.restore(model=nn.Linear(1, 1))
    batches: Any = first.batches(data, global_batch=2, prefetch=3)
    taken = next(batches).tolist() + next(batches).tolist()
    data.wait_for(10)  # the thread is at the end of the data
    first.report()
    batches.close()
    again = alone(tmp_path, n=2)
    again.restore(model=nn.Linear(1, 1))
    for batch in again.batches(list(range(10)), global_batch=2):
        taken += batch.tolist()
    assert sorted(taken) == list(range(10))


def test_real_ranks_do_the_same_with_and_without(tmp_path: Path) -> None:
    plain, ahead = RankGroup(tmp_path / "plain", 2), RankGroup(tmp_path / "ahead", 2)
    for group, more in ((plain, ()), (ahead, ("--prefetch", "2"))):
        ended = group.run("balance.py", *more)
        assert ended.codes == [0, 0], ended.output
    assert traces.losses(plain.trace, 2) == traces.losses(ahead.trace, 2)
    assert traces.samples(plain.trace, 2) == traces.samples(ahead.trace, 2)


@pytest.mark.parametrize(("prefetch", "workers"), [(-1, 0), (2, 1)])
def test_prefetch_that_cannot_be_is_refused(prefetch: int, workers: int) -> None:
    with pytest.raises(ValueError, match="prefetch must be 0 or more, and 0 with workers"):
        next(alone().batches(torch.arange(3), global_batch=1, prefetch=prefetch, workers=workers))


def test_a_batch_with_fewer_samples_than_ranks_is_taken_by_all(tmp_path: Path) -> None:
    """Of 9 samples in batches of 7 two are left for three ranks: one computes on a filler, of weight 0."""
    losses = {}
    for world in (1, 3):
        group = RankGroup(tmp_path / str(world), world)
        ended = group.run("balance.py", "--samples", "9", "--global-batch", "7")
        assert ended.codes == [0] * world, ended.output
        found = traces.losses(group.trace, world).values()
        losses[world] = [sum(map(float.fromhex, each)) / world for each in found]
        assert sorted(traces.samples(group.trace, world)) == sorted([*range(9)] * 2)
    assert [len(line.samples) for line in traces.surviving(tmp_path / "3" / "trace", 3)[2]] == [0, 1, 1]
    assert losses[3] == pytest.approx(losses[1], abs=1e-5)


def test_ranks_with_different_data_get_an_error(tmp_path: Path) -> None:
    ended = RankGroup(tmp_path, 2).run("balance.py", "--samples-of-rank-1", "36")
    assert ended.codes == [1, 1]
    for output in ended.output:
        assert "samples = 37 on rank 0 and 36 on rank 1. Pass the whole data set on all ranks" in output
