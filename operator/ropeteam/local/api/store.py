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
    """A deep copy of an object in JSON."""
    copied: Object = orjson.loads(orjson.dumps(value))
    return copied


def key_of(value: Object) -> Key:
    return value["metadata"].get("namespace", ""), value["metadata"]["name"]


@dataclass(frozen=True)
class Event:
    """One write. `type`: ADDED, MODIFIED or DELETED. `before`: the object before it, None for ADDED. `object`
    of a DELETED is the last state, with the resourceVersion of the deletion."""

    revision: int
    resource: Resource
    type: str
    object: Object
    before: Object | None


class Store:
    """All objects of the cluster. Not thread-safe."""

    def __init__(self, history: int = 20_000) -> None:
        self.revision = 1
        """resourceVersion of the last write."""
        self.compacted = 1
        """Oldest revision from which a watch may start."""
        self.listeners: list[Callable[[Event], None]] = []
        """Called with each write, in the write itself: a listener must not write."""
        self.by_uid: dict[str, tuple[Resource, Key]] = {}
        self._objects: dict[str, dict[Key, Object]] = {}
        self._history: deque[Event] = deque()
        self._history_limit = history

    def find(self, resource: Resource, key: Key) -> Object | None:
        """The stored object itself: do not change it. None: it does not exist."""
        return self._objects.get(resource.name, {}).get(key)

    def get(self, resource: Resource, key: Key) -> Object:
        """As `find`. Raises 404 if it does not exist."""
        found = self.find(resource, key)
        if found is None:
            raise resource.not_found_error(key[1])
        return found

    def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """Stored objects of a kind in order of namespace and name. `namespace`: empty for all."""
        stored = self._objects.get(resource.name, {})
        return [stored[key] for key in sorted(stored) if not namespace or key[0] == namespace]

    def put(self, resource: Resource, new: Object) -> Object:
        """Create or replace the object of this name. Sets its resourceVersion and returns it. The caller has
        checked the write, and no longer changes `new`."""
        key = key_of(new)
        before = self.find(resource, key)
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        self._objects.setdefault(resource.name, {})[key] = new
        self.by_uid[new["metadata"]["uid"]] = resource, key
        self._publish(Event(self.revision, resource, "MODIFIED" if before else "ADDED", new, before))
        return new

    def remove(self, resource: Resource, key: Key) -> Object:
        """Remove an object. Returns its last state, with the resourceVersion of the removal. Raises 404."""
        before = self.get(resource, key)
        last = copy_of(before)
        self.revision += 1
        last["metadata"]["resourceVersion"] = str(self.revision)
        del self._objects[resource.name][key], self.by_uid[last["metadata"]["uid"]]
        self._publish(Event(self.revision, resource, "DELETED", last, before))
        return last

    def compact(self) -> None:
        """Drop all history: watches from an older revision get 410."""
        self._history.clear()
        self.compacted = self.revision

    @contextmanager
    def watch(self, resource: Resource, since: int) -> Iterator[asyncio.Queue[Event]]:
        """A queue of all events of a kind after revision `since`, past ones first; it is filled until the
        context ends. Raises 410 when `since` is compacted."""
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
        """Append a write to the history, which drops its oldest beyond the limit, and call the listeners."""
        self._history.append(event)
        if len(self._history) > self._history_limit:
            self.compacted = self._history.popleft().revision
        for listener in tuple(self.listeners):
            listener(event)
