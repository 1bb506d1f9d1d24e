"""Compare the changes of TrainingJobs that kopf receives with the informer's cache.

Two watches are two connections, opened at different times and read by different code. A change that kopf has
received `PATIENCE` seconds ago and the cache does not contain makes the informer list all jobs again.
Limits: TrainingJobs only; a change that neither watch delivers is found by the informer's next list,
which no timer starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ropeteam.controller import metrics
from ropeteam.controller.cache.informer import Key, MultiNamespaceInformer
from ropeteam.controller.kopfwatch.handlers import Change

PATIENCE = 10.0
"""Seconds for which the cache may be behind kopf."""
_CHECK_SECONDS = 1.0

log = logging.getLogger(__name__)


class CrossCheck:
    """The comparison: kopf's changes come by `record`, `run` compares. `enqueue` is called with the key of
    each changed job at once: one more reconcile does no harm."""

    def __init__(self, jobs: MultiNamespaceInformer[Any], enqueue: Callable[[Key], None]) -> None:
        self._jobs, self._enqueue = jobs, enqueue
        self._missing: dict[str, list[tuple[Change, float]]] = {}
        """By UID: the oldest and the newest change that the cache does not have yet, and when they came. The
        oldest is overdue first; once the cache has it, only the newest can be missing."""

    def record(self, change: Change) -> None:
        """Record a change that kopf has received, and enqueue its job."""
        self._enqueue(change.key)
        if self._is_cached(change):
            self._missing.pop(change.uid, None)
        else:  # a deletion is the last change: no earlier one is missing any more
            oldest = [] if change.deleted else self._missing.get(change.uid, [])[:1]
            self._missing[change.uid] = [*oldest, (change, _now())]

    def _is_cached(self, change: Change) -> bool:
        """Whether the cache has this change, or a later one."""
        return self._jobs.has_change(change.uid, change.version, deleted=change.deleted)

    async def run(self) -> None:
        """Look for overdue changes every second until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self.relist_if_overdue()

    def relist_if_overdue(self) -> None:
        """List the jobs of a namespace again if a change of one is overdue. Overdue changes are counted and
        dropped, so that each leads to one list at most."""
        for uid, changes in tuple(self._missing.items()):
            self._missing[uid] = [each for each in changes if not self._is_cached(each[0])]
        self._missing = {uid: changes for uid, changes in self._missing.items() if changes}
        oldest = [changes[0] for changes in self._missing.values()]
        overdue = [change for change, since in oldest if _now() - since > PATIENCE]
        metrics.MISSED_CHANGES.inc(len(overdue))
        for namespace in {change.key.namespace for change in overdue}:
            log.warning(
                "a change of a job in namespace %s is not in the cache %.0f s after kopf received it, so the "
                "watch of jobs may hang: it is closed, and the jobs are listed again",
                namespace,
                PATIENCE,
            )
            self._jobs.relist(namespace)
        for change in overdue:
            del self._missing[change.uid]


def _now() -> float:
    """Seconds, by the event loop's clock."""
    return asyncio.get_running_loop().time()
