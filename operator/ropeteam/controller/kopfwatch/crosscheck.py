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
_CHECK_SECONDS = 1.0

log = logging.getLogger(__name__)


class CrossCheck:
    """`enqueue` is called with the key of each job that kopf has seen change."""

    def __init__(self, jobs: MultiNamespaceInformer[Any], enqueue: Callable[[Key], None]) -> None:
        self._jobs, self._enqueue = jobs, enqueue
        self._missing: dict[str, list[tuple[Change, float]]] = {}
        """By UID: the oldest and the newest change that the cache does not have yet, and when they came."""

    def changed(self, change: Change) -> None:
        self._enqueue(change.key)
        if self._has(change):
            self._missing.pop(change.uid, None)
        else:
            oldest = [] if change.deleted else self._missing.get(change.uid, [])[:1]
            self._missing[change.uid] = [*oldest, (change, _now())]

    def _has(self, change: Change) -> bool:
        return self._jobs.has_change(change.uid, change.version, deleted=change.deleted)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self.check()

    def check(self) -> None:
        """List the jobs again if a change is overdue. Each change leads to one list at most."""
        for uid, changes in tuple(self._missing.items()):
            self._missing[uid] = [each for each in changes if not self._has(each[0])]
        self._missing = {uid: changes for uid, changes in self._missing.items() if changes}
        oldest = [changes[0] for changes in self._missing.values()]
        overdue = [change for change, since in oldest if _now() - since > PATIENCE]
        metrics.MISSED_CHANGES.inc(len(overdue))
        for namespace in {change.key.namespace for change in overdue}:
            log.warning("a change of a job in %s is missing in the cache, listing jobs again", namespace)
            self._jobs.relist(namespace)
        for change in overdue:
            del self._missing[change.uid]


def _now() -> float:
    return asyncio.get_running_loop().time()
