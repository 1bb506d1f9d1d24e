"""Balancing among real ranks, and its two halves alone: the clock of own time, and the agreed change."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab.ranks import traces
from lab.ranks.processes import RankGroup
from torch import nn

from ropeteam_trainer.data import balancing, batches
from ropeteam_trainer.data.balancing import EXCHANGE_EVERY, Balancer
from ropeteam_trainer.data.computetimer import ComputeTimer
from ropeteam_trainer.data.decisions.plan import DataPlan, Position

CPU = torch.device("cpu")


def sizes(trace: Path, world: int) -> list[tuple[int, ...]]:
    """For each step, how many samples each rank took."""
    return [tuple(len(line.samples) for line in found) for found in traces.surviving(trace, world).values()]


def one_process(path: Path, *options: str) -> Path:
    alone = RankGroup(path / "alone", 1)
    assert alone.run("balance.py", *options).codes == [0]
    return alone.trace


def assert_same_training(trace: Path, world: int, alone: Path) -> None:
    """Assert the same samples in the same order, and the same mean loss in each step."""
    assert traces.samples(trace, world) == traces.samples(alone, 1)
    expected = traces.losses(alone, 1)
    found = traces.losses(trace, world)
    assert found.keys() == expected.keys()
    for step, losses in found.items():
        mean = sum(map(float.fromhex, losses)) / world
        assert mean == pytest.approx(float.fromhex(expected[step][0]), abs=1e-5), step


@pytest.mark.parametrize(
    ("strategy", "place"),
    [("ddp", "forward"), ("ddp", "backward"), ("ddp", "between"), ("ddp", "step"),
     ("fsdp", "forward"), ("fsdp", "between"), ("fsdp", "step")],
)  # fmt: skip
def test_a_slow_rank_gets_less_wherever_it_is_slow(tmp_path: Path, strategy: str, place: str) -> None:
    """And the fast one, which waits for it, is not taken for slow."""
    options = ("--samples", "300", "--epochs", "1")
    group = RankGroup(tmp_path, 2)
    slow = ("--speeds", "1,30", "--place", place, "--strategy", strategy, "--balance")
    ended = group.run("balance.py", *options, *slow)
    assert ended.codes == [0, 0], ended.output
    taken = sizes(group.trace, 2)
    assert set(taken[:EXCHANGE_EVERY]) == {(4, 4)}
    assert taken[-2][0] > taken[-2][1]
    assert_same_training(group.trace, 2, one_process(tmp_path, *options))


@pytest.mark.parametrize("loading", [("--workers", "1"), ("--workers", "2"), ("--prefetch", "3")])
def test_batches_that_were_loaded_ahead_keep_their_parts(tmp_path: Path, loading: tuple[str, str]) -> None:
    options = ("--samples", "303", "--epochs", "2", "--global-batch", "12")
    group = RankGroup(tmp_path, 3)
    ended = group.run("balance.py", *options, *loading, "--speeds", "1,1,30", "--balance")
    assert ended.codes == [0, 0, 0], ended.output
    taken = sizes(group.trace, 3)
    ahead = batches.max_batches_ahead(**{"workers": 0, "prefetch": 0, loading[0][2:]: int(loading[1])})
    assert set(taken[: EXCHANGE_EVERY + ahead]) == {(4, 4, 4)}
    assert taken[EXCHANGE_EVERY + ahead][2] < 4
    assert_same_training(group.trace, 3, one_process(tmp_path, *options))


@pytest.mark.parametrize("sharding", [None, "Parameters"])
def test_the_manifest_sets_balance_and_prefetch(tmp_path: Path, sharding: str | None) -> None:
    options = ("--samples", "300", "--epochs", "1")
    strategy = json.dumps({"sharding": sharding, "batch": {"balance": True, "prefetch": 3}})
    group = RankGroup(tmp_path, 2)
    ended = group.run("balance.py", *options, "--speeds", "1,30", "--manifest", strategy)
    assert ended.codes == [0, 0], ended.output
    taken = sizes(group.trace, 2)
    ahead = batches.max_batches_ahead(workers=0, prefetch=3)
    assert set(taken[: EXCHANGE_EVERY + ahead]) == {(4, 4)}
    assert taken[EXCHANGE_EVERY + ahead][0] > taken[EXCHANGE_EVERY + ahead][1]
    assert_same_training(group.trace, 2, one_process(tmp_path, *options))


def test_a_balanced_job_resumes_in_another_world(tmp_path: Path) -> None:
    saved = ("--samples", "300", "--speeds", "1,5", "--balance", "--folder", str(tmp_path / "saved"))
    for world, epochs in ((2, "1"), (3, "2")):
        ended = RankGroup(tmp_path, world).run("balance.py", *saved, "--every", "30", "--epochs", epochs)
        assert ended.codes == [0] * world, ended.output
    used = traces.samples(tmp_path / "trace", 3)
    alone = one_process(tmp_path, "--samples", "300", "--epochs", "2")
    assert used == traces.samples(alone, 1)
    again = [line for line in traces.lines(tmp_path / "trace", 0) if line.world.n == 2]
    assert len(again[0].samples) == 8 // 3, "it begins with equal parts"


class FakeClock:
    def start(self) -> None: ...

    def speed(self) -> float | None: ...


class FakeWorld:
    """World of one rank, which gathers the given speeds."""

    def __init__(self, aheads: list[int], speeds: list[tuple[float, ...]]) -> None:
        self.aheads, self.exchanges = aheads, iter(speeds)

    def gather(self, _value: Any) -> list[Any]:
        return list(zip(next(self.exchanges), self.aheads, strict=True))


def a_balancer(aheads: list[int], exchanges: Any, ahead: int, global_batch: int) -> Balancer:
    """Balancer of a rank that gathers `exchanges`, one speed per rank, and loads `ahead`."""
    world: Any = FakeWorld(aheads, exchanges)
    clock: Any = FakeClock()
    return Balancer(world, clock, global_batch, ahead)


@given(
    plan=st.builds(DataPlan, samples=st.integers(1, 90), global_batch=st.integers(1, 9)),
    ranks=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    data=st.data(),
)
def test_exactly_once_however_early_each_rank_plans(plan: DataPlan, ranks: list[int], data: Any) -> None:
    """Each rank runs as many batches ahead as it likes, up to its own limit."""
    steps = plan.steps(2)
    speeds = data.draw(
        st.lists(st.tuples(*[st.floats(0.1, 50)] * len(ranks)), min_size=steps + 1, max_size=steps + 1)
    )
    taken: list[list[tuple[int, ...]]] = []
    for rank, ahead in enumerate(ranks):
        balancer = a_balancer(ranks, speeds, ahead, plan.global_batch)
        planned = batches.shares_from(plan, Position(), 2, rank, len(ranks), balancer.speeds)
        shares: list[tuple[int, ...]] = []
        for number in range(steps):
            with patch.object(balancing, "EXCHANGE_EVERY", 3):
                balancer.begin_batch()
            while len(shares) < steps and len(shares) < number + 1 + data.draw(st.integers(0, ahead)):
                shares.append(next(planned)[1].ids)
        taken.append(shares)
    used = [i for step in zip(*taken, strict=True) for ids in step for i in ids]
    alone = batches.shares_from(plan, Position(), 2, 0, 1)
    assert used == [i for _, share in alone for i in share.ids]


class Hands:
    """Of a clock, to be moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def test_own_time_is_the_step_without_the_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), ComputeTimer(CPU)
    clock.start()
    hands.now += 1
    clock.pause()
    clock.pause()
    hands.now += 50
    clock.resume()
    hands.now += 50
    clock.resume()
    clock.start()  # a step of two batches
    hands.now += 1
    clock.stop(10)
    hands.now += 100
    clock.stop(10)
    assert clock.speed() == 5.0
    assert clock.speed() is None, "of the steps since the last call"


def test_speed_is_the_median_of_steps_that_had_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), ComputeTimer(CPU)
    for samples, seconds in ((8, 100.0), (8, 2.0), (6, 2.0), (0, 1.0), (8, 0.0), (8, 4.0)):
        clock.start()
        hands.now += seconds
        clock.stop(samples)
    assert clock.speed() == (2.0 + 3.0) / 2


def test_a_backward_pass_that_failed_does_not_stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, clock = Hands(monkeypatch), ComputeTimer(CPU)
    clock.start()
    clock.pause()
    clock.stop(4)
    clock.speed()
    clock.start()
    hands.now += 2
    clock.stop(4)
    assert clock.speed() == 2.0


class FakeEvent:
    """A CUDA event; `happened` in the order in which they were recorded."""

    happened, recorded = 0, 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.recorded += 1
        self.number = FakeEvent.recorded

    def query(self) -> bool:
        return self.number <= FakeEvent.happened

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1000.0 * (end.number - self.number)


def test_on_cuda_only_what_has_happened_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = ComputeTimer(torch.device("cuda"))
    for samples in (4, 400):
        clock.start()
        clock.stop(samples)
    FakeEvent.happened = 3
    assert clock.speed() == 4.0, "the second step still runs"


@pytest.mark.parametrize(("model", "name"), [(None, "none"), (nn.Linear(1, 1), "Linear")])
def test_a_model_whose_waits_are_not_known_is_refused(model: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"call job.restore\(model=...\).* It was given {name}."):
        ComputeTimer(CPU).attach(model)


def test_who_loads_furthest_ahead_decides_when_a_change_begins() -> None:
    balancer = a_balancer([0, 4], [(1.0, 3.0)], 0, 8)
    for _ in range(EXCHANGE_EVERY + 1):
        balancer.begin_batch()
    assert [balancer.speeds(number) for number in (0, EXCHANGE_EVERY + 3, EXCHANGE_EVERY + 4)] == [
        None,
        None,
        (1.0, 3.0),
    ]
