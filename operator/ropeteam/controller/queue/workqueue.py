"""The order in which jobs are reconciled: client-go's rate-limiting work queue, in asyncio.

A key that is added twice is handled once; one key is never handled twice at the same time; a change that
comes while it is being handled leads to exactly one more reconcile. Groups of keys have fair shares
(`fairqueue.py`). After a reconcile a key cools down: the pods of a gang change together, and one reconcile
observes them all. Failures back off (5 ms doubling to 5 minutes). Limits: one event loop; keys are lost with
the process (the first list after a start adds them all again).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ropeteam.controller import metrics
from ropeteam.controller.queue.fairqueue import FairQueue
from ropeteam_trainer.contract.errors import RopeteamError

Key = TypeVar("Key", bound=Hashable)

_BASE_SECONDS, _CAP_SECONDS = 0.005, 300.0
"""Backoff after the first failure, and its maximum."""
_MIN_COOLDOWN, _MAX_COOLDOWN = 0.1, 1.0
"""Seconds. Between them as long as the reconcile took: a job of thousands of pods leaves half the time to
others."""

log = logging.getLogger(__name__)


class WorkQueue(Generic[Key]):
    """Keys that are due. `workers`: how many are handled at the same time. `group`: keys of one group share
    its part of them; by default each key is a group.

    States of a key: planned (`_timers`), queued (`_ready`), running, cooling down. A running key is neither
    queued nor cooling down; all else may coincide. Each `get` is followed by one `done`.
    """

    def __init__(self, workers: int, group: Callable[[Key], Hashable] = lambda key: key) -> None:
        self.workers = workers
        self._ready = FairQueue[Key](workers, group)
        self._added_at: dict[Key, float] = {}
        """When each key was added: it is queued, or to be queued again when its running reconcile ends."""
        self._running: dict[Key, float] = {}
        """When the reconcile of each running key began."""
        self._cooling: dict[Key, asyncio.TimerHandle] = {}
        self._dirty: set[Key] = set()
        """Keys that are to be queued when their cooldown ends."""
        self._failures: Counter[Key] = Counter()
        """By key: failures in a row."""
        self._timers: dict[Key, tuple[float, asyncio.TimerHandle]] = {}
        """Time and handle of each planned wake-up; uvloop's handles do not have the time."""

    def add(self, key: Key) -> None:
        """Enqueue a key that has changed, after its cooldown; planned wake-ups do not wait for that."""
        if key in self._cooling:
            self._dirty.add(key)
        else:
            self._enqueue(key)

    def _enqueue(self, key: Key) -> None:
        """Enqueue a key now, or if it is running, mark it: `done` then queues it again. Does nothing if it is
        queued or marked already."""
        if key in self._added_at:
            return
        self._added_at[key] = _now()
        metrics.QUEUE_ADDS.inc()
        if key not in self._running:
            self._ready.add(key)
        metrics.QUEUE_DEPTH.set(len(self._ready))

    def add_after(self, key: Key, seconds: float) -> None:
        """Plan to enqueue the key in `seconds`, whatever its cooldown. An earlier wake-up that is planned
        already stays; a later one is replaced."""
        when, planned = _now() + max(seconds, 0.0), self._timers.get(key)
        if planned is not None:
            if planned[0] <= when:
                return
            planned[1].cancel()
        self._timers[key] = when, asyncio.get_running_loop().call_at(when, self._enqueue_planned, key)

    def add_after_failure(self, key: Key) -> None:
        """Count a failure, and plan to enqueue the key after the backoff."""
        failures = self._failures[key]
        self._failures[key] += 1
        metrics.QUEUE_RETRIES.inc()
        self.add_after(key, min(_BASE_SECONDS * 2 ** min(failures, 30), _CAP_SECONDS))

    def forget_failures(self, key: Key) -> None:
        """End the backoff: the key was handled."""
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """Wait for the next key, which is running then; the caller has to call `done`. Ends its cooldown."""
        key = await self._ready.take()
        if (cooldown := self._cooling.pop(key, None)) is not None:
            cooldown.cancel()
            self._dirty.discard(key)  # this very reconcile observes it
        self._running[key] = now = _now()
        metrics.QUEUE_WAIT.observe(now - self._added_at.pop(key))
        metrics.QUEUE_DEPTH.set(len(self._ready))
        return key

    def done(self, key: Key) -> None:
        """End the handling of a key, and begin its cooldown. A key that was added meanwhile is queued again
        after that."""
        took = _now() - self._running.pop(key)
        self._ready.give_back(key)
        metrics.QUEUE_WORK.observe(took)
        if self._added_at.pop(key, None) is not None:
            self._dirty.add(key)
        cooldown = min(max(took, _MIN_COOLDOWN), _MAX_COOLDOWN)
        self._cooling[key] = asyncio.get_running_loop().call_later(cooldown, self._end_cooldown, key)

    def _end_cooldown(self, key: Key) -> None:
        """End a cooldown; enqueue the key if it was added meanwhile."""
        del self._cooling[key]
        if key in self._dirty:
            self._dirty.remove(key)
            self._enqueue(key)

    def running_seconds(self) -> list[float]:
        """For how long each running key has been handled."""
        return [_now() - since for since in self._running.values()]

    def longest_running_seconds(self) -> float:
        """For how long the slowest running key has been handled; 0.0: none runs."""
        return max(self.running_seconds(), default=0.0)

    def _enqueue_planned(self, key: Key) -> None:
        self._timers.pop(key, None)
        self._enqueue(key)


async def run_workers(queue: WorkQueue[Key], handle: Callable[[Key], Awaitable[float | None]]) -> None:
    """Handle keys until cancelled, with `queue.workers` tasks. `handle` returns the seconds until it is to be
    called again; None: when the key is added. Its errors are logged, and the key is tried again with backoff.
    """

    async def work() -> None:
        while True:
            key = await queue.get()
            try:
                await _handle_once(queue, handle, key)
            finally:
                queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(queue.workers):
            group.create_task(work())


async def _handle_once(
    queue: WorkQueue[Key], handle: Callable[[Key], Awaitable[float | None]], key: Key
) -> None:
    """Handle a key, and plan its next turn: after a failure with backoff, otherwise as `handle` returns.
    Raises only CancelledError."""
    try:
        requeue_after = await handle(key)
    except Exception as error:  # an error of one job must not stop the others
        metrics.RECONCILE_ERRORS.inc()
        log.warning(
            "%s: reconcile failed, trying again: %s: %s",
            key,
            type(error).__name__,
            error,
            exc_info=_needs_traceback(error),
        )
        queue.add_after_failure(key)
        return
    queue.forget_failures(key)
    if requeue_after is not None:
        queue.add_after(key, requeue_after)


def _needs_traceback(error: BaseException) -> bool:
    """Whether the text of an error is not enough: it is neither of the network nor one of ours."""
    return not isinstance(error, OSError | TimeoutError | RopeteamError)


def _now() -> float:
    """Seconds, by the event loop's clock."""
    return asyncio.get_running_loop().time()
