"""Garbage collection: dependents, content of a namespace or of a CRD, old events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from ropeteam.local import resources as r
from ropeteam.local.api.store import Event, key_of
from ropeteam.local.api.verbs import Verbs
from ropeteam.local.resources import Object, Resource, StatusError

EVENT_SECONDS, EVENT_LIMIT = 3600, 2000
"""Age and number of events that are kept."""


class GarbageCollector:
    """A background task that collects after each write that may have left garbage."""

    def __init__(self, verbs: Verbs) -> None:
        self.verbs, self.store = verbs, verbs.store
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Collect from the next write on. Needs a running event loop."""
        self.store.listeners.append(self._queue.put_nowait)
        self._task = asyncio.create_task(self._collect())

    async def stop(self) -> None:
        self.store.listeners.remove(self._queue.put_nowait)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _collect(self) -> None:
        """Handle each write, in order, until cancelled. What this deletes is a write, too, and is handled
        later: so dependents of dependents are found, and a namespace is released after its last object."""
        while True:
            event = await self._queue.get()
            value, resource = event.object, event.resource
            if event.type == "DELETED":
                self._delete_orphans_of(value["metadata"]["uid"])
                if resource == r.CRDS:
                    self._delete_all(r.from_crd(value))
                self._release_namespace_if_empty(value["metadata"].get("namespace", ""))
            elif resource == r.NAMESPACES and "deletionTimestamp" in value["metadata"]:
                for inner in self.verbs.catalog:
                    if inner.namespaced:
                        self._delete_all(inner, value["metadata"]["name"])
                self._release_namespace_if_empty(value["metadata"]["name"])
            elif self._is_orphan(value):
                self._delete(resource, value)
            if resource == r.EVENTS and event.type == "ADDED":
                self._remove_old_events()

    def _is_orphan(self, value: Object) -> bool:
        """Whether an object has owners, and none of them exists."""
        owners = value["metadata"].get("ownerReferences")
        return bool(owners) and not any(owner["uid"] in self.store.by_uid for owner in owners)

    def _delete_orphans_of(self, uid: str) -> None:
        """Delete dependents of a removed owner that have no other owner."""
        for resource in self.verbs.catalog:
            for value in self.store.list(resource):
                owners = value["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == uid for owner in owners) and self._is_orphan(value):
                    self._delete(resource, value)

    def _delete_all(self, resource: Resource, namespace: str = "") -> None:
        for value in self.store.list(resource, namespace):
            self._delete(resource, value)

    def _delete(self, resource: Resource, value: Object) -> None:
        """Delete this very object; nothing if it is gone meanwhile, or another object has its name."""
        with suppress(StatusError):
            uid = value["metadata"]["uid"]
            self.verbs.delete(resource, key_of(value), {"preconditions": {"uid": uid}})

    def _release_namespace_if_empty(self, name: str) -> None:
        """Remove a namespace that is being deleted, once nothing is left in it."""
        namespace = self.store.find(r.NAMESPACES, ("", name))
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return
        if not any(self.store.list(inner, name) for inner in self.verbs.catalog if inner.namespaced):
            self.verbs.release(r.NAMESPACES, ("", name))

    def _remove_old_events(self) -> None:
        """Remove events older than EVENT_SECONDS, and the oldest above EVENT_LIMIT."""
        events = sorted(self.store.list(r.EVENTS), key=lambda e: e["metadata"]["creationTimestamp"])
        now = datetime.now(UTC)
        for number, event in enumerate(events):
            created = datetime.fromisoformat(event["metadata"]["creationTimestamp"])
            old = (now - created).total_seconds() > EVENT_SECONDS
            if not old and len(events) - number <= EVENT_LIMIT:
                return
            self.verbs.remove(r.EVENTS, key_of(event))
