"""Backoff before the same thing is tried again: none at first, then 1 s doubling to 60 s."""

from __future__ import annotations

from datetime import datetime, timedelta

LONGEST_SECONDS = 60


def seconds(faults: int) -> int:
    """Backoff after `faults` in a row. The first one has none."""
    if faults <= 1:
        return 0
    return min(LONGEST_SECONDS, 1 << min(faults - 2, 10))


def ends_at(since: datetime | None, faults: int) -> datetime | None:
    """Moment at which the next try may begin. None: at once."""
    return since + timedelta(seconds=seconds(faults)) if since is not None else None
