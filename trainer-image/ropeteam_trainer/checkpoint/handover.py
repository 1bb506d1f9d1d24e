"""The state of the training, from one rank to another that has none: that of a checkpoint, without a volume.

For ranks that have the same part of the model. The first part of the state is an index, torch.save's bytes;
then a part for each tensor, or for this rank's block of a sharded one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ropeteam_trainer.checkpoint.format.metadata import SavedTensor
from ropeteam_trainer.checkpoint.objects.stateful import SavedObjects
from ropeteam_trainer.checkpoint.objects.tensorshard import local_part


@dataclass(frozen=True)
class HandedOver:
    """State of another rank, which is loaded."""

    step: int
    data: dict[str, int] | None
    """Data position."""
    newest: int
    """Step of the newest checkpoint."""
    more: Mapping[str, int]
    """Numbers that were given to captured()."""


Receive = Callable[[Callable[[memoryview], Sequence[torch.Tensor]]], None]
"""Receives captured() parts: calls its argument with the first one, and fills the tensors that this returns,
of one dimension on the CPU, with the others."""


def captured(
    objects: SavedObjects,
    step: int,
    data: dict[str, int] | None,
    newest: int,
    more: Mapping[str, int],
    copied: bool,
) -> list[torch.Tensor]:
    """State of these objects, as parts: tensors of one dimension on the CPU. copied: in memory of their own;
    otherwise in that of the objects, where these are contiguous on the CPU."""
    state = objects.state(with_others=True)
    tensors = [*state.tensors.items()]
    index = {
        "step": step,
        "data": data,
        "newest": newest,
        "more": dict(more),
        "shared": state.shared,
        "others": state.others,
        "tensors": [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors],
    }
    content = io.BytesIO()
    torch.save(index, content)
    first = torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)
    return [first, *(_flat(local_part(tensor), tensor.dtype, copied) for _, tensor in tensors)]


def load(objects: SavedObjects, receive: Receive) -> HandedOver:
    """Receive captured() parts, and load them into these objects: directly, where these are contiguous on the
    CPU. Raises ValueError, KeyError and errors of torch."""
    index: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    places: list[tuple[torch.Tensor, torch.Tensor]] = []
    """Each tensor, or this rank's part of it, and what receives its values: the same memory if it can."""

    def allocate(first: memoryview) -> list[torch.Tensor]:
        index.update(torch.load(io.BytesIO(first), weights_only=True))
        saved = {name: SavedTensor(shape, dtype, ()) for name, shape, dtype in index["tensors"]}
        tensors.update(objects.allocate(index["shared"], saved))
        for name, _, dtype in index["tensors"]:
            mine = local_part(tensors[name])
            places.append((mine, _flat(mine, dtype)))
        return [place for _, place in places]

    receive(allocate)
    with torch.no_grad():
        for mine, place in places:
            if place.data_ptr() != mine.data_ptr():
                mine.copy_(place.view(mine.shape))
    objects.load(tensors, index["shared"], index["others"])
    return HandedOver(index["step"], index["data"], index["newest"], index["more"])


def _flat(tensor: torch.Tensor, dtype: torch.dtype, copied: bool = False) -> torch.Tensor:
    """The values on the CPU, contiguous and of one dimension. copied: in new memory in any case."""
    on_cpu = tensor.to("cpu", dtype, copy=copied, memory_format=torch.contiguous_format)
    return on_cpu.contiguous().flatten()
