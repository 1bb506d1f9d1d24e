"""Carry out the actions of a decision, as requests to the API server. Nothing is decided here.

Each action may be repeated: a crash can fall between any two lines, and then the next reconcile decides on it
again. The API server's answers go into the caches at once, so that the next reconcile already observes them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
from ropeteam.controller.reconcile.created import CreatedObjects
from ropeteam.controller.settings import OperatorKeys
from ropeteam.core.objects import policy
from ropeteam.core.objects.actions import Action, CreateSecret
from ropeteam.core.objects.execution import carry_out
from ropeteam.core.seen.observation import PolicySeen
from ropeteam_trainer.contract import seals
from ropeteam_trainer.system.clocks import boot_seconds


@dataclass(frozen=True)
class Executor:
    """Carries out the actions of all jobs."""

    client: ApiClient
    caches: Caches
    keys: OperatorKeys
    agent: AgentSecret
    clock: Callable[[], float] = boot_seconds

    async def execute(self, action: Action, job: Metadata, created: CreatedObjects) -> None:
        """Carry out one action; idempotent. The answers go into the caches, and into `created`. Raises
        ApiError, connection errors, Fenced."""
        await carry_out(action, _JobRequests(self, job.namespace, created))


@dataclass(frozen=True)
class _JobRequests:
    """The API server as the target of one job's actions (`Target` in core/objects/execution.py)."""

    executor: Executor
    namespace: str
    created: CreatedObjects

    async def create(self, manifest: Object) -> None:
        """As of Target. An object of ours that exists already comes into the cache by the watch."""
        with suppress(OwnedObjectExists):
            self._upsert(manifest["kind"], await self.executor.client.create(manifest))

    async def delete(self, kind: str, name: str, uid: str, grace_seconds: int | None) -> None:
        """As of Target. The API server answers with the terminating pod, with a deletionTimestamp, which goes
        into the cache; an object that is gone at once is reported by the watch."""
        ref = ObjectRef(kind, self.namespace, name)
        with suppress(AlreadyGone):
            answer = await self.executor.client.delete(ref, uid=uid, grace_seconds=grace_seconds)
            if kind == answer.get("kind") == "Pod" and answer["metadata"].get("deletionTimestamp"):
                self._upsert(kind, answer)

    async def merge(self, kind: str, name: str, patch: Object) -> None:
        """As of Target. Raises Conflict if the UID in the patch is another one: an object of the same
        name."""
        with suppress(NotFound):
            ref = ObjectRef(kind, self.namespace, name)
            self._upsert(kind, await self.executor.client.merge(ref, patch))

    async def create_secret(self, action: CreateSecret) -> None:
        """As of Target. A refusal counts only if the Secret was not confirmed before."""
        executor, created = self.executor, self.created
        try:
            with suppress(OwnedObjectExists):
                await executor.client.create(secret_manifest(action, self.namespace, executor.keys))
        except ApiError as error:
            # An exceeded quota refuses also the create of an object that exists.
            if created.secret != action.name or error.status not in REFUSALS:
                raise
        created.secret, created.secret_at = action.name, executor.clock()

    async def create_policy(self, manifest: Object) -> None:
        """As of Target. A refusal is recorded in `created`, for the next Observation, and raised with a
        message to the job's owner."""
        try:
            with suppress(OwnedObjectExists):
                await self.executor.client.create(manifest)
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            message = policy.refusal_message(error.message)
            self.created.policy = PolicySeen(refusal=message)
            raise ApiError(error.status, message) from None
        self.created.policy = PolicySeen(name=manifest["metadata"]["name"])

    async def ensure_agent(self) -> None:
        await self.executor.agent.ensure(self.executor.client, self.namespace)

    def _upsert(self, kind: str, obj: Object) -> None:
        """Cache the answer to a write. `kind`: Pod or Service; no other kind is merged or created here."""
        caches = self.executor.caches
        (caches.pods if kind == "Pod" else caches.services).upsert(obj)


def secret_manifest(action: CreateSecret, namespace: str, keys: OperatorKeys) -> dict[str, Any]:
    """The job's Secret, with its token and, if it has a checkpoint folder, the keys of that. Immutable: the
    token of a job never changes, nor do the keys, so whether checkpoints are signed does not depend on the
    pod that writes."""
    data = {"token": keys.key_or_current(action.key_id).token(action.job_uid).hex()}
    if action.folder:
        data[seals.FILE] = seals.keys_text(keys.folder_keys(action.folder, action.key_id))
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
