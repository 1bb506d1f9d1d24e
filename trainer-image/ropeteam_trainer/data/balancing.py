"""Measure, tell each other, and change parts at the same batch on all ranks.

Every EVERY batches the ranks exchange their speeds, in the training thread between two steps, and judge them
alike (balance.py). Batches that were planned ahead on any rank keep their parts: a change begins after all of
them. So each batch has the same parts everywhere, whatever loads it and however early.
"""

from __future__ import annotations

from ropeteam_trainer.data.computetimer import ComputeTimer
from ropeteam_trainer.data.decisions.balance import Balance
from ropeteam_trainer.rank.world import World

EVERY = 20
"""Batches. The same number on all ranks: the exchange is a collective."""


class Balancer:
    """Which speeds the parts of each batch follow. Batches are numbered from 0 in one call of batches()."""

    def __init__(self, world: World, clock: ComputeTimer, global_batch: int, ahead: int) -> None:
        """ahead: how many batches beyond those taken this rank may have planned at any time."""
        self._clock = clock
        self._world, self._global_batch, self._ahead = world, global_batch, ahead
        self._balance = Balance()
        self._changes: list[tuple[int, tuple[float, ...] | None]] = [(0, None)]
        self._taken = 0

    def speeds(self, number: int) -> tuple[float, ...] | None:
        """For the parts of batch `number`. None: equal parts. May be asked from any thread."""
        return next(speeds for begin, speeds in reversed(self._changes) if begin <= number)

    def before_batch(self) -> None:
        """The script wants its next batch."""
        if self._taken and self._taken % EVERY == 0:
            told = self._world.gather((self._clock.speed(), self._ahead))
            self._balance = self._balance.after([speed for speed, _ in told], self._global_batch)
            if self._balance.in_force != self._changes[-1][1]:
                begin = self._taken + max(ahead for _, ahead in told)
                self._changes.append((begin, self._balance.in_force))
        self._taken += 1
        self._clock.start()
