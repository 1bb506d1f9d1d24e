"""Wait for what a test or a benchmark needs, with a sentence for the case that it does not come."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")
PATIENCE = float(os.environ.get("PATIENCE", "180"))
"""Seconds until a wait gives up. Far above anything seen; a test that needs it has found a bug."""
INTERVAL = 0.02


class NotYet(AssertionError, TimeoutError):
    """The condition did not hold in time: a failure for a test, a timeout for a benchmark."""


def wait_until(what: str | Callable[[], str], holds: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """The first truthy answer of `holds`. Raises NotYet with `what` and the last answer after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        if time.monotonic() > deadline:
            raise _not_yet(what, seconds, answer)
        time.sleep(INTERVAL)
    return answer


@overload
async def wait_until_async(
    what: str | Callable[[], str], holds: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE
) -> T: ...
@overload
async def wait_until_async(
    what: str | Callable[[], str], holds: Callable[[], T | None], seconds: float = PATIENCE
) -> T: ...
async def wait_until_async(
    what: str | Callable[[], str], holds: Callable[[], object], seconds: float = PATIENCE
) -> object:
    """`wait_until` in an event loop. `holds` may be a coroutine function, cancelled at the deadline."""
    answer: object = None
    try:
        async with asyncio.timeout(seconds) as deadline:
            while True:
                result = holds()
                answer = await result if inspect.isawaitable(result) else result
                if answer:
                    return answer
                await asyncio.sleep(INTERVAL)
    except TimeoutError:
        if not deadline.expired():  # a timeout of `holds` itself
            raise
        raise _not_yet(what, seconds, answer) from None


async def within(what: str | Callable[[], str], result: Awaitable[T], seconds: float = PATIENCE) -> T:
    """`await result`. Raises NotYet with `what` after `seconds`, when `result` is cancelled."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await result
    except TimeoutError:
        if not deadline.expired():  # a timeout of `result` itself
            raise
        text = what if isinstance(what, str) else what()
        raise NotYet(f"{text}: not within {seconds:.0f} s") from None


def _not_yet(what: str | Callable[[], str], seconds: float, last: object) -> NotYet:
    text = what if isinstance(what, str) else what()
    return NotYet(f"{text}: not within {seconds:.0f} s; last seen: {last!r}")
