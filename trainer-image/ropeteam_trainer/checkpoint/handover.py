"""The state of the training, from one rank to another that has none: that of a checkpoint, without a volume.

For ranks that have the same part of the model. The first part of the state is an index, torch.save's bytes;
then a part for each tensor, or for this rank's block of a sharded one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
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


def captured(
    objects: SavedObjects, step: int, data: dict[str, int] | None, newest: int, more: Mapping[str, int]
) -> list[torch.Tensor]:
    """Copy of the state of these objects, as parts: tensors on the CPU."""
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
    copies = (
        local_part(tensor).to("cpu", copy=True, memory_format=torch.contiguous_format)
        for _, tensor in tensors
    )
    return [first, *(copy.flatten() for copy in copies)]


def load(objects: SavedObjects, parts: Sequence[memoryview]) -> HandedOver:
    """Load captured() parts into these objects. Raises ValueError, KeyError and errors of torch."""
    index: dict[str, Any] = torch.load(io.BytesIO(parts[0]), weights_only=True)
    saved = {name: SavedTensor(shape, dtype, ()) for name, shape, dtype in index["tensors"]}
    tensors = objects.allocate(index["shared"], saved)
    with torch.no_grad():
        for (name, _, dtype), part in zip(index["tensors"], parts[1:], strict=True):
            values = torch.frombuffer(part, dtype=dtype) if len(part) else torch.empty(0, dtype=dtype)
            mine = local_part(tensors[name])
            mine.copy_(values.view(mine.shape))
    objects.load(tensors, index["shared"], index["others"])
    return HandedOver(index["step"], index["data"], index["newest"], index["more"])
