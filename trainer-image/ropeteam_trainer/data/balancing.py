"""Load balancing: exchange of measured speeds, and a change of parts at the same batch on all ranks.

Every EXCHANGE_EVERY batches the ranks exchange their speeds, in the training thread between two steps, and
compute the same parts from them (balance.py). Batches that were planned ahead on any rank keep their parts: a
change begins after all of them. So each batch has the same parts on all ranks, however it is loaded and
however early.
"""

from __future__ import annotations

from ropeteam_trainer.data.computetimer import ComputeTimer
from ropeteam_trainer.data.decisions.balance import Balance
from ropeteam_trainer.rank.world import World

EXCHANGE_EVERY = 20
"""Batches. The same number on all ranks: the exchange is a collective."""


class Balancer:
    """Speeds that the parts of each batch follow. Batches are numbered from 0 in one call of batches()."""

    def __init__(self, world: World, clock: ComputeTimer, global_batch: int, ahead: int) -> None:
        """ahead: number of batches beyond those taken for which this rank may have called speeds() at any
        time."""
        self._clock = clock
        self._world, self._global_batch, self._ahead = world, global_batch, ahead
        self._balance = Balance()
        self._changes: list[tuple[int, tuple[float, ...] | None]] = [(0, None)]
        """Number of the first batch, and the speeds from there on, the same on all ranks. Only appended
        to."""
        self._taken = 0
        """Batches that the script has requested so far, the same on all ranks."""

    def speeds(self, number: int) -> tuple[float, ...] | None:
        """Speeds for the parts of batch `number`. None: equal parts. Any thread may call it."""
        return next(speeds for begin, speeds in reversed(self._changes) if begin <= number)

    def begin_batch(self) -> None:
        """Count the next batch of the script, start its step, and exchange speeds after EXCHANGE_EVERY
        batches. Call it once for each batch, on all ranks, in the training thread: the exchange is a
        collective."""
        if self._taken and self._taken % EXCHANGE_EVERY == 0:
            reported = self._world.gather((self._clock.speed(), self._ahead))
            self._balance = self._balance.after([speed for speed, _ in reported], self._global_batch)
            if self._balance.in_force != self._changes[-1][1]:
                begin = self._taken + max(ahead for _, ahead in reported)
                self._changes.append((begin, self._balance.in_force))
        self._taken += 1
        self._clock.start()
