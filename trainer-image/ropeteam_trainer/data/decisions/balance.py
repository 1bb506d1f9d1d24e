"""Parts of a global batch in proportion to speed, and the decision when to change them. Pure.

A step of synchronous training takes as long as its slowest rank, so the parts are chosen for which the
slowest rank finishes soonest. All ranks compute the same parts from the same numbers, without communication.
Limit: a part is whole samples, so of 8 samples for 5 ranks none can have less than an eighth.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MIN_GAIN = 0.05
"""Relative gain in step time that a change of parts needs: noise must not move data."""
_NEW = 0.5
"""Weight of the newest measurement in a smoothed speed."""


@lru_cache(maxsize=16)
def part_sizes(total: int, speeds: tuple[float, ...]) -> tuple[int, ...]:
    """Number of samples of each rank, of `total`. `speeds`: one per rank, above 0, in any unit.

    The sum is exact, and each rank gets a sample where there are enough. Equal speeds give equal parts. With
    fewer samples than ranks, speed does not matter: no rank gets more than one.
    """
    world = len(speeds)
    if total < world or min(speeds) == max(speeds):
        return tuple(total * (rank + 1) // world - total * rank // world for rank in range(world))
    whole = sum(speeds)
    counts = [max(1, int((total - world) * (speed / whole))) for speed in speeds]
    ready = [((counts[rank] + 1) / speeds[rank], rank) for rank in range(world)]
    heapq.heapify(ready)
    for _ in range(total - sum(counts)):  # each sample left goes to the rank that finishes it first
        rank = ready[0][1]
        counts[rank] += 1
        heapq.heapreplace(ready, ((counts[rank] + 1) / speeds[rank], rank))
    return tuple(counts)


@dataclass(frozen=True)
class Balance:
    """Smoothed speeds, and the speeds that the parts follow."""

    smoothed: tuple[float, ...] | None = None
    """Samples per second of each rank; None: not measured yet."""
    in_force: tuple[float, ...] | None = None
    """Speeds that the parts are computed from; None: equal parts."""

    def after(self, measured: Sequence[float | None], total: int) -> Balance:
        """Next state: speeds smoothed with `measured`, and used for parts if a step gains more than MIN_GAIN
        by it. `measured`: samples per second of each rank, above 0; None: that rank has no measurement, and
        nothing changes. `total`: samples of a global batch."""
        new = [speed for speed in measured if speed is not None]
        if len(new) < len(measured):
            return self
        smoothed = tuple(old + _NEW * (now - old) for old, now in zip(self.smoothed or new, new, strict=True))
        before = part_sizes(total, self.in_force or (1.0,) * len(new))
        best = part_sizes(total, smoothed)
        gained = _step_seconds(before, smoothed) > (1 + MIN_GAIN) * _step_seconds(best, smoothed)
        return Balance(smoothed, smoothed if gained else self.in_force)


def _step_seconds(counts: Sequence[int], speeds: Sequence[float]) -> float:
    """Time of a step with these parts: that of the slowest rank."""
    return max(count / speed for count, speed in zip(counts, speeds, strict=True))
