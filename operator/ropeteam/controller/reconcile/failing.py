"""Report reconciles that fail repeatedly for one reason: condition Stalled, and an event.

A decision that cannot be made, or a status that the API server refuses, is otherwise in the operator's log
only, which the job's owner does not see. Transient errors, such as an API server that is away or a job that
changed meanwhile, are not reported, nor are actions that fail: they have their own events.
After an hour pods that certainly do not train are deleted (`core/questions/idle.py`). Limits: all others
stay, for a world continues without the operator. Counted from zero after a restart of the operator, which
then has no report of the coordinator either; a successful reconcile ends the condition.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp

from ropeteam.api.columns import with_columns
from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import Metadata
from ropeteam.api.status import JobStatus
from ropeteam.controller.cache import parsing
from ropeteam.controller.cache.caches import Caches
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiError, Conflict, Fenced, NotFound, Object
from ropeteam.controller.reconcile.events import create_event
from ropeteam.core.decision import Announcement
from ropeteam.core.status.conditions import ConditionFact, with_facts

REPORT_AFTER_FAILURES = 5
"""For one reason, in a row."""
DELETE_IDLE_AFTER_SECONDS = 3600.0
"""Since the first of these failures."""
REASON = "ReconcileError"
_LONGEST_ERROR = 500
_RETRYABLE = (Conflict, NotFound, Fenced, OSError, TimeoutError, aiohttp.ClientError)
"""Errors that pass without anybody's help: the job changed or went meanwhile, or a server is away."""

log = logging.getLogger(__name__)


@dataclass
class RepeatedFailures:
    """How many reconciles in a row have failed for one reason, by job. Transient errors do not count, and end
    the row."""

    _failures: dict[Key, tuple[tuple[type[Exception], int], int, float]] = field(default_factory=dict)
    """Type and HTTP status of the error, number of failures in a row, and since when."""

    def record(self, key: Key, error: Exception, now: float) -> bool:
        """Count a failure. Returns whether to report it: `REPORT_AFTER_FAILURES` or more failed in a row for
        this reason, which is the type of the error and its HTTP status. `now`: by the clock of this process.
        """
        transient = isinstance(error, ApiError) and (error.status >= 500 or error.status in (401, 429))
        if transient or isinstance(error, _RETRYABLE):
            self.forget(key)
            return False
        reason: tuple[type[Exception], int] = (type(error), getattr(error, "status", 0))
        known, count, since = self._failures.get(key, (reason, 0, now))
        if known != reason:
            count, since = 0, now
        self._failures[key] = reason, count + 1, since
        return count + 1 >= REPORT_AFTER_FAILURES

    def may_delete_idle(self, key: Key, now: float) -> bool:
        """Whether the job has failed so often, and for `DELETE_IDLE_AFTER_SECONDS`, that its idle pods are to
        be deleted. `now`: as in `record`."""
        known = self._failures.get(key)
        return (
            known is not None
            and known[1] >= REPORT_AFTER_FAILURES
            and now - known[2] >= DELETE_IDLE_AFTER_SECONDS
        )

    def forget(self, key: Key) -> None:
        """Count from zero: a reconcile has succeeded, or the job is gone."""
        self._failures.pop(key, None)


async def report_failure(caches: Caches, key: Key, error: Exception, now: datetime) -> None:
    """Report the failure on the job, as condition and event, best effort. Errors are only logged: the same
    fault may break this too."""
    message = _failure_message(key, error)
    for step in (_set_stalled, _create_event):
        try:
            if (job := await caches.job_with_text(key)) is not None:
                await step(caches, job.parsed(), message, now)
        except Exception as broken:
            log.warning(
                "%s: reconciles of this job fail (see above), and this could not be reported on the job: %s",
                key,
                broken,
            )


def _failure_message(key: Key, error: Exception) -> str:
    """Message to the job's owner: the consequence, the error, and what to do."""
    detail = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR].encode(errors="replace").decode()
    intro = (
        f"{REPORT_AFTER_FAILURES} reconciles of this job failed in a row, and the operator takes no decision "
        "about it until one succeeds. Pods that train continue; pods that certainly do not are "
        f"deleted after an hour. The error: {detail}."
    )
    where = f"-n {key.namespace} {key.name}"
    if isinstance(error, ApiError):
        return (
            f"{intro} The API server refuses a request of the operator: mend what the error names, such as a "
            "webhook, a quota or the operator's role. The operator then continues by itself."
        )
    return (
        f"{intro} This is probably a bug: report it with the operator's log and the output of "
        f"`ropeteam snapshot {where}`. To free the pods now (checkpoints stay): "
        f"kubectl delete trainingjob {where}"
    )


async def _set_stalled(caches: Caches, raw: Object, message: str, now: datetime) -> None:
    """Set the condition Stalled in the status, and in the cache. A job that has ended keeps its status.
    Raises Conflict if the job has changed since it was read, ApiError, connection errors."""
    meta, status = raw["metadata"], JobStatus.model_validate(raw["status"])
    fact = ConditionFact(ConditionType.STALLED, True, REASON, message)
    stalled = with_columns(with_facts(status, (fact,), now, meta.get("generation", 0)))
    if stalled != status and not status.finished:
        written = {**raw, "status": stalled.to_json()}
        caches.jobs.upsert(await caches.client.replace(written, "status", parsing.job_text))


async def _create_event(caches: Caches, raw: Object, message: str, now: datetime) -> None:
    """Create an event, once for each version of the job: the event's name is derived from it."""
    announcement = Announcement("Warning", REASON, message)
    await create_event(caches.client, Metadata.model_validate(raw["metadata"]), announcement, now)
