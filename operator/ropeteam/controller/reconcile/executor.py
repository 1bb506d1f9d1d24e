"""Carry out what was decided. One match statement and no `if`: no policy can hide here.

Each action may be repeated: a crash can fall between any two lines, and then the next round asks for it
again. What the API server answers goes into the caches at once, so that the next look already sees it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

from ropeteam.api.job import Metadata
from ropeteam.controller.cache.caches import Caches
from ropeteam.controller.client.apiclient import (
    REFUSALS,
    AlreadyGone,
    AlreadyOurs,
    ApiClient,
    ApiError,
    NotFound,
    Object,
    ObjectRef,
)
from ropeteam.controller.reconcile.agentsecret import AgentSecret
from ropeteam.controller.reconcile.observer import JobCache
from ropeteam.controller.settings import OperatorKeys
from ropeteam.core.objects import policy
from ropeteam.core.objects.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeleteJob,
    DeletePod,
    DeleteService,
    EnsureAgent,
    PointService,
)
from ropeteam.core.seen.observation import PolicySeen
from ropeteam_trainer.contract import seals
from ropeteam_trainer.system.clocks import boot_seconds


@dataclass(frozen=True)
class Executor:
    client: ApiClient
    caches: Caches
    keys: OperatorKeys
    agent: AgentSecret
    clock: Callable[[], float] = boot_seconds

    async def execute(self, action: Action, job: Metadata, memory: JobCache) -> None:
        """Twice is the same as once. Raises ApiError."""
        match action:
            case CreatePod(manifest):
                with suppress(AlreadyOurs):
                    self.caches.pods.upsert(await self.client.create(manifest))
            case DeletePod(name, uid, grace_seconds):
                await self._delete(ObjectRef("Pod", job.namespace, name), uid, grace_seconds)
            case CreateService(manifest):
                with suppress(AlreadyOurs):
                    self.caches.services.upsert(await self.client.create(manifest))
            case PointService(name, uid, selector):
                patch = {"metadata": {"uid": uid}, "spec": {"selector": selector}}
                place = ObjectRef("Service", job.namespace, name)
                with suppress(NotFound):
                    self.caches.services.upsert(await self.client.merge(place, patch))
            case DeleteService(name, uid):
                await self._delete(ObjectRef("Service", job.namespace, name), uid)
            case CreateSecret():
                await self._make_secret(action, job.namespace, memory)
            case CreatePolicy(manifest):
                await self._protect(manifest, memory)
            case EnsureAgent():
                await self.agent.ensure(self.client, job.namespace)
            case DeleteJob(name, uid):
                await self._delete(ObjectRef("TrainingJob", job.namespace, name), uid)
            case _:
                assert_never(action)

    async def _make_secret(self, action: CreateSecret, namespace: str, memory: JobCache) -> None:
        try:
            with suppress(AlreadyOurs):
                await self.client.create(secret(action, namespace, self.keys))
        except ApiError as error:
            # A quota that is full refuses what is there, too.
            if memory.secret != action.name or error.status not in REFUSALS:
                raise
        memory.secret, memory.secret_at = action.name, self.clock()

    async def _protect(self, manifest: Object, memory: JobCache) -> None:
        try:
            with suppress(AlreadyOurs):
                await self.client.create(manifest)
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            words = policy.refused(error.message)
            memory.policy = PolicySeen(refusal=words)
            raise ApiError(error.status, words) from None
        memory.policy = PolicySeen(name=manifest["metadata"]["name"])

    async def _delete(self, place: ObjectRef, uid: str, grace_seconds: int | None = None) -> None:
        with suppress(AlreadyGone):
            self._learn(place, await self.client.delete(place, uid=uid, grace_seconds=grace_seconds))

    def _learn(self, place: ObjectRef, answer: Object) -> None:
        """A pod that still ends comes back with a deletionTimestamp; what is gone at once is told by the
        watch.
        """
        if (
            place.kind == "Pod"
            and answer.get("kind") == "Pod"
            and answer["metadata"].get("deletionTimestamp")
        ):
            self.caches.pods.upsert(answer)


def secret(action: CreateSecret, namespace: str, keys: OperatorKeys) -> dict[str, Any]:
    """Immutable: the token of a job never changes, nor do the keys of its checkpoints, so whether these are
    signed does not depend on the pod that writes."""
    words = {"token": keys.of(action.key_id).token(action.job_uid).hex()}
    if action.folder:
        words[seals.FILE] = seals.to_text(keys.of_folder(action.folder, action.key_id))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": action.name,
            "namespace": namespace,
            "labels": action.labels,
            "ownerReferences": [action.owner],
        },
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(word.encode()).decode() for name, word in words.items()},
    }
