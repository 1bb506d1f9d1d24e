"""Which job to look at next: client-go's rate-limiting work queue, in asyncio.

A key that is added twice is handled once; one key is never handled twice at the same time; a change that
comes while it is being handled leads to exactly one more round. Groups of keys have fair shares
(`fairqueue.py`). After a round a key rests: the pods of a gang change together, and one look sees them all.
Failures wait longer each time (5 ms doubling to 5 minutes). Limits: one event loop; keys are lost with the
process (the first list after a start adds them all again).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ropeteam.controller import metrics
from ropeteam.controller.queue.fairqueue import Turns

Key = TypeVar("Key", bound=Hashable)

_BASE_SECONDS, _CAP_SECONDS = 0.005, 300.0
_SHORTEST_REST, _LONGEST_REST = 0.1, 1.0
"""Between them as long as the round took: a job of thousands of pods leaves half of the time to others."""

log = logging.getLogger(__name__)


class WorkQueue(Generic[Key]):
    """Keys that are due. `workers`: how many are handled at the same time. `group`: who shares a part of
    them; by default each key is alone.
    """

    def __init__(self, workers: int, group: Callable[[Key], Hashable] = lambda key: key) -> None:
        self.workers = workers
        self._ready = Turns[Key](workers, group)
        self._added_at: dict[Key, float] = {}
        """Queued, or to be queued again when the running round ends."""
        self._running: dict[Key, float] = {}
        self._resting: dict[Key, asyncio.TimerHandle] = {}
        self._rang: set[Key] = set()
        """Added while they rest."""
        self._failures: Counter[Key] = Counter()
        self._timers: dict[Key, tuple[float, asyncio.TimerHandle]] = {}
        """When, and what to cancel; uvloop's handles do not tell when."""

    def add(self, key: Key) -> None:
        """Something about it has changed. Waits until it has rested; what is planned by time does not."""
        if key in self._resting:
            self._rang.add(key)
        else:
            self._add(key)

    def _add(self, key: Key) -> None:
        if key in self._added_at:
            return
        self._added_at[key] = _now()
        metrics.QUEUE_ADDS.inc()
        if key not in self._running:
            self._ready.add(key)
        metrics.QUEUE_DEPTH.set(len(self._ready))

    def add_after(self, key: Key, seconds: float) -> None:
        """Not later than in `seconds`: an earlier wake-up that is already planned stays."""
        when, planned = _now() + max(seconds, 0.0), self._timers.get(key)
        if planned is not None:
            if planned[0] <= when:
                return
            planned[1].cancel()
        self._timers[key] = when, asyncio.get_running_loop().call_at(when, self._wake, key)

    def add_after_failure(self, key: Key) -> None:
        failures = self._failures[key]
        self._failures[key] += 1
        metrics.QUEUE_RETRIES.inc()
        self.add_after(key, min(_BASE_SECONDS * 2 ** min(failures, 30), _CAP_SECONDS))

    def forget_failures(self, key: Key) -> None:
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """The next key; the caller owes `done`."""
        key = await self._ready.take()
        if (rest := self._resting.pop(key, None)) is not None:
            rest.cancel()
            self._rang.discard(key)  # this very round sees it
        self._running[key] = now = _now()
        metrics.QUEUE_WAIT.observe(now - self._added_at.pop(key))
        metrics.QUEUE_DEPTH.set(len(self._ready))
        return key

    def done(self, key: Key) -> None:
        took = _now() - self._running.pop(key)
        self._ready.give_back(key)
        metrics.QUEUE_WORK.observe(took)
        if self._added_at.pop(key, None) is not None:
            self._rang.add(key)
        rest = min(max(took, _SHORTEST_REST), _LONGEST_REST)
        self._resting[key] = asyncio.get_running_loop().call_later(rest, self._rested, key)

    def _rested(self, key: Key) -> None:
        del self._resting[key]
        if key in self._rang:
            self._rang.remove(key)
            self._add(key)

    def running_seconds(self) -> list[float]:
        """Since when each key that is being handled is."""
        return [_now() - since for since in self._running.values()]

    def longest_running_seconds(self) -> float:
        return max(self.running_seconds(), default=0.0)

    def _wake(self, key: Key) -> None:
        self._timers.pop(key, None)
        self._add(key)


async def serve(queue: WorkQueue[Key], handle: Callable[[Key], Awaitable[float | None]]) -> None:
    """Handle keys for ever. `handle` returns after how many seconds it wants to be called again, or None."""

    async def work() -> None:
        while True:
            key = await queue.get()
            try:
                await _one_round(queue, handle, key)
            finally:
                queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(queue.workers):
            group.create_task(work())


async def _one_round(
    queue: WorkQueue[Key], handle: Callable[[Key], Awaitable[float | None]], key: Key
) -> None:
    try:
        again = await handle(key)
    except (Exception, asyncio.CancelledError) as error:  # one job's trouble must not stop the others
        if was_cancelled():
            raise
        metrics.RECONCILE_ERRORS.inc()
        log.warning("%s: %s: %s; trying again", key, type(error).__name__, error, exc_info=_unexpected(error))
        queue.add_after_failure(key)
        return
    queue.forget_failures(key)
    if again is not None:
        queue.add_after(key, again)


def was_cancelled() -> bool:
    """Whether this very task is to end. When kopf stops it cancels every task younger than itself, such as
    those that aiohttp makes for us; we see that as a CancelledError that is not meant for us.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _unexpected(error: BaseException) -> bool:
    """Whether a traceback would help: not for what networks and API servers do all the time."""
    return not isinstance(error, OSError | TimeoutError) and "controller" not in type(error).__module__


def _now() -> float:
    return asyncio.get_running_loop().time()
