"""Rate limit of status writes that change only progress: etcd keeps every revision of every object, and
progress changes all the time. `core` requests such a write at most every 30 s per job; here they are limited
to 20 a second in all. Any other change is written at once. No I/O; the time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ropeteam.api.status import JobStatus


def changes_only_progress(old: JobStatus, new: JobStatus) -> bool:
    """Whether `progress` and `clock` are all that differs, and at least one of them does."""
    return old != new and old == new.model_copy(update={"progress": old.progress, "clock": old.clock})


@dataclass
class ProgressRateLimiter:
    """A token bucket over all jobs. It holds `per_second` tokens at most, and is full at first."""

    per_second: float = 20.0
    _tokens: float = 20.0
    _filled: datetime | None = None
    """When tokens were last added. None: never."""

    def permits(self, old: JobStatus, new: JobStatus, now: datetime) -> bool:
        """Whether `new` may be written now; takes a token if it changes only progress. A refused one is not
        lost: the next reconcile has a newer one."""
        if not changes_only_progress(old, new):
            return True
        elapsed = (now - self._filled).total_seconds() if self._filled else 0.0
        elapsed = max(0.0, elapsed)  # a clock that is set back takes no tokens away
        self._tokens = min(self.per_second, self._tokens + elapsed * self.per_second)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
