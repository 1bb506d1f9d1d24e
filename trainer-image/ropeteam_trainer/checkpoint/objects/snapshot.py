"""Fast copy of a training state to CPU memory, into buffers that are reused.

The training thread waits for this copy only. The state is a tree of dicts, lists and tuples; its tensors are
copied in one call, everything else must be plain values. For a sharded tensor the caller passes its local
part; the DTensor itself is refused, because its shards could not be put together again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Snapshot:
    """Buffers for the tensors of a tree. Each copy() overwrites the result of the one before."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def copy(self, tree: Any) -> Any:
        """`tree` with its tensors replaced by copies on the CPU, valid until the next call. The copy is
        complete when it returns. Raises TypeError for a sharded tensor."""
        tensors: list[torch.Tensor] = []
        _with_leaves(tree, lambda tensor: tensors.append(_checked(tensor)))
        if [_layout(t) for t in tensors] != [_layout(b) for b in self._buffers]:
            self._buffers = [torch.empty_like(t, device="cpu", requires_grad=False) for t in tensors]
        if tensors:
            torch._foreach_copy_(self._buffers, tensors)
        copies = iter(self._buffers)
        return _with_leaves(tree, lambda _: next(copies))


def _with_leaves(tree: Any, leaf: Callable[[torch.Tensor], Any]) -> Any:
    """`tree` with `leaf(tensor)` in the place of each tensor, in the order of the tree."""
    if isinstance(tree, torch.Tensor):
        return leaf(tree)
    if isinstance(tree, dict):
        return {key: _with_leaves(value, leaf) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_with_leaves(value, leaf) for value in tree])
    return float(tree) if isinstance(tree, float) else tree  # NumPy's floats could not be loaded again


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, detached. Raises TypeError for a DTensor."""
    if hasattr(tensor, "to_local"):
        raise TypeError(
            "a sharded tensor (DTensor: FSDP, tensor parallel) can be saved in a module or an optimizer that "
            "restore() was given, not in the state of another object"
        )
    return tensor.detach()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Properties in which a buffer must equal the tensor that is copied into it."""
    return tensor.shape, tensor.dtype, tensor.stride()
