"""Await with a limit. Python 3.10's asyncio has a TimeoutError that is no OSError; this one always is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Await `work`, at most so long, and return its result. Raises TimeoutError, after cancelling `work`."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:  # noqa: UP041
        raise TimeoutError(f"no answer within {seconds:g} s") from None
