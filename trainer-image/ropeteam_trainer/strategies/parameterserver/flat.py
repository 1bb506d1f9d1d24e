"""Layout of tensors in one contiguous buffer, in which they are sent and kept: one after the other, each
aligned to a multiple of its element size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Entry:
    """One tensor in the buffer."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Offset in bytes."""

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.begin + self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """Names, dtypes, shapes and offsets of the tensors in a buffer."""

    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.entries[-1].end if self.entries else 0

    def end_of_first(self, count: int) -> int:
        """Offset after the first `count` tensors, in bytes."""
        return self.entries[count - 1].end if count else 0

    def tensors(self, memory: Any, offset: int = 0) -> dict[str, torch.Tensor]:
        """Tensors by name that share the bytes of `memory` from `offset` on: a writable buffer of at least
        `offset` + `size` bytes."""
        return {entry.name: _view(memory, offset, entry) for entry in self.entries}

    def buffers(self, tensors: Sequence[torch.Tensor]) -> list[memoryview | bytes]:
        """Buffers that joined have this layout: the bytes of the given CPU tensors, one per entry in its
        order, and the gaps between them. Only tensors that are not contiguous are copied."""
        buffers: list[memoryview | bytes] = []
        end = 0
        for entry, tensor in zip(self.entries, tensors, strict=True):
            if entry.begin > end:
                buffers.append(bytes(entry.begin - end))
            if entry.count:
                buffers.append(bytes_of(tensor))
            end = entry.end
        return buffers

    def to_plain(self) -> list[list[Any]]:
        """The layout as JSON values: [[name, dtype, shape], ...]. Offsets follow from these."""
        return [[e.name, str(e.dtype).removeprefix("torch."), list(e.shape)] for e in self.entries]

    @classmethod
    def from_plain(cls, plain: Sequence[Sequence[Any]]) -> Layout:
        """Inverse of to_plain()."""
        return _aligned([(name, getattr(torch, dtype), tuple(shape)) for name, dtype, shape in plain])


def layout_of(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Layout of the tensors in the order of the mapping."""
    return _aligned([(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()])


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Bytes of a CPU tensor with at least one element; of a copy if it is not contiguous. Viewed as uint8
    first, because NumPy has no bfloat16."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def _aligned(named: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> Layout:
    """Layout of tensors given as (name, dtype, shape), each at the next multiple of its element size."""
    entries: list[Entry] = []
    end = 0
    for name, dtype, shape in named:
        begin = -(-end // dtype.itemsize) * dtype.itemsize
        entries.append(Entry(name, dtype, shape, begin))
        end = entries[-1].end
    return Layout(tuple(entries))


def _view(memory: Any, offset: int, entry: Entry) -> torch.Tensor:
    """Tensor of an entry in `memory`, whose layout begins at `offset`."""
    if entry.count == 0:  # frombuffer() refuses it
        return torch.empty(entry.shape, dtype=entry.dtype)
    begin = offset + entry.begin
    return torch.frombuffer(memory, dtype=entry.dtype, count=entry.count, offset=begin).view(entry.shape)
