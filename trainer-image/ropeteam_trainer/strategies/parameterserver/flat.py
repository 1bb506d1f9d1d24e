"""Tensors in one contiguous buffer, each aligned to a multiple of its element size: the layout in which they
are sent and kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Offset in bytes."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        return self.entries[-1].end if self.entries else 0

    def end_of(self, names: int) -> int:
        """Offset after the first `names` tensors, in bytes."""
        return self.entries[names - 1].end if names else 0

    def tensors(self, memory: Any, offset: int = 0) -> dict[str, torch.Tensor]:
        """Views of `memory`: a writable buffer of more than `offset` + `size` bytes."""
        return {entry.name: _view(memory, offset, entry) for entry in self.entries}

    def pieces(self, tensors: Sequence[torch.Tensor]) -> list[memoryview | bytes]:
        """Bytes of CPU tensors in this order, with the gaps between them; nothing is copied."""
        pieces: list[memoryview | bytes] = []
        end = 0
        for entry, tensor in zip(self.entries, tensors, strict=True):
            if entry.begin > end:
                pieces.append(bytes(entry.begin - end))
            if entry.count:
                pieces.append(bytes_of(tensor))
            end = entry.end
        return pieces

    def to_plain(self) -> list[list[Any]]:
        return [[e.name, str(e.dtype).removeprefix("torch."), list(e.shape)] for e in self.entries]

    @classmethod
    def from_plain(cls, plain: Sequence[Sequence[Any]]) -> Layout:
        return _layout_of([(name, getattr(torch, dtype), tuple(shape)) for name, dtype, shape in plain])


def layout(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Layout of tensors in the given order."""
    return _layout_of([(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()])


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Bytes of a CPU tensor that is not empty; of a copy where it is not contiguous."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def _layout_of(named: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> Layout:
    entries: list[Entry] = []
    end = 0
    for name, dtype, shape in named:
        begin = -(-end // dtype.itemsize) * dtype.itemsize
        entries.append(Entry(name, dtype, shape, begin))
        end = entries[-1].end
    return Layout(tuple(entries))


def _view(memory: Any, offset: int, entry: Entry) -> torch.Tensor:
    if entry.count == 0:
        return torch.empty(entry.shape, dtype=entry.dtype)
    begin = offset + entry.begin
    return torch.frombuffer(memory, dtype=entry.dtype, count=entry.count, offset=begin).view(entry.shape)
