"""Tensors in one piece of memory, one after the other, each at a multiple of its own width: so they are sent
and kept.
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
    """In bytes."""

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
        """Bytes of the first `names` tensors."""
        return self.entries[names - 1].end if names else 0

    def tensors(self, memory: Any, offset: int = 0) -> dict[str, torch.Tensor]:
        """Views. `memory`: anything that one may write to, longer than `offset` + `size`."""
        return {entry.name: _view(memory, offset, entry) for entry in self.entries}

    def pieces(self, tensors: Sequence[torch.Tensor]) -> list[memoryview | bytes]:
        """The bytes of CPU tensors in this order, with the gaps between them; nothing is copied."""
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
        return _laid_out([(name, getattr(torch, dtype), tuple(shape)) for name, dtype, shape in plain])


def layout(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """In the order given."""
    return _laid_out([(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()])


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Of a CPU tensor that is not empty; those of another one where it is not contiguous."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def _laid_out(named: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> Layout:
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
