"""Random generators, cadence, loading of batches, and the library without any operator."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from ropeteam_trainer.checkpoint.cadence import Cadence, steps_until_check
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.checkpoint.objects import rng
from ropeteam_trainer.checkpoint.saving import next_world_id
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.data import batches
from ropeteam_trainer.data.decisions.plan import DataPlan, Position

PLAN = DataPlan(samples=10, global_batch=4, seed=1)


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_random_generators_come_back_from_plain_values(tmp_path: Path) -> None:
    torch.save(rng.capture(), tmp_path / "rng.pt")
    expected = [draw() for _ in range(3)]
    rng.put_back(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_states_of_numpy_cannot_be_restored_in_an_image_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    state = rng.capture()
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ValueError, match=r"cannot be restored .*numpy.*: were they saved under another"):
        rng.put_back(state)


def test_a_state_of_python_with_a_negative_number_cannot_be_restored() -> None:
    state = rng.capture() | {"python": (random.Random.VERSION, (-1,) * 625, None)}
    with pytest.raises(ValueError, match="cannot be restored"):
        rng.put_back(state)


def test_a_new_rank_is_seeded_by_step_and_number() -> None:
    drawn = []
    for step, rank in ((1, 3), (1, 3), (1, 4), (2, 3)):
        rng.reseed(step, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert len({*drawn}) == 3
    assert all(len({values[i] for values in drawn}) == 3 for i in range(3))


def cadence(every_steps: int | None = None, every_seconds: int | None = None) -> tuple[Cadence, list[int]]:
    broadcasts: list[int] = []

    def agree(value: int) -> int:
        broadcasts.append(value)
        return value

    return Cadence(CheckpointConfig("/c", every_steps, every_seconds), agree), broadcasts


def test_steps_are_multiples_whatever_the_first_step_is() -> None:
    by_steps, broadcasts = cadence(every_steps=4)
    assert [step for step in range(7, 20) if by_steps.due(step)] == [8, 12, 16]
    assert broadcasts == [], "no collective where none is needed"


def test_seconds_are_rank_0s() -> None:
    by_seconds, broadcasts = cadence(every_seconds=0)
    assert all(by_seconds.due(step) for step in range(1, 4))
    assert broadcasts == [0, 0, 0]
    for_ever, broadcasts = cadence(every_steps=50, every_seconds=10_000)
    assert [step for step in range(1, 200) if for_ever.due(step)] == [50, 100, 150]
    assert len(broadcasts) < 20, "steps of microseconds are not asked about one by one"


def test_world_ids_without_an_operator_are_of_term_0(tmp_path: Path) -> None:
    assert next_world_id(tmp_path) == WorldId(0, 0, 1)
    (tmp_path / "step-4" / "0.0.7").mkdir(parents=True)
    (tmp_path / "step-4" / "0.0.7" / MANIFEST).write_text("{}")
    assert next_world_id(tmp_path) == WorldId(0, 0, 8)


def test_nothing_configured_means_never() -> None:
    never, broadcasts = cadence()
    assert not any(never.due(step) for step in range(10))
    assert broadcasts == []


def test_ranks_that_have_exchanged_their_clocks_save_when_one_of_them_is_late() -> None:
    """As those that continue without rank 0."""
    late, broadcasts = cadence(every_steps=50, every_seconds=10_000)
    answers = [False, False, True, False, True]
    assert [late.due(step, answer) for step, answer in enumerate(answers, 1)] == answers
    assert late.due(50, False), "by steps in any case"
    assert broadcasts == [], "rank 0's clock is not needed"
    by_steps, _ = cadence(every_steps=50)
    assert not by_steps.due(1, False)


def test_a_clock_is_late_until_a_save() -> None:
    saves: list[Callable[[Cadence], Any]] = [
        lambda by_seconds: by_seconds.due(1, True),
        lambda by_seconds: by_seconds.due(4, False),
        lambda by_seconds: by_seconds.due(1),
        lambda by_seconds: by_seconds.note_saved(),
    ]
    for save in saves:
        by_seconds, _ = cadence(every_steps=4, every_seconds=5_000)
        assert not by_seconds.is_late
        by_seconds._saved -= 5_000
        assert by_seconds.is_late
        assert not by_seconds.due(3, False), "another rank was not late: this one's clock is not its own"
        assert by_seconds.is_late
        save(by_seconds)
        assert not by_seconds.is_late
    never, _ = cadence(every_steps=4)
    never._saved -= 1e9
    assert not never.is_late


@given(left=st.floats(-10, 1e4), seconds=st.floats(0, 1e4))
def test_the_clock_is_checked_in_time(left: float, seconds: float) -> None:
    steps = steps_until_check(left, seconds)
    assert (steps == 0) == (left <= 0)
    assert steps <= 1 or steps * seconds <= min(left, 1.0) * 1.001


class Squares(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return PLAN.samples

    def __getitem__(self, index: int) -> int:
        return index * index


def taken(dataset: Any, workers: int = 0, collate: Any = None, world: int = 1) -> Iterator[Any]:
    planned = batches.shares_from(PLAN, Position(0, 4), 2, world - 1, world)
    return (item[-1] for item in batches.load_batches(dataset, planned, workers, collate))


def expected_ids() -> list[list[int]]:
    starts = [Position(0, 4), Position(0, 8), Position(1), Position(1, 4), Position(1, 8)]
    return [list(PLAN.share(at, 0, 1).ids) for at in starts]


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_sequences_and_datasets_give_the_samples_of_the_plan(workers: int) -> None:
    before = torch.get_rng_state()
    squares = [[i * i for i in ids] for ids in expected_ids()]
    assert [batch.tolist() for batch in taken(Squares(), workers)] == squares
    assert [batch.tolist() for batch in taken(torch.arange(10) ** 2, workers)] == squares
    assert [batch.tolist() for batch in taken([i * i for i in range(10)], workers)] == squares
    pairs = taken(TensorDataset(torch.arange(10), torch.arange(10) ** 2), workers)
    assert [two.tolist() for _, two in pairs] == squares
    assert list(taken(Squares(), workers, sum)) == [sum(ids) for ids in squares]
    assert torch.equal(torch.get_rng_state(), before), "nothing is drawn from the training's generator"


def test_a_rank_without_samples_gets_one_to_compute_on() -> None:
    sizes = [len(batch) for batch in taken(torch.arange(10), world=7)]
    assert sizes == [1, 1, 1, 1, 1]
