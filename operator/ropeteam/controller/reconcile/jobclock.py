"""A job's clock: a time of day that no step of a wall clock moves, for what runs over hours.

While one operator leads, it goes on with that operator's own clock. Status has what it said at the last write
(`clock`), and what the wall clock of the writer said; the next operator adds what has passed since by wall
clocks, its own corrected by how far that of its predecessor was ahead, if it has seen that (election.py).
Limits: a step, or a difference of two clocks that nobody saw, counts if it falls between the last write of an
operator and the begin of the next one. It never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ropeteam.api.status import JobStatus


@dataclass
class JobClock:
    """Of one job, in one process."""

    _begin: tuple[datetime, float] | None = None
    """What it said, and what the clock of this process did."""

    def time(self, status: JobStatus, wall: datetime, now: float, ahead: float = 0.0) -> datetime:
        """`now`: by the clock of this process. `ahead`: seconds by which the wall clock of the operator
        before this one was ahead of ours."""
        if self._begin is None:
            self._begin = _resumed(status, wall + timedelta(seconds=ahead)) or wall, now
        said, then = self._begin
        return said + timedelta(seconds=now - then)


def _resumed(status: JobStatus, wall: datetime) -> datetime | None:
    saved = status.clock
    return saved.job + max(timedelta(), wall - saved.wall) if saved else None
