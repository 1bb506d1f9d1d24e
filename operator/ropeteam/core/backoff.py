"""Exponential backoff: none after the first failure in a row, then 1 s, doubling to 60 s."""

from __future__ import annotations

from datetime import datetime, timedelta

MAX_SECONDS = 60


def seconds(failures: int) -> int:
    """Seconds of backoff after so many `failures` in a row."""
    if failures <= 1:
        return 0
    return min(MAX_SECONDS, 1 << min(failures - 2, 10))  # the inner limit: no huge number is computed


def retry_at(since: datetime | None, failures: int) -> datetime | None:
    """Time at which the next try may begin: the backoff after `since`. None, if `since` is None."""
    return since + timedelta(seconds=seconds(failures)) if since is not None else None
