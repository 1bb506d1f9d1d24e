"""A cache of objects of the API server: list, watch, and list again when the watch cannot be
resumed.

Five guarantees that kopf's watching does not give:
  - a list after a gap is compared with what was known, so that deletions during the gap are noticed;
  - after any error in the stream the watch is resumed or the objects are listed; none ends the process;
  - an object that cannot be read affects no other: it is skipped, logged and counted;
  - the objects of a page of a list are reduced (`WatchSpec.reduce`) before the next page is requested;
  - our own writes are in the cache at once (`upsert`), and an older version never replaces them.
Limits: a cache, not the truth: irreversible requests carry a UID or a resourceVersion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import aiohttp

from ropeteam.controller import metrics
from ropeteam.controller.client import boundedjson
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef

T = TypeVar("T")

_PAGE_SIZE = 500
_PAGE_BYTES = 2 << 20
"""Limit of a page of more than one object: parsed it is some ten times as large."""
LARGEST_OBJECT = 20 << 20
"""As JSON. A server takes 3 MiB in a request, and may write six bytes for one (`<` is `\\u003c`)."""
_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 5.0
"""Seconds before the next attempt to list or watch."""
_HEALTHY_SECONDS = 5.0
"""An attempt that lasted for so long ends the backoff."""

_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, boundedjson.ResponseTooLarge)
"""Errors for an answer that is no JSON, no list or no event: a proxy in front of an API server may answer."""
_WATCH_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ApiError, *_UNREADABLE)

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """The owner of an object: a job (or, for nodes, the node itself with an empty namespace)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class WatchSpec(Generic[T]):
    """The objects to cache, and the part of them. The callbacks must not block; `key` and `read` may raise
    anything, and the object is then skipped."""

    kind: str
    labels: str
    """Label selector; empty: all."""
    key: Callable[[Object], Key | None]
    """The owner. None: the object is not cached."""
    read: Callable[[Object], T]
    """The value to cache. Two equal values are no change."""
    parse: Callable[[bytes], Object] = boundedjson.loads
    """Parse a line of a watch. Raises orjson.JSONDecodeError."""
    reduce: Callable[[Key, T], T] = lambda _, value: value
    """The value as it is to be cached, reduced to the memory that is free. Called once for each value, after
    `on_evict` for the value that it replaces."""
    on_evict: Callable[[Key, T], None] = lambda *_: None
    """Called when a value that `reduce` returned leaves the cache."""
    on_delete: Callable[[T], None] = lambda _: None
    """Called with the last value of a deleted object, which may not have been cached before."""


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One cached object."""

    key: Key
    uid: str
    version: int
    """resourceVersion, compared as a number: a revision of etcd."""
    value: T


class Informer(Generic[T]):
    """The objects that `spec` selects in `namespace` (empty: in all). `on_change(key)` is called after the
    cache has changed. Empty until `run` or `list` has listed.
    """

    def __init__(
        self, client: ApiClient, spec: WatchSpec[T], on_change: Callable[[Key], None], namespace: str = ""
    ) -> None:
        self._client, self._spec, self._on_change, self.namespace = client, spec, on_change, namespace
        self._path = ObjectRef(spec.kind, namespace).path
        self._selector = {"labelSelector": spec.labels} if spec.labels else {}
        self._entries: dict[str, Entry[T]] = {}
        """By UID."""
        self._by_key: dict[Key, dict[str, Entry[T]]] = {}
        """By key and UID: the entries of `_entries`."""
        self._version: str | None = None
        """resourceVersion to watch from; None: list first."""
        self._unreadable = set[str]()
        """UIDs of objects that are logged already; cleared by each list."""
        self._received_at: float | None = None
        """When the API server last sent something, by the event loop's clock. None: never."""
        self._stream: aiohttp.ClientResponse | None = None
        """The open watch, or the last one."""
        self.synced = asyncio.Event()
        """Set once the objects have been listed."""
        self.lists = 0
        """Number of complete lists."""

    def values_of(self, key: Key) -> tuple[T, ...]:
        """The values of all objects of `key`; empty: none is known."""
        return tuple(entry.value for entry in self._by_key.get(key, {}).values())

    def values(self) -> Iterator[T]:
        """The values of all objects. The cache must not change meanwhile: no await between two of them."""
        return (entry.value for entry in self._entries.values())

    def known_keys(self) -> tuple[Key, ...]:
        """The keys of all objects, each once."""
        return tuple(self._by_key)

    def knows_any(self) -> bool:
        """Whether any object is cached."""
        return bool(self._by_key)

    @property
    def kind(self) -> str:
        return self._spec.kind

    def age_seconds(self) -> float:
        """Seconds since the last list, or the last line of a watch: the age of this cache. 0.0 before the
        start; afterwards it counts from the start until something is received."""
        return 0.0 if self._received_at is None else asyncio.get_running_loop().time() - self._received_at

    def has_change(self, uid: str, version: int, *, deleted: bool) -> bool:
        """Whether the cache contains this change of an object, or a later one. `deleted`: the change is the
        deletion. For an object that cannot be read the answer is always yes: it is not cached on purpose.
        """
        if uid in self._unreadable:
            return True
        entry = self._entries.get(uid)
        return entry is None if deleted else entry is not None and entry.version >= version

    def relist(self) -> None:
        """Make `run` list all objects again soon; closes an open watch."""
        self._version = None
        if self._stream is not None:
            self._stream.close()

    def upsert(self, obj: Object) -> None:
        """Cache the API server's answer to our own write. Ignored if the watch is at a newer version: then it
        has had this object, or its deletion."""
        if int(obj["metadata"]["resourceVersion"]) > int(self._version or 0):
            self._apply_object(obj)

    def remove_object(self, uid: str) -> None:
        """Remove an object that the API server has answered with 404."""
        self._drop_entry(uid)

    async def run(self) -> None:
        """Keep the cache up to date until cancelled: list, then watch; again with backoff after
        `_WATCH_ERRORS`.

        A watch that ends is resumed from its last version. The objects are listed instead if there is no such
        version (the first time, or after `relist` or an ERROR event), if the server no longer has it (410),
        or if an answer could not be read, and so may have been skipped.
        """
        backoff, loop = 0.0, asyncio.get_running_loop()
        self._received_at = loop.time()
        while True:
            began = loop.time()
            try:
                if self._version is None:
                    await self.list()
                await self._watch()
            except _WATCH_ERRORS as error:
                unreadable = isinstance(error, _UNREADABLE)
                if unreadable or (isinstance(error, ApiError) and error.status == 410):
                    self._version = None
                level = logging.WARNING if unreadable else logging.DEBUG
                name = type(error).__name__
                log.log(level, "watch of %s failed, trying again: %s: %s", self.kind, name, error)
            lasted = loop.time() - began > _HEALTHY_SECONDS
            backoff = _MIN_BACKOFF if lasted else min(max(_MIN_BACKOFF, backoff * 2), _MAX_BACKOFF)
            await asyncio.sleep(backoff * self._client.chance.uniform(0.5, 1.5))

    async def list(self) -> None:
        """List all objects, in pages, and call `on_change` for those that changed since they were known.
        Those that are gone are dropped after the last page. Sets the version to watch from, and `synced`.
        Raises ApiError, ResponseTooLarge, connection errors, and for an answer in another form any of
        `_UNREADABLE`.

        A page that is too large is requested again with a fifth of the objects; later pages grow again. One
        object alone may have `LARGEST_OBJECT` bytes.
        """
        params, limit, listed = {**self._selector}, _PAGE_SIZE, set[str]()
        self._unreadable.clear()
        while True:
            params["limit"] = str(limit)
            max_bytes = _PAGE_BYTES if limit > 1 else LARGEST_OBJECT
            try:
                page = await self._client.request("GET", self._path, params=params, most_bytes=max_bytes)
            except boundedjson.ResponseTooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 5, 1)
                continue
            for entry in filter(None, map(self._parse_entry, page["items"] or ())):
                listed.add(entry.uid)
                self._store_entry(entry)
            limit = min(limit * 5, _PAGE_SIZE)
            token = page["metadata"].get("continue")
            if not token:
                break
            params["continue"] = token
        self._version = page["metadata"]["resourceVersion"]
        self._drop_unlisted(listed, int(self._version or 0))
        self.lists += 1
        self._mark_received()
        self.synced.set()

    def _drop_unlisted(self, listed: set[str], version: int) -> None:
        """Drop the objects that a list of this version has not: deleted, or unreadable now."""
        for uid, entry in tuple(self._entries.items()):
            if uid not in listed and entry.version <= version:  # a newer one: created by us after this list
                self._drop_entry(uid)

    async def _watch(self) -> None:
        """Watch from `_version`, and apply events until the watch ends: by its timeout, or because the
        objects have to be listed again (`_version` is None then). Raises as `list`."""
        params = {
            **self._selector,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(self._client.chance.randint(290, 580)),  # as client-go: not all at once
        }
        async with self._client.watch(self._path, params) as self._stream:
            self._mark_received()
            async for line in boundedjson.read_lines(self._stream.content, LARGEST_OBJECT):
                if self._version is None or not self._apply_event(self._spec.parse(line)):
                    self._version = None
                    return
                self._mark_received()

    def _mark_received(self) -> None:
        """Record that the API server has sent something: `age_seconds` is 0 now."""
        self._received_at = asyncio.get_running_loop().time()

    def _apply_event(self, event: Object) -> bool:
        """Apply one event of a watch. False: the watch is of no more use (any ERROR, not only 410). Raises
        LookupError, TypeError for an event in another form."""
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            log.debug("watch of %s: %s", self._spec.kind, obj.get("message"))
            return False
        self._version = obj["metadata"]["resourceVersion"]
        if kind == "DELETED":
            self._apply_deletion(obj)
        elif kind != "BOOKMARK":
            self._apply_object(obj)
        return True

    def _apply_deletion(self, obj: Object) -> None:
        """Drop a deleted object. Its last state, which the event has, goes to `on_delete` first: it may be
        newer than the cached one."""
        entry, uid = self._parse_entry(obj), obj["metadata"]["uid"]
        if entry is not None:
            self._spec.on_delete(entry.value)
        if (
            entry is not None and uid not in self._entries
        ):  # removed before (`remove_object`), or never cached
            self._on_change(entry.key)
        self._drop_entry(uid)

    def _apply_object(self, obj: Object) -> None:
        """Store an object as it is now. One that is not to be cached any more, or cannot be read, is
        dropped: what was known of it is not true any more."""
        entry = self._parse_entry(obj)
        if entry is None:
            self._drop_entry(obj["metadata"]["uid"])
        else:
            self._store_entry(entry)

    def _parse_entry(self, obj: Object) -> Entry[T] | None:
        """The entry of an object. None: it is not to be cached, or cannot be read, which is recorded."""
        meta = obj["metadata"]
        try:
            key = self._spec.key(obj)
            if key is None:
                return None
            return Entry(key, meta["uid"], int(meta["resourceVersion"]), self._spec.read(obj))
        except Exception as error:  # whatever a tenant has written
            self._record_unreadable(meta, error)
            return None

    def _record_unreadable(self, meta: Object, error: Exception) -> None:
        """Count an object that cannot be read, and log it, once between two lists."""
        metrics.UNREADABLE.labels(kind=self.kind).inc()
        if meta["uid"] not in self._unreadable:
            self._unreadable.add(meta["uid"])
            name = Key(meta.get("namespace", ""), meta["name"])
            log.warning(
                "skipped %s %s, which cannot be read: the operator acts as if it did not exist until it is "
                "changed: %s: %s",
                self.kind,
                name,
                type(error).__name__,
                error,
            )

    def _store_entry(self, entry: Entry[T]) -> None:
        """Cache an entry, unless the cached one is as new. Calls `on_evict` for the one that it replaces,
        then `reduce`, and `on_change` if the reduced value is another one than before."""
        old = self._entries.get(entry.uid)
        if old is not None and old.version >= entry.version:
            return
        if old is not None and old.key != entry.key:
            self._drop_entry(entry.uid)
        elif old is not None:
            self._spec.on_evict(old.key, old.value)
        entry = replace(entry, value=self._spec.reduce(entry.key, entry.value))
        self._entries[entry.uid] = entry
        self._by_key.setdefault(entry.key, {})[entry.uid] = entry
        if old is None or old.value != entry.value:
            self._on_change(entry.key)

    def _drop_entry(self, uid: str) -> None:
        """Remove an entry, and call `on_evict` and `on_change`. Does nothing if it is not cached."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        self._spec.on_evict(entry.key, entry.value)
        siblings = self._by_key[entry.key]
        del siblings[uid]
        if not siblings:
            del self._by_key[entry.key]
        self._on_change(entry.key)


class MultiNamespaceInformer(Generic[T]):
    """Informers of one kind in several namespaces, read as one. The methods are those of Informer; no parts:
    nothing is known."""

    def __init__(self, parts: Iterable[Informer[T]]) -> None:
        self.parts = tuple(parts)

    def values_of(self, key: Key) -> tuple[T, ...]:
        return tuple(value for part in self.parts for value in part.values_of(key))

    def values(self) -> Iterator[T]:
        return (value for part in self.parts for value in part.values())

    def known_keys(self) -> tuple[Key, ...]:
        return tuple(key for part in self.parts for key in part.known_keys())

    def knows_any(self) -> bool:
        return any(part.knows_any() for part in self.parts)

    def has_change(self, uid: str, version: int, *, deleted: bool) -> bool:
        """As of Informer. An object is in one part only, so that each other part has its deletion."""
        having = (part.has_change(uid, version, deleted=deleted) for part in self.parts)
        return all(having) if deleted else any(having)

    def relist(self, namespace: str) -> None:
        """As of Informer, where objects of this namespace are."""
        for part in self.parts:
            if part.namespace in ("", namespace):
                part.relist()

    def upsert(self, obj: Object) -> None:
        """As of Informer, in the part of the object's namespace."""
        for part in self.parts:
            if part.namespace in ("", obj["metadata"].get("namespace")):
                part.upsert(obj)

    def remove_object(self, uid: str) -> None:
        """As of Informer, in whichever part has it."""
        for part in self.parts:
            part.remove_object(uid)
