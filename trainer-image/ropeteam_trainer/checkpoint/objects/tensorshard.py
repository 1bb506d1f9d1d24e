"""Local part of a tensor: all of it, or one block of a sharded one (a DTensor).

DTensors are inspected without importing them: a script that has none does not pay for that import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TensorShard:
    """A block of a tensor."""

    local: torch.Tensor
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    """Begin of the block in the whole tensor."""


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this is a DTensor, with any placements."""
    return hasattr(tensor, "to_local")


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: the same memory, not a copy."""
    if not is_sharded(tensor):
        return tensor.detach()
    sharded: Any = tensor
    with torch.no_grad():
        part: torch.Tensor = sharded.to_local().detach()
    return part


def shard_of(tensor: torch.Tensor, local: torch.Tensor | None = None) -> TensorShard | None:
    """Shard of a tensor that this rank holds. None: this rank holds nothing of it. `local`: a copy of the
    local part, used in place of it. Raises TypeError for a DTensor with a Partial placement."""
    shape, local = tuple(tensor.shape), local_part(tensor) if local is None else local
    if not is_sharded(tensor):
        return TensorShard(local, shape, (0,) * len(shape))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    if any(placement.is_partial() for placement in sharded.placements):
        raise TypeError(
            f"a tensor of shape {shape} is not reduced yet (Partial): redistribute() it before a save"
        )
    if sharded.device_mesh.get_coordinate() is None or (local.numel() == 0 and tensor.numel() > 0):
        return None
    _, offsets = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return TensorShard(local, shape, tuple(offsets))


def overlap(
    a_offsets: tuple[int, ...],
    a_sizes: tuple[int, ...],
    b_offsets: tuple[int, ...],
    b_sizes: tuple[int, ...],
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Intersection of two blocks of one tensor, as slices of the first and of the second. None: they have no
    element in common."""
    in_a, in_b = [], []
    for a, a_size, b, b_size in zip(a_offsets, a_sizes, b_offsets, b_sizes, strict=True):
        begin, end = max(a, b), min(a + a_size, b + b_size)
        if begin >= end:
            return None
        in_a.append(slice(begin - a, end - a))
        in_b.append(slice(begin - b, end - b))
    return tuple(in_a), tuple(in_b)
