"""One reconcile of one job: read, exchange, observe, check the pod, decide, save, announce, act.

Intent before effect: the new status is saved first, and actions are carried out only after that. A crash
before the write: nothing has happened. A crash after it: the next reconcile carries them out. A conflict
means that the observation was stale: the decision is dropped and the job is reconciled again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta

from ropeteam.api.job import API_VERSION, KIND
from ropeteam.controller import metrics
from ropeteam.controller.cache import parsing
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import AlreadyGone, ApiClient, NotFound, ObjectRef
from ropeteam.controller.reconcile import failing
from ropeteam.controller.reconcile.admission import PodCheck
from ropeteam.controller.reconcile.created import CreatedObjects
from ropeteam.controller.reconcile.events import create_event
from ropeteam.controller.reconcile.exchange import CoordinatorLink
from ropeteam.controller.reconcile.executor import Executor
from ropeteam.controller.reconcile.failing import RepeatedFailures
from ropeteam.controller.reconcile.jobread import JobRead, read_job
from ropeteam.controller.reconcile.jobstates import JobState, JobStates, LastReconcile
from ropeteam.controller.reconcile.observer import Observer
from ropeteam.controller.reconcile.progresslimit import ProgressRateLimiter
from ropeteam.core.decide import decide
from ropeteam.core.decision import Announcement, Decision
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.idle import idle_pod_deletions
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import with_changes

_RATE_LIMITED_SECONDS = 1.0
"""Until the next reconcile of a job whose status may not be written yet."""
_ORPHAN_GRACE_SECONDS = 2
_ACTIONS_LOGGED = 20
"""Actions in a line of the log; a job of 4,096 pods has more."""
_LONGEST_REASON = 4096
"""Characters of a reason in the log and in the cache: a spec can be wrong in thousands of places."""
_CONCURRENT_ACTIONS = 50
"""Concurrent actions of one job, so that a large one does not keep the others waiting."""
_FAILURES_REPORTED = 5
"""Failed actions of one reconcile that are reported as events."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reconciler:
    """Reconciles any job, one at a time per key; what it keeps between reconciles is in `jobs`, `failures`
    and `progress_limiter`, and may be lost."""

    client: ApiClient
    link: CoordinatorLink
    observer: Observer
    pod_check: PodCheck
    executor: Executor
    progress_limiter: ProgressRateLimiter
    jobs: JobStates = field(default_factory=JobStates)
    failures: RepeatedFailures = field(default_factory=RepeatedFailures)

    async def __call__(self, key: Key) -> float | None:
        """Reconcile the job once, and count that in the metrics. Returns the seconds until the next
        reconcile; None: when something changes. Raises any error of the reconcile, which the work queue
        retries: ApiError, connection errors, Fenced. An error that repeats is reported on the job first.
        """
        clock, result = asyncio.get_running_loop().time, "error"
        began = clock()
        try:
            delay = await self._reconcile(key)
            result = "success" if delay is None else "requeue_after" if delay > 0 else "requeue"
            return delay
        except Exception as error:
            now = self.observer.own_clock()
            if self.failures.record(key, error, now):
                await failing.report_failure(self.observer.caches, key, error, self.observer.clock())
            if self.failures.may_delete_idle(key, now):
                await self._delete_idle_pods(key)
            raise
        finally:
            metrics.count_reconcile(result, clock() - began)

    async def _reconcile(self, key: Key) -> float | None:
        """The steps of one reconcile, in the module's order; returns and raises as `__call__`.

        Early ends: the job is gone (orphans are deleted), or the status may not be written yet, and then no
        action is carried out, because its intent is not saved. After a change, a new desired state or an
        action the job is reconciled again at once, to observe the result.
        """
        read = await read_job(self.observer.caches, key)
        if read is None:
            self.jobs.forget(key)
            self.failures.forget(key)
            await self._delete_orphans(key)
            return None
        job = self._state_of(key, read)
        report, error = await self.link.exchange(read, job.exchange, job.last.desired)
        observed = self.observer.observe(read, job, report, error)
        observed = with_changes(observed, refusal=await self.pod_check.refusal(observed, job.admission))
        decision = decide(observed)
        _log_reason(key, job.last, decision)
        changed = decision.status != observed.status
        if changed and not self.progress_limiter.permits(observed.status, decision.status, observed.now):
            return _RATE_LIMITED_SECONDS
        if changed:
            await self._save_status(observed, decision)
            job.last.written_at = observed.now
        self.failures.forget(key)
        sent, job.last.desired = job.last.desired, decision.desired  # only a saved one is sent
        await self._execute(decision.actions, observed, job.created)
        if changed or decision.actions or sent != decision.desired:
            return 0.0
        return decision.requeue_after_seconds

    def _state_of(self, key: Key, read: JobRead) -> JobState:
        """The state of the job that was read, not of an earlier one of the same name."""
        return self.jobs.state_of(key, read.metadata.uid, self.observer.own_clock())

    async def _save_status(self, observed: Observation, decision: Decision) -> None:
        """Write the status to the API server and into the cache, count its final incidents, and create the
        events that it justifies. Raises Conflict: the job has changed since it was read; NotFound: it is
        gone, and the watch lags; ApiError, connection errors.
        """
        meta = observed.metadata
        identity = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        written = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {**identity, "resourceVersion": meta.resource_version},
            "spec": observed.spec,
            "status": decision.status.to_json(),
        }
        try:
            answer = await self.client.replace(written, "status", parsing.job_text)
        except NotFound:
            self.observer.caches.jobs.remove_object(meta.uid)
            raise
        self.observer.caches.jobs.upsert(answer)
        metrics.count_final_incidents(observed.status, decision.status)
        for announcement in decision.announcements:
            await create_event(self.client, meta, announcement, observed.now)

    async def _delete_idle_pods(self, key: Key) -> None:
        """Delete pods that certainly do not train, without a decision, which cannot be made. Errors are only
        logged: whatever breaks the reconcile may break this too."""
        try:
            read = await read_job(self.observer.caches, key)
            if read is None:
                return
            job = self._state_of(key, read)
            report, error = await self.link.exchange(read, job.exchange, job.last.desired)
            observed = self.observer.observe(read, job, report, error)
            if pods := idle_pod_deletions(observed):
                hours = failing.DELETE_IDLE_AFTER_SECONDS / 3600
                message = (
                    f"{len(pods)} pods that do not train are deleted: for {hours:.0f} h the operator could "
                    "take no decision about this job. The condition Stalled has the error."
                )
                announcement = Announcement("Warning", failing.REASON, message)
                await create_event(self.client, observed.metadata, announcement, observed.now)
                await self._execute(pods, observed, job.created)
        except Exception as broken:
            log.warning("%s: cannot delete its idle pods: %s", key, broken)

    async def _execute(
        self, actions: tuple[Action, ...], observed: Observation, created: CreatedObjects
    ) -> None:
        """Carry out all actions, `_CONCURRENT_ACTIONS` at a time, even if some fail; the first failures
        become events. Raises the error of the first action that failed, once all are done."""
        limit = asyncio.Semaphore(_CONCURRENT_ACTIONS)

        async def execute_in_turn(action: Action) -> None:
            async with limit:
                await self.executor.execute(action, observed.metadata, created)

        results = await asyncio.gather(*map(execute_in_turn, actions), return_exceptions=True)
        failed = [(a, e) for a, e in zip(actions, results, strict=True) if e is not None]
        for action, error in failed[:_FAILURES_REPORTED]:
            announcement = Announcement("Warning", "ActionFailed", f"cannot {action}: {error}")
            await create_event(self.client, observed.metadata, announcement, observed.now)
        for _, error in failed:
            raise error

    async def _delete_orphans(self, key: Key) -> None:
        """Delete the cached pods and Services of a job that is gone, after the API server has confirmed that.
        The garbage collector does it too, but with each pod's own grace period: no checkpoint is needed any
        more, and no coordinator is left to let the agents exit. Pods that end soon anyway are left out.
        Raises ApiError, connection errors.
        """
        caches = self.observer.caches
        soon = self.observer.clock() + timedelta(seconds=_ORPHAN_GRACE_SECONDS)
        pods = [pod for _, pod in caches.pods.values_of(key)]
        extra = [("Pod", pod.name, pod.uid) for pod in pods if pod.delete_at is None or pod.delete_at > soon]
        extra += [("Service", service.name, service.uid) for _, service in caches.services.values_of(key)]
        if not extra or await self._job_exists(key):
            return
        for kind, name, uid in extra:
            try:
                ref = ObjectRef(kind, key.namespace, name)
                await self.client.delete(ref, uid=uid, grace_seconds=_ORPHAN_GRACE_SECONDS)
            except AlreadyGone:
                continue

    async def _job_exists(self, key: Key) -> bool:
        """Whether the job exists. A live GET: the cache may be behind. Raises ApiError, connection errors."""
        try:
            await self.client.get(ObjectRef(KIND, key.namespace, key.name))
        except NotFound:
            return False
        return True


def _log_reason(key: Key, last: LastReconcile, decision: Decision) -> None:
    """Log the reason of a decision if it is new or there are actions, and remember it in `last`."""
    why = decision.why[:_LONGEST_REASON]
    if why != last.why or decision.actions:
        actions = [str(action) for action in decision.actions[:_ACTIONS_LOGGED]]
        if more := len(decision.actions) - len(actions):
            actions.append(f"and {more} more")
        log.info("%s: %s%s", key, why, f" [{'; '.join(actions)}]" if actions else "")
    last.why = why
