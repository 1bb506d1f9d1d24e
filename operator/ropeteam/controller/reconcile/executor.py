"""Carry out the actions of a decision. One match statement and no `if`: no policy can hide here.

Each action may be repeated: a crash can fall between any two lines, and then the next reconcile decides on it
again. The API server's answers go into the caches at once, so that the next reconcile already observes them.
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
    ApiClient,
    ApiError,
    NotFound,
    Object,
    ObjectRef,
    OwnedObjectExists,
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

    async def execute(self, action: Action, job: Metadata, cache: JobCache) -> None:
        """Carry out one action; idempotent. Raises ApiError."""
        match action:
            case CreatePod(manifest):
                with suppress(OwnedObjectExists):
                    self.caches.pods.upsert(await self.client.create(manifest))
            case DeletePod(name, uid, grace_seconds):
                await self._delete(ObjectRef("Pod", job.namespace, name), uid, grace_seconds)
            case CreateService(manifest):
                with suppress(OwnedObjectExists):
                    self.caches.services.upsert(await self.client.create(manifest))
            case PointService(name, uid, selector):
                patch = {"metadata": {"uid": uid}, "spec": {"selector": selector}}
                ref = ObjectRef("Service", job.namespace, name)
                with suppress(NotFound):
                    self.caches.services.upsert(await self.client.merge(ref, patch))
            case DeleteService(name, uid):
                await self._delete(ObjectRef("Service", job.namespace, name), uid)
            case CreateSecret():
                await self._create_secret(action, job.namespace, cache)
            case CreatePolicy(manifest):
                await self._create_policy(manifest, cache)
            case EnsureAgent():
                await self.agent.ensure(self.client, job.namespace)
            case DeleteJob(name, uid):
                await self._delete(ObjectRef("TrainingJob", job.namespace, name), uid)
            case _:
                assert_never(action)

    async def _create_secret(self, action: CreateSecret, namespace: str, cache: JobCache) -> None:
        try:
            with suppress(OwnedObjectExists):
                await self.client.create(secret(action, namespace, self.keys))
        except ApiError as error:
            # An exceeded quota refuses also the create of an object that exists.
            if cache.secret != action.name or error.status not in REFUSALS:
                raise
        cache.secret, cache.secret_at = action.name, self.clock()

    async def _create_policy(self, manifest: Object, cache: JobCache) -> None:
        try:
            with suppress(OwnedObjectExists):
                await self.client.create(manifest)
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            message = policy.refusal_message(error.message)
            cache.policy = PolicySeen(refusal=message)
            raise ApiError(error.status, message) from None
        cache.policy = PolicySeen(name=manifest["metadata"]["name"])

    async def _delete(self, ref: ObjectRef, uid: str, grace_seconds: int | None = None) -> None:
        with suppress(AlreadyGone):
            self._upsert_terminating(ref, await self.client.delete(ref, uid=uid, grace_seconds=grace_seconds))

    def _upsert_terminating(self, ref: ObjectRef, answer: Object) -> None:
        """Update the cache with a terminating pod, which is returned with a deletionTimestamp; a pod that is
        gone at once is reported by the watch.
        """
        if ref.kind == "Pod" and answer.get("kind") == "Pod" and answer["metadata"].get("deletionTimestamp"):
            self.caches.pods.upsert(answer)


def secret(action: CreateSecret, namespace: str, keys: OperatorKeys) -> dict[str, Any]:
    """The job's Secret. Immutable: the token of a job never changes, nor do the keys of its checkpoints, so
    whether these are signed does not depend on the pod that writes."""
    data = {"token": keys.of(action.key_id).token(action.job_uid).hex()}
    if action.folder:
        data[seals.FILE] = seals.to_text(keys.of_folder(action.folder, action.key_id))
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
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }
