"""The state of the training, as one rank sends it to another that has none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from ropeteam_trainer.checkpoint.handover import HandedOver, Receive, captured, load
from ropeteam_trainer.checkpoint.objects.stateful import SavedObjects
from ropeteam_trainer.strategies.exact.sums import as_bytes


class Counter:
    """State that is neither of a module nor of an optimizer."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "of": torch.full((2,), float(self.value))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["of"], torch.full((2,), float(state["value"])))
        self.value = state["value"]


class Model(nn.Module):
    """Tensors of several types and layouts."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layer = nn.Linear(3, 5)
        self.transposed = nn.Parameter(torch.randn(5, 4, generator=generator).t())
        self.narrow = nn.Parameter(torch.randn(7, generator=generator).bfloat16())
        self.norm = nn.BatchNorm1d(5)
        self.empty = nn.Buffer(torch.empty(0, 3))
        self.strided = nn.Buffer(torch.randn(8, generator=generator)[::2])
        self.mask = nn.Buffer(torch.rand(6, generator=generator) > 0.5)
        for parameter in self.layer.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))


class Training:
    def __init__(self, seed: int) -> None:
        self.model = Model(seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1 + seed)
        self.counter = Counter(seed)
        objects = {"model": self.model, "optimizer": self.optimizer, "counter": self.counter}
        self.objects = SavedObjects(objects)

    def step(self) -> None:
        x = torch.arange(6.0).view(2, 3)
        self.optimizer.zero_grad()
        loss = self.model.norm(self.model.layer(x)).square().sum() + self.model.transposed.square().sum()
        (loss + self.model.narrow.float().exp().sum()).backward()
        self.optimizer.step()
        self.counter.value += 1

    def state(self) -> list[Any]:
        state = self.objects.state(with_others=True)
        tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
        return [tensors, copy.deepcopy(state.shared), copy.deepcopy(state.others)]


def sent(parts: Sequence[torch.Tensor]) -> Receive:
    """As another replica receives them."""

    def receive(places: Callable[[memoryview], Sequence[torch.Tensor]]) -> None:
        first, *others = map(as_bytes, parts)
        for place, part in zip(map(as_bytes, places(first)), others, strict=True):
            place[:] = part

    return receive


def assert_equal(one: list[Any], other: list[Any]) -> None:
    assert one[0].keys() == other[0].keys()
    assert len(one[0]) > 15
    for name, tensor in one[0].items():
        assert tensor.dtype == other[0][name].dtype
        assert torch.equal(tensor, other[0][name]), name
    assert one[1] == other[1]
    assert str(one[2]) == str(other[2])


@pytest.mark.parametrize("copied", [False, True])
def test_a_rank_with_the_state_of_another_trains_on_as_that_one(copied: bool) -> None:
    living, new = Training(1), Training(2)
    living.step()
    data = {"epoch": 1, "offset": 8, "samples": 40, "seed": 3}
    parts = captured(living.objects, 12, data, 10, {"exchanges": 15}, copied)
    assert load(new.objects, sent(parts)) == HandedOver(12, data, 10, {"exchanges": 15})
    assert_equal(new.state(), living.state())
    for training in (living, new):
        training.step()
    assert_equal(new.state(), living.state())


def test_a_copy_that_is_sent_is_that_of_the_moment_in_which_it_was_captured() -> None:
    living, new = Training(1), Training(2)
    living.step()
    before = living.state()
    parts = captured(living.objects, 1, None, -1, {}, copied=True)
    living.step()
    with torch.no_grad():
        torch.logical_not(living.model.mask, out=living.model.mask)
    assert load(new.objects, sent(parts)) == HandedOver(1, None, -1, {})
    assert_equal(new.state(), before)


@pytest.mark.parametrize("copied", [False, True])
def test_parts_are_flat_on_the_cpu_and_copied_if_they_must_not_change(copied: bool) -> None:
    living = Training(1)
    living.step()
    tensors = [t for t in living.objects.state(True).tensors.values() if t.numel()]
    own = {tensor.data_ptr() for tensor in tensors if tensor.is_contiguous()}
    parts = captured(living.objects, 1, None, -1, {}, copied)
    for part in parts:
        assert (part.ndim, part.device.type, part.is_contiguous()) == (1, "cpu", True)
    assert {part.data_ptr() for part in parts} & own == (set() if copied else own)


def test_contiguous_tensors_are_received_in_place() -> None:
    living, new = Training(1), Training(2)
    own = {id(p): p.data_ptr() for p in new.model.parameters() if p.is_contiguous()}
    places: list[int] = []

    def receive(allocate: Callable[[memoryview], Sequence[torch.Tensor]]) -> None:
        first = captured(living.objects, 1, None, -1, {}, copied=False)[0]
        places.extend(place.data_ptr() for place in allocate(as_bytes(first)))

    load(new.objects, receive)
    assert {*own.values()} <= {*places}
    assert new.model.transposed.data_ptr() not in places
