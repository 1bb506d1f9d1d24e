"""Data plan: the samples of each rank, and their order: each sample of each data epoch exactly once.

Pure. The whole state is a Position, a pair of integers that does not depend on the world size: the k-th
global batch is the same for any number of ranks and any parts, so a job may stop anywhere and resume with
more or fewer ranks. A rank takes a contiguous part.

The order is a keyed permutation that is computed for one index at a time (a Feistel network on a rows x
columns grid, after Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). It needs no memory and
no start-up time for any size of data, and never changes with a version of Python or torch, as a shuffle of a
list could. It is a good shuffle, not a cipher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropeteam_trainer.data.decisions.balance import part_sizes

_ROUNDS = 8
_MASK = (1 << 64) - 1


@dataclass(frozen=True, order=True)
class Position:
    """Position of the job in its data: `offset` samples of data epoch `epoch` are used."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Deal:
    """Micro-batches of a rank in each step under sync Exact."""

    leaves: int
    """Micro-batches of a step, whose number does not depend on the ranks."""
    mine: Sequence[int]
    """Numbers of those that this rank computes, or shares in."""
    shard: int = 0
    shards: int = 1
    """This rank among those that share each of its micro-batches."""


@dataclass(frozen=True)
class Leaf:
    """Part of one rank in one of the micro-batches that a step consists of under sync Exact."""

    number: int
    ids: tuple[int, ...]
    """Empty where the micro-batch has fewer samples than ranks that share it: the filler is computed, with
    weight 0."""
    weight: float
    """The sum of `weight * (mean loss of the part)` over all micro-batches, or its mean over the ranks that
    share them, is the mean loss of the whole batch."""

    @property
    def size(self) -> int:
        """Number of its samples, a filler included."""
        return max(len(self.ids), 1)


@dataclass(frozen=True)
class Share:
    """Part of one rank in one global batch."""

    ids: tuple[int, ...]
    """Empty where the batch has fewer samples than the world has ranks."""
    weight: float
    """The mean of `weight * (mean loss of the part)` over all ranks is the mean loss of the whole batch."""
    filler: int
    """Sample to compute on, with weight 0, where `ids` is empty: all ranks must take every step."""
    total: int
    """Samples of the whole batch."""
    leaves: tuple[Leaf, ...] = ()
    """Under sync Exact: parts of `ids`."""

    @property
    def loaded(self) -> tuple[int, ...]:
        """Samples that the rank computes on, fillers too: all ranks must take every step."""
        if self.leaves:
            return tuple(number for leaf in self.leaves for number in leaf.ids or (self.filler,))
        return self.ids or (self.filler,)


@dataclass(frozen=True)
class DataPlan:
    samples: int
    """Size of the data set."""
    global_batch: int
    """Samples per step of all ranks together. The last batch of a data epoch has the samples that are
    left."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError("the data set is empty; batches() needs one sample at least")
        if self.global_batch < 1:
            raise ValueError(f"global_batch must be at least 1, got {self.global_batch}")

    def after(self, at: Position) -> Position:
        """Position after the batch at `at`: at the end of a data epoch, the begin of the next."""
        end = at.offset + self.global_batch
        return Position(at.epoch, end) if end < self.samples else Position(at.epoch + 1, 0)

    def share(self, at: Position, rank: int, world: int, speeds: tuple[float, ...] | None = None) -> Share:
        """Part of `rank` in the batch at `at`, of `world` ranks, in proportion to `speeds` (one per rank;
        None: equal parts, which differ by at most one sample). All ranks must give the same speeds."""
        total = min(self.global_batch, self.samples - at.offset)
        sizes = part_sizes(total, speeds or (1.0,) * world)
        begin = sum(sizes[:rank])
        end = begin + sizes[rank]
        key = self._key(at)
        ids = tuple(permuted(at.offset + i, self.samples, key) for i in range(begin, end))
        return Share(ids, len(ids) * world / total, permuted(at.offset, self.samples, key), total)

    def dealt_share(self, at: Position, deal: Deal) -> Share:
        """Part of a rank in the batch at `at` under sync Exact: its part of each of its micro-batches, whose
        bounds do not depend on the ranks."""
        total = min(self.global_batch, self.samples - at.offset)
        key = self._key(at)
        dealt = []
        for number in deal.mine:
            begin, end = total * number // deal.leaves, total * (number + 1) // deal.leaves
            first, last = ((end - begin) * part // deal.shards for part in (deal.shard, deal.shard + 1))
            part = range(at.offset + begin + first, at.offset + begin + last)
            ids = tuple(permuted(index, self.samples, key) for index in part)
            dealt.append(Leaf(number, ids, len(ids) * deal.shards / total))
        ids = tuple(number for leaf in dealt for number in leaf.ids)
        return Share(ids, 1.0, permuted(at.offset, self.samples, key), total, tuple(dealt))

    def _key(self, at: Position) -> int:
        """Key of the permutation of this data epoch."""
        return mix(self.seed, at.epoch)

    def steps(self, epochs: int) -> int:
        """Number of global batches in `epochs` data epochs."""
        return math.ceil(self.samples / self.global_batch) * epochs

    def steps_left(self, at: Position, epochs: int) -> int:
        """Number of global batches from `at` until `epochs` data epochs are done."""
        begun = math.ceil((self.samples - at.offset) / self.global_batch)
        return begun + self.steps(epochs - at.epoch - 1) if at.epoch < epochs else 0


def permuted(index: int, size: int, key: int) -> int:
    """Image of `index` under the permutation of range(size) with this key (64 bits)."""
    rows = math.isqrt(size - 1) + 1
    columns = math.ceil(size / rows)
    while True:  # cycle walking: the grid is less than one row larger than `size`, so this rarely repeats
        row, column = divmod(index, columns)
        for number in range(0, _ROUNDS, 2):
            row = (row + _mix(key ^ _mix(number << 56 | column))) % rows
            column = (column + _mix(key ^ _mix((number + 1) << 56 | row))) % columns
        index = row * columns + column
        if index < size:
            return index


def mix(*numbers: int) -> int:
    """64 bits that depend on all of these numbers and their order."""
    first, *others = numbers
    mixed = _mix(first & _MASK)
    for number in others:
        mixed = _mix(mixed ^ number)
    return mixed


def _mix(value: int) -> int:
    """Scramble 64 bits (the finalizer of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
