"""One round for one job: observe, decide, save, announce, act.

Intent before effect: what is to be done is saved first, and done only when it is. A crash before the write:
nothing has happened. A crash after it: the next round carries it out. A conflict means that we looked at an
old object: the decision is forgotten and the job is looked at again.
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
from ropeteam.controller.reconcile.events import announce
from ropeteam.controller.reconcile.executor import Executor
from ropeteam.controller.reconcile.failing import Failing
from ropeteam.controller.reconcile.observer import JobCache, Observer
from ropeteam.controller.reconcile.statuspace import Pace
from ropeteam.core.decide import decide
from ropeteam.core.decision import Announcement, Decision
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.idle import idle
from ropeteam.core.seen.observation import Observation

_PACED_SECONDS = 1.0
_ORPHAN_GRACE_SECONDS = 2
_ACTIONS_SHOWN = 20
"""In a line of the log; a job of 4,096 pods has more."""
_LONGEST_WHY = 4096
"""In the log, and remembered: a spec can be wrong in thousands of places."""
_ACTIONS_AT_ONCE = 50
"""Of one job, so that a large one does not keep the others waiting."""
_FAILURES_TOLD = 5
"""As events, of one round."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reconciler:
    client: ApiClient
    observer: Observer
    executor: Executor
    pace: Pace
    failures: Failing = field(default_factory=Failing)

    async def __call__(self, key: Key) -> float | None:
        """Seconds after which to look again; None: when something changes. Raises ApiError, connection
        errors.
        """
        clock, result = asyncio.get_running_loop().time, "error"
        began = clock()
        try:
            again = await self._round(key)
            result = "success" if again is None else "requeue_after" if again > 0 else "requeue"
            return again
        except Exception as error:
            now = self.observer.own_clock()
            if self.failures.again(key, error, now):
                await failing.tell(self.observer.caches, key, error, self.observer.clock())
            if self.failures.frees(key, now):
                await self._free(key)
            raise
        finally:
            metrics.count_round(result, clock() - began)

    async def _round(self, key: Key) -> float | None:
        seen = await self.observer.observe(key)
        if seen is None:
            self.observer.job_caches.forget(key)
            self.failures.forget(key)
            await self._sweep(key)
            return None
        decision = decide(seen)
        memory = self.observer.job_caches.of(key, seen.metadata.uid)
        _tell_why(key, memory, decision)
        changed = decision.status != seen.status
        if changed and not self.pace.permits(seen.status, decision.status, seen.now):
            return _PACED_SECONDS
        if changed:
            await self._save(seen, decision)
            memory.written_at = seen.now
        self.failures.forget(key)
        told, memory.desired = memory.desired, decision.desired  # only what is saved is spoken of
        await self._act(seen, decision.actions, memory)
        if changed or decision.actions or told != decision.desired:
            return 0.0
        return decision.look_again_seconds

    async def _save(self, seen: Observation, decision: Decision) -> None:
        """And announce it. Raises Conflict: the job has changed since it was read; NotFound: it is gone,
        which the watch may be late to tell.
        """
        meta = seen.metadata
        identity = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        written = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {**identity, "resourceVersion": meta.resource_version},
            "spec": seen.spec,
            "status": decision.status.to_json(),
        }
        try:
            answer = await self.client.replace(written, "status", parsing.job_text)
        except NotFound:
            self.observer.caches.jobs.remove_object(meta.uid)
            raise
        self.observer.caches.jobs.upsert(answer)
        metrics.count_settled(seen.status, decision.status)
        for announcement in decision.announcements:
            await announce(self.client, meta, announcement, seen.now)

    async def _free(self, key: Key) -> None:
        """What it holds for nothing. Never raises: whatever keeps us from deciding may do so here too."""
        try:
            seen = await self.observer.observe(key)
            pods = idle(seen) if seen is not None else ()
            if seen is not None and pods:
                words = f"{len(pods)} pods that do not train are deleted."
                told = Announcement("Warning", failing.REASON, words)
                await announce(self.client, seen.metadata, told, seen.now)
                await self._act(seen, pods, self.observer.job_caches.of(key, seen.metadata.uid))
        except Exception as broken:
            log.warning("%s: cannot free what it holds: %s", key, broken)

    async def _act(self, seen: Observation, actions: tuple[Action, ...], memory: JobCache) -> None:
        """All of it, though some may fail; what failed is told to the user. Raises the first error."""
        turns = asyncio.Semaphore(_ACTIONS_AT_ONCE)

        async def in_turn(action: Action) -> None:
            async with turns:
                await self.executor.execute(action, seen.metadata, memory)

        results = await asyncio.gather(*map(in_turn, actions), return_exceptions=True)
        failed = [(a, e) for a, e in zip(actions, results, strict=True) if e is not None]
        for action, error in failed[:_FAILURES_TOLD]:
            told = Announcement("Warning", "ActionFailed", f"cannot {action}: {error}")
            await announce(self.client, seen.metadata, told, seen.now)
        for _, error in failed:
            raise error

    async def _sweep(self, key: Key) -> None:
        """The job is gone: so must be what belonged to it. The garbage collector does it too, but not
        quickly: nobody wants a checkpoint any more, and no coordinator is left to tell the agents that they
        may leave.
        """
        caches = self.observer.caches
        soon = self.observer.clock() + timedelta(seconds=_ORPHAN_GRACE_SECONDS)
        pods = [pod for _, pod in caches.pods.of(key)]
        left = [("Pod", pod.name, pod.uid) for pod in pods if pod.delete_at is None or pod.delete_at > soon]
        left += [("Service", service.name, service.uid) for _, service in caches.services.of(key)]
        if not left or await self._exists(key):
            return
        for kind, name, uid in left:
            try:
                place = ObjectRef(kind, key.namespace, name)
                await self.client.delete(place, uid=uid, grace_seconds=_ORPHAN_GRACE_SECONDS)
            except AlreadyGone:
                continue

    async def _exists(self, key: Key) -> bool:
        """Asked live: the cache may be behind."""
        try:
            await self.client.get(ObjectRef(KIND, key.namespace, key.name))
        except NotFound:
            return False
        return True


def _tell_why(key: Key, memory: JobCache, decision: Decision) -> None:
    """A line for each new reason; the same one is not repeated each round."""
    why = decision.why[:_LONGEST_WHY]
    if why != memory.why or decision.actions:
        actions = [str(action) for action in decision.actions[:_ACTIONS_SHOWN]]
        if more := len(decision.actions) - len(actions):
            actions.append(f"and {more} more")
        log.info("%s: %s%s", key, why, f" [{'; '.join(actions)}]" if actions else "")
    memory.why = why
