"""The state of the training, as one rank sends it to another that has none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ropeteam_trainer.checkpoint.handover import HandedOver, captured, load
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


def sent(parts: list[torch.Tensor]) -> list[memoryview]:
    """As another replica receives them."""
    return [memoryview(bytearray(as_bytes(part))) for part in parts]


def parts_of(training: Training) -> list[memoryview]:
    data = {"epoch": 1, "offset": 8, "samples": 40, "seed": 3}
    return sent(captured(training.objects, 12, data, 10, {"exchanges": 15}))


def assert_equal(one: list[Any], other: list[Any]) -> None:
    assert one[0].keys() == other[0].keys()
    assert len(one[0]) > 15
    for name, tensor in one[0].items():
        assert tensor.dtype == other[0][name].dtype
        assert torch.equal(tensor, other[0][name]), name
    assert one[1] == other[1]
    assert str(one[2]) == str(other[2])


def test_a_rank_with_the_state_of_another_trains_on_as_that_one() -> None:
    living, new = Training(1), Training(2)
    living.step()
    found = load(new.objects, parts_of(living))
    data = {"epoch": 1, "offset": 8, "samples": 40, "seed": 3}
    assert found == HandedOver(12, data, 10, {"exchanges": 15})
    assert_equal(new.state(), living.state())
    for training in (living, new):
        training.step()
    assert_equal(new.state(), living.state())


def test_state_that_is_sent_is_that_of_the_moment_in_which_it_was_captured() -> None:
    living, new = Training(1), Training(2)
    living.step()
    before = living.state()
    parts = captured(living.objects, 1, None, -1, {})
    living.step()
    with torch.no_grad():
        torch.logical_not(living.model.mask, out=living.model.mask)
    assert load(new.objects, sent(parts)) == HandedOver(1, None, -1, {})
    assert_equal(new.state(), before)


def test_parts_are_flat_on_the_cpu_and_share_nothing_with_the_model() -> None:
    living = Training(1)
    living.step()
    tensors = {tensor.data_ptr() for tensor in living.objects.state(True).tensors.values() if tensor.numel()}
    for part in captured(living.objects, 1, None, -1, {}):
        assert (part.ndim, part.device.type, part.is_contiguous()) == (1, "cpu", True)
        assert part.data_ptr() not in tensors


@pytest.mark.parametrize("count", [-1, 1])
def test_another_number_of_parts_is_refused(count: int) -> None:
    parts = parts_of(Training(1))
    parts = parts[:count] if count < 0 else [*parts, memoryview(bytearray(4))]
    with pytest.raises(ValueError, match=r"zip\(\)"):
        load(Training(2).objects, parts)


def test_a_part_of_another_size_is_refused() -> None:
    parts = parts_of(Training(1))
    longest = max(range(1, len(parts)), key=lambda number: len(parts[number]))
    parts[longest] = parts[longest][:-4]
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        load(Training(2).objects, parts)
