"""A call of model() with other samples than those of the batch that the script got.

A replica that takes over micro-batches of a lost one computes them inside model(), but knows only what the
script made of its own batch. So each argument is traced to the tensor of the batch that it is: that tensor
itself, a view of it that takes the same part of each sample, as x[:, :-1], or its copy on another device. The
same is then made of the batch with the other samples. Anything else, such as a tensor that was computed or
changed in place, raises UntracedArgument: to guess would give wrong gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ropeteam_trainer.contract.errors import RopeteamError


class UntracedArgument(RopeteamError, TypeError):
    """An argument of model() is none of the batch's tensors."""


class TracedBatch:
    """A batch as it is given to the script."""

    def __init__(self, batch: Any) -> None:
        self._tensors = [*tensors_in(batch)]
        self._versions = [tensor._version for tensor in self._tensors]

    def check(self, arguments: Any, samples: int) -> None:
        """Raise UntracedArgument if with_samples_of() would."""
        self.with_samples_of(self._tensors, arguments, samples)

    def with_samples_of(self, other: Any, arguments: Any, samples: int) -> Any:
        """Nested arguments of model() with the samples of another batch in place of this one's, of which
        there are so many. Tensors with another first dimension, and other values, stay as they are. Raises
        UntracedArgument."""
        others = [*tensors_in(other)]
        if len(others) != len(self._tensors):
            raise UntracedArgument("batches of job.batches() have different numbers of tensors")

        def substituted(value: torch.Tensor) -> torch.Tensor:
            if value.ndim == 0 or len(value) != samples:
                return value
            pairs = zip(self._tensors, self._versions, others, strict=True)
            made = (_made_alike(value, own, new) for own, version, new in pairs if own._version == version)
            found = [each for each in made if each is not None]
            if found and all(torch.equal(each, found[0]) for each in found[1:]):
                return found[0]
            if found:
                raise UntracedArgument(
                    f"an argument of model(), shape {tuple(value.shape)}, has the values of several tensors "
                    "of the batch that job.batches() returned, so it may be any of them"
                )
            raise UntracedArgument(
                f"an argument of model(), shape {tuple(value.shape)}, is neither a tensor of the batch that "
                "job.batches() returned, nor a part of each sample in one, nor its copy on another device"
            )

        return mapped(arguments, substituted)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested values that have a dimension, in order."""
    if isinstance(tree, torch.Tensor):
        if tree.ndim:
            yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors_in(value)


def _made_alike(value: torch.Tensor, own: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
    """Tensor that is to `new` as `value` is to `own`. None: `value` was not made of `own`."""
    if own.shape[1:] != new.shape[1:] or own.stride()[1:] != new.stride()[1:] or own.dtype != new.dtype:
        return None
    if value is own:
        return new
    if value._base is own and len(value) == len(own) and value.dtype == own.dtype:
        begin = value.storage_offset() - own.storage_offset()
        if value.stride(0) == own.stride(0) and 0 <= begin < max(own.stride(0), 1):
            shape = (len(new), *value.shape[1:])
            return new.as_strided(shape, (new.stride(0), *value.stride()[1:]), new.storage_offset() + begin)
    is_moved = value.device != own.device and value.shape == own.shape
    if is_moved and torch.equal(own.to(value.device, value.dtype), value):
        return new.to(value.device, value.dtype)
    return None


def mapped(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested values with changed tensors. Types other than dict, list and tuple stay as they are."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([mapped(value, change) for value in tree])
    return tree
