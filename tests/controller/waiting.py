"""Wait for a condition, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds. Far above anything seen, on a machine with eight times as much to do as it can, too."""


async def until(probe: Callable[[], T | None], patience: float = PATIENCE) -> T:
    """The first truthy answer. Raises TimeoutError after a generous while."""
    async with asyncio.timeout(patience):
        while not (answer := probe()):  # noqa: ASYNC110 - any condition, not only ours
            await asyncio.sleep(0.005)
    return answer


async def until_async(probe: Callable[[], Awaitable[T | None]], patience: float = PATIENCE) -> T:
    """As `until`, for a condition that is read over a connection."""
    async with asyncio.timeout(patience):
        while not (answer := await probe()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    return answer
