"""A job's clock: a time of day that no step of a wall clock moves, for deadlines of hours.

While one operator leads, the job's clock advances with that operator's monotonic clock. Status has its
reading at the last write (`clock`), and that of the writer's wall clock; the next operator adds the time
since then by wall clocks, its own corrected by how far its predecessor's was ahead, if that was measured
(election.py). Limits: a step, or an unmeasured difference of two clocks, counts if it falls between the last
write of an operator and the start of the next one. The clock never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ropeteam.api.status import JobStatus


@dataclass
class JobClock:
    """The clock of one job, in one process."""

    _start: tuple[datetime, float] | None = None
    """Readings of this clock and of the clock of this process, at the first call of `time`."""

    def time(
        self, status: JobStatus, wall: datetime, now: float, predecessor_ahead_seconds: float = 0.0
    ) -> datetime:
        """The job's time. `now`: by the clock of this process. The first call starts the clock; only it uses
        the other arguments. `wall`: our wall clock. `predecessor_ahead_seconds`: by so much the wall clock of
        the operator before this one was ahead of ours.
        """
        if self._start is None:
            predecessors_wall = wall + timedelta(seconds=predecessor_ahead_seconds)
            self._start = _resumed_time(status, predecessors_wall) or wall, now
        start, started_at = self._start
        return start + timedelta(seconds=now - started_at)


def _resumed_time(status: JobStatus, wall: datetime) -> datetime | None:
    """The job's time: the saved one, plus the time since then by `wall`, the clock that wrote it. A clock
    that was set back adds nothing. None: no time was saved, the job is new."""
    saved = status.clock
    return saved.job + max(timedelta(), wall - saved.wall) if saved else None
