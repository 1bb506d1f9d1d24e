"""A call of model() with the samples of micro-batches that another rank had."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from ropeteam_trainer.data.decisions.plan import DataPlan, Deal, Position
from ropeteam_trainer.data.feed import BatchRequest, Feed
from ropeteam_trainer.data.substitution import TracedBatch, UntracedArgument, tensors_in
from ropeteam_trainer.rank.world import World

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "all but the last": lambda x: x[:, :-1],
    "all but the first": lambda x: x[:, 1:],
    "every second": lambda x: x[:, 1::2],
    "one of each sample": lambda x: x[:, 2],
    "the last": lambda x: x[..., -1],
    "one more dimension": lambda x: x.unsqueeze(1),
    "flat": lambda x: x.flatten(1),
    "split": lambda x: x.unflatten(1, (2, 3)),
    "other order in a sample": lambda x: x.unflatten(1, (2, 3)).transpose(1, 2),
    "repeated": lambda x: x.unsqueeze(1).expand(-1, 4, -1),
    "view of a view": lambda x: x[:, 1:][:, 1:-1],
}
COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "computed": lambda x: x * 2,
    "copy": lambda x: x.clone(),
    "detached": lambda x: x.detach(),
    "other type": lambda x: x.double(),
    "other bits": lambda x: x.view(torch.int32),
    "other order of samples": lambda x: x.flip(0),
    "other samples": lambda x: x[torch.arange(len(x) - 1, -1, -1)],
    "not of the batch": torch.ones_like,
}
SAMPLES = 6
"""As many as numbers in a sample: transposed, a batch has the same shape."""


def batch_of(samples: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", VIEWS)
@given(samples=st.integers(1, 9), others=st.integers(1, 9))
def test_a_part_of_each_sample_is_the_same_part_of_other_samples(
    name: str, samples: int, others: int
) -> None:
    own, other = batch_of(samples), batch_of(others, 1)
    found = TracedBatch(own).with_samples_of(other, VIEWS[name](own), samples)
    assert torch.equal(found, VIEWS[name](other))


def test_the_tensor_itself_is_the_other_one() -> None:
    own, other = batch_of(3), batch_of(4)
    assert TracedBatch(own).with_samples_of(other, own, 3) is other


@pytest.mark.parametrize("name", COMPUTED)
def test_a_tensor_that_was_computed_is_refused(name: str) -> None:
    own = batch_of(SAMPLES)
    with pytest.raises(UntracedArgument, match=r"an argument of model\(\), shape \(6, 6\), is neither a"):
        TracedBatch(own).with_samples_of(batch_of(4), COMPUTED[name](own), SAMPLES)


@pytest.mark.parametrize("argument", [lambda x: x.t(), lambda x: x.flatten().unfold(0, 6, 5)[:6]])
def test_a_view_across_samples_is_refused(argument: Callable[[torch.Tensor], torch.Tensor]) -> None:
    own = batch_of(SAMPLES)
    with pytest.raises(UntracedArgument):
        TracedBatch(own).with_samples_of(batch_of(4), argument(own), SAMPLES)


@pytest.mark.parametrize("name", ["itself", "all but the last"])
def test_a_batch_that_was_changed_in_place_is_refused(name: str) -> None:
    own = batch_of(3)
    traced = TracedBatch(own)
    argument = VIEWS[name](own)
    argument.add_(1)
    with pytest.raises(UntracedArgument):
        traced.with_samples_of(batch_of(4), argument, 3)


def test_what_changed_a_batch_before_the_script_got_it_is_in_the_others_too() -> None:
    own, other = batch_of(3).add_(1), batch_of(4)
    assert TracedBatch(own).with_samples_of(other, own, 3) is other


@pytest.mark.parametrize(
    "other",
    [torch.ones(4, 7), torch.ones(4, 6).double(), torch.ones(6, 4).t()],
    ids=["another shape", "another type", "other strides"],
)
def test_another_batch_of_another_form_is_refused(other: torch.Tensor) -> None:
    """As where samples are padded to the longest one of their batch."""
    own = batch_of(3)
    with pytest.raises(UntracedArgument):
        TracedBatch(own).with_samples_of(other, own, 3)


def test_batches_with_different_numbers_of_tensors_are_refused() -> None:
    own = batch_of(3)
    with pytest.raises(UntracedArgument, match=r"batches of job\.batches\(\) have different numbers of tens"):
        TracedBatch([own]).with_samples_of([batch_of(4), batch_of(4)], own, 3)


def test_each_argument_is_traced_to_its_own_tensor_in_nested_batches() -> None:
    def nested(samples: int, seed: int) -> dict[str, Any]:
        x, y, z = (batch_of(samples, seed + n) for n in range(3))
        return {"x": x, "more": [y, (z, torch.tensor(1.0), "text")]}

    own, other = nested(3, 0), nested(4, 10)
    y, z = own["more"][0], own["more"][1][0]
    mask, scale = torch.ones(5, 5), torch.tensor(0.5)
    arguments = (([z, own["x"][:, :-1]], {"y": y}, mask), {"scale": scale, "mode": "sum", "z": (z,)})
    inputs, named = TracedBatch(own).with_samples_of(other, arguments, 3)
    assert inputs[0][0] is other["more"][1][0]
    assert torch.equal(inputs[0][1], other["x"][:, :-1])
    assert inputs[1] == {"y": other["more"][0]}
    assert inputs[2] is mask, "its first dimension is none of samples"
    assert named == {"scale": scale, "mode": "sum", "z": (other["more"][1][0],)}


def test_only_tensors_with_a_dimension_are_samples() -> None:
    x, y = torch.ones(2), torch.ones(3)
    assert [*tensors_in({"a": (x, torch.tensor(1)), "b": [y, None, "text"]})] == [x, y]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_copy_on_another_device_is_copied_of_other_samples() -> None:
    own, other = batch_of(3), batch_of(4)
    traced = TracedBatch(own)
    found = traced.with_samples_of(other, own.to("cuda", torch.float16), 3)
    assert torch.equal(found, other.to("cuda", torch.float16))
    with pytest.raises(UntracedArgument):
        traced.with_samples_of(other, own.to("cuda") + 1, 3)


def test_an_argument_that_may_be_either_of_two_tensors_is_refused_where_these_differ_for_others() -> None:
    """A copy on another device is found by its values, and in the own samples these may be equal."""
    own, ones, twos = torch.ones(3, 2), torch.ones(4, 2), torch.full((4, 2), 2.0)
    traced = TracedBatch([own, own])
    assert traced.with_samples_of([twos, twos], own, 3) is twos
    with pytest.raises(UntracedArgument, match="has the values of several tensors"):
        traced.with_samples_of([ones, twos], own, 3)


# ---- the micro-batches of another rank

PLAN = DataPlan(samples=20, global_batch=8, seed=3)
"""The last batch of a pass has four samples, for six micro-batches."""
X = torch.randn(PLAN.samples, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(PLAN.samples)
LEAVES = 6


def fed(mine: tuple[int, ...], **settings: Any) -> tuple[Feed, Any]:
    """Feed of a rank with these micro-batches, and its batches."""
    feed = Feed(World(0, 2, torch.device("cpu")))
    feed.join_begun()
    request = BatchRequest(TensorDataset(X, Y), PLAN, 2, deal=Deal(LEAVES, mine), **settings)
    return feed, feed.batches(request, 0, 2, nullcontext)


@pytest.mark.parametrize("settings", [{}, {"prefetch": 2}, {"workers": 1}], ids=str)
def test_other_micro_batches_are_those_of_the_last_batch_with_the_rest_of_its_samples(
    settings: dict[str, Any],
) -> None:
    feed, batches = fed((0, 1, 4), **settings)
    at = Position()
    for step in range(PLAN.steps(2)):
        x, y = next(batches)
        numbers = (5,) if step % 2 else (2, 3, 5)
        leaves, (inputs, named) = feed.other_leaves(numbers, ((x[:, :-1],), {"y": y}))
        share = PLAN.dealt_share(at, Deal(LEAVES, numbers))
        assert leaves == share.leaves
        assert torch.equal(inputs[0], X[[*share.loaded]][:, :-1])
        assert named["y"].tolist() == [*share.loaded]
        assert {*share.ids} <= {*feed.taken}
        total = PLAN.share(at, 0, 1).ids
        if len(numbers) == 3:
            assert sorted(feed.taken) == sorted(total), "each sample exactly once"
        assert feed.total == len(total)
        feed.end_step()
        feed.reset_taken()
        at = PLAN.after(at)
    assert next(batches, None) is None


def test_micro_batches_are_loaded_as_the_ranks_own_ones() -> None:
    def collate(samples: list[Any]) -> list[torch.Tensor]:
        return [torch.stack([x for x, _ in samples]) * 2, torch.stack([y for _, y in samples])]

    feed, batches = fed((0,), collate=collate)
    x, _ = next(batches)
    leaves, (found,) = feed.other_leaves((1, 2), (x,))
    assert torch.equal(found, 2 * X[[number for leaf in leaves for number in leaf.ids]])


def test_an_argument_that_was_computed_of_the_batch_is_refused() -> None:
    feed, batches = fed((0, 1))
    x, _ = next(batches)
    with pytest.raises(UntracedArgument):
        feed.other_leaves((2,), (x + 1,))


class OneReader:
    """A data set that cannot be read by two threads at once, as one with a file."""

    def __init__(self) -> None:
        self.reads, self.most = 0, 0

    def __len__(self) -> int:
        return PLAN.samples

    def __getitem__(self, number: int) -> torch.Tensor:
        self.reads += 1
        self.most = max(self.most, self.reads)
        time.sleep(0.002)
        self.reads -= 1
        return X[number]


def test_a_data_set_is_read_by_one_thread_at_a_time() -> None:
    data, feed = OneReader(), Feed(World(0, 2, torch.device("cpu")))
    feed.join_begun()
    request = BatchRequest(data, PLAN, 9, deal=Deal(LEAVES, (0,)), prefetch=8)
    batches = feed.batches(request, 0, 2, nullcontext)
    x = next(batches)
    feed.other_leaves((1, 2, 3, 4, 5), (x,))
    feed.close()
    assert data.most == 1
