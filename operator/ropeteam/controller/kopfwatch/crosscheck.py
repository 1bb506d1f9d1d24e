"""Compare the changes of TrainingJobs that kopf receives with the informer's cache.

Two watches are two connections, opened at different times and read by different code. A change that kopf has
received `PATIENCE` seconds ago and the cache does not contain makes the informer list all jobs again.
Limits: TrainingJobs only; a change that neither watch delivers is found by the informer's next list.
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
_CHECK_SECONDS = 1.0

log = logging.getLogger(__name__)


class CrossCheck:
    """`enqueue` is called with the key of each job that kopf has seen change."""

    def __init__(self, jobs: MultiNamespaceInformer[Any], enqueue: Callable[[Key], None]) -> None:
        self._jobs, self._enqueue = jobs, enqueue
        self._missing: dict[str, tuple[Change, float]] = {}
        """By UID: the newest change that the cache does not have yet, and when kopf received it."""

    def changed(self, change: Change) -> None:
        self._enqueue(change.key)
        if self._jobs.has(change.uid, change.version, deleted=change.deleted):
            self._missing.pop(change.uid, None)
        else:
            self._missing[change.uid] = change, _now()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self.check()

    def check(self) -> None:
        """List the jobs again if a change is overdue. Each change leads to one list at most."""
        self._missing = {
            uid: (change, since)
            for uid, (change, since) in self._missing.items()
            if not self._jobs.has(uid, change.version, deleted=change.deleted)
        }
        overdue = [change for change, since in self._missing.values() if _now() - since > PATIENCE]
        for namespace in {change.key.namespace for change in overdue}:
            log.warning("a change of a job in %s is missing in the cache, listing jobs again", namespace)
            metrics.MISSED_CHANGES.inc()
            self._jobs.relist(namespace)
        for change in overdue:
            del self._missing[change.uid]


def _now() -> float:
    return asyncio.get_running_loop().time()
