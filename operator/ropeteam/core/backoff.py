"""Backoff before the same thing is tried again: none at first, then 1 s doubling to 60 s."""

from __future__ import annotations

from datetime import datetime, timedelta

MAX_SECONDS = 60


def seconds(failures: int) -> int:
    """Backoff after `failures` in a row. The first one has none."""
    if failures <= 1:
        return 0
    return min(MAX_SECONDS, 1 << min(failures - 2, 10))


def retry_at(since: datetime | None, failures: int) -> datetime | None:
    """Moment at which the next try may begin. None: at once."""
    return since + timedelta(seconds=seconds(failures)) if since is not None else None
