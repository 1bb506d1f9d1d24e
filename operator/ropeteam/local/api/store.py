"""Objects in memory: one revision counter, one history of events, listeners that are called after each write.

Stored objects are never changed in place: a write replaces the object, so a reader may keep an old one.
History is bounded; a request for an older revision gets 410, as after a compaction of etcd.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from ropeteam.local.resources import Object, Resource, StatusError

Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""


def copy_of(value: Object) -> Object:
    copied: Object = orjson.loads(orjson.dumps(value))
    return copied


def key_of(value: Object) -> Key:
    return value["metadata"].get("namespace", ""), value["metadata"]["name"]


@dataclass(frozen=True)
class Event:
    """One write. `before` is None for ADDED."""

    revision: int
    resource: Resource
    type: str
    object: Object
    before: Object | None


class Store:
    """All objects of the cluster. Not thread-safe."""

    def __init__(self, history: int = 20_000) -> None:
        self.revision = 1
        self.compacted = 1
        self.listeners: list[Callable[[Event], None]] = []
        self.by_uid: dict[str, tuple[Resource, Key]] = {}
        self._objects: dict[str, dict[Key, Object]] = {}
        self._history: deque[Event] = deque()
        self._history_limit = history

    def find(self, resource: Resource, key: Key) -> Object | None:
        return self._objects.get(resource.name, {}).get(key)

    def get(self, resource: Resource, key: Key) -> Object:
        found = self.find(resource, key)
        if found is None:
            raise resource.not_found(key[1])
        return found

    def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """Objects of a kind in order of namespace and name."""
        stored = self._objects.get(resource.name, {})
        return [stored[key] for key in sorted(stored) if not namespace or key[0] == namespace]

    def put(self, resource: Resource, new: Object) -> Object:
        """Store `new` under its name. The caller has checked the write, and no longer uses the object."""
        key = key_of(new)
        before = self.find(resource, key)
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        self._objects.setdefault(resource.name, {})[key] = new
        self.by_uid[new["metadata"]["uid"]] = resource, key
        self._publish(Event(self.revision, resource, "MODIFIED" if before else "ADDED", new, before))
        return new

    def remove(self, resource: Resource, key: Key) -> Object:
        before = self.get(resource, key)
        last = copy_of(before)
        self.revision += 1
        last["metadata"]["resourceVersion"] = str(self.revision)
        del self._objects[resource.name][key], self.by_uid[last["metadata"]["uid"]]
        self._publish(Event(self.revision, resource, "DELETED", last, before))
        return last

    def compact(self) -> None:
        """Drop all history."""
        self._history.clear()
        self.compacted = self.revision

    @contextmanager
    def watch(self, resource: Resource, since: int) -> Iterator[asyncio.Queue[Event]]:
        """A queue of every event after revision `since`. Raises 410 when that is compacted."""
        if since < self.compacted:
            message = f"too old resource version: {since} ({self.compacted})"
            raise StatusError(410, "Expired", message)
        queue: asyncio.Queue[Event] = asyncio.Queue()
        for event in self._history:
            if event.revision > since and event.resource.name == resource.name:
                queue.put_nowait(event)

        def listener(event: Event) -> None:
            if event.resource.name == resource.name:
                queue.put_nowait(event)

        self.listeners.append(listener)
        try:
            yield queue
        finally:
            self.listeners.remove(listener)

    def _publish(self, event: Event) -> None:
        self._history.append(event)
        if len(self._history) > self._history_limit:
            self.compacted = self._history.popleft().revision
        for listener in tuple(self.listeners):
            listener(event)
