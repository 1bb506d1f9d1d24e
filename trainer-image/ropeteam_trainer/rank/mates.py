"""The mates of a rank: the ranks of its replica, which share each micro-batch (shard, tensor).

A replica is lost as a whole: without one of its ranks the others cannot compute. So mates decide together
what each of them would otherwise decide alone, by one small collective in each step. Their process groups are
none but theirs: they live on when the default group is formed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Mates:
    """Ranks of one replica: neighbours."""

    ranks: range = range(1)
    rank: int = 0
    """This one."""
    group: dist.ProcessGroup | None = None
    """Of all of them, for tensors on the CPU. None: the rank is a replica itself."""
    saving: dist.ProcessGroup | None = None
    """As group, for the thread that writes checkpoints."""

    @property
    def part(self) -> int:
        """Number of this rank among its mates. It adds its gradients with the ranks of this number in all
        other replicas."""
        return self.rank - self.ranks.start

    def replicas_of(self, ranks: Iterable[int]) -> frozenset[int]:
        """Replicas of these ranks."""
        return frozenset(rank // len(self.ranks) for rank in ranks)

    def rank_in(self, replica: int) -> int:
        """Rank with the number of this one in another replica."""
        return replica * len(self.ranks) + self.part

    def are_same(self, value: int) -> bool:
        """Whether all mates have this value. A collective."""
        most, least = self.highest([value, ~value])
        return most == ~least

    def highest(self, values: Sequence[int]) -> list[int]:
        """The greatest of each value among all mates: of int64. A collective."""
        if self.group is None:
            return [*values]
        numbers = torch.tensor(values, dtype=torch.int64, device="cpu")
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        return [int(number) for number in numbers]
