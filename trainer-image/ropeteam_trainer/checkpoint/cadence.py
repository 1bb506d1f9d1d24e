"""Decision when to save: every so many steps, every so many seconds, or both.

Steps are the same on all ranks, clocks are not: rank 0's clock decides, and its decision is broadcast about
once a second at most, in steps that all ranks know beforehand. Ranks that continue without rank 0 exchange
with each step whether the clock of one of them demands a save.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ropeteam_trainer.contract.config import CheckpointConfig

_CHECK_SECONDS = 1.0
_MOST_STEPS = 1000


class Cadence:
    def __init__(self, config: CheckpointConfig, agree: Callable[[int], int]) -> None:
        """`agree(value)` returns rank 0's value on all ranks: a collective. It is called for `every_seconds`
        only."""
        self._steps, self._seconds, self._agree = config.every_steps, config.every_seconds, agree
        self._started = self._saved = time.monotonic()
        self._done = 0
        """Steps since the start, for the mean duration of a step."""
        self._until_check = 1
        """Steps until rank 0's clock is checked again."""

    @property
    def is_late(self) -> bool:
        """Whether this rank's clock demands a save."""
        return self._seconds is not None and time.monotonic() - self._saved >= self._seconds

    def note_saved(self) -> None:
        """A save that due() did not demand counts, too."""
        self._saved = time.monotonic()

    def due(self, step: int, some_rank_is_late: bool | None = None) -> bool:
        """Whether to save after this step; True counts as a save. Call it exactly once for every step, on all
        ranks: it counts steps and can be a collective. some_rank_is_late: `is_late` of any rank, if they have
        exchanged it; None: rank 0's clock decides."""
        self._done += 1
        now = time.monotonic()
        if self._steps is not None and step % self._steps == 0:
            self._saved = now
            return True
        if some_rank_is_late:
            self._saved = now
        if self._seconds is None or some_rank_is_late is not None:
            return bool(some_rank_is_late)
        self._until_check -= 1
        if self._until_check > 0:
            return False
        left = self._seconds - (now - self._saved)
        answer = self._agree(steps_until_check(left, (now - self._started) / self._done))
        self._until_check = max(answer, 1)
        if answer == 0:
            self._saved = now
        return answer == 0


def steps_until_check(left: float, step_seconds: float) -> int:
    """Number of steps until rank 0's clock is checked again; 0: save now. `left`: seconds until the save is
    due. `step_seconds`: mean duration of a step."""
    if left <= 0:
        return 0
    return max(1, min(_MOST_STEPS, int(min(left, _CHECK_SECONDS) / max(step_seconds, 1e-6))))
