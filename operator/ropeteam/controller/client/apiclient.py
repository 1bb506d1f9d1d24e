"""The API server, as a few requests that are safe to repeat.

Every request here is idempotent (fixed names, UID preconditions, resourceVersion), so that throttling, server
errors and broken connections are simply retried. Errors that a retry cannot mend surface as one of a few
exceptions: `OwnedObjectExists` and `AlreadyGone` mean that the requested state is there already, `Conflict`
that the caller read a stale object.
Limits: objects are raw dicts; nothing is validated here, the server does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Self

import aiohttp
import orjson

from ropeteam.api.job import API_VERSION, PLURAL
from ropeteam.controller.client import boundedjson
from ropeteam.controller.client.access import Access
from ropeteam.errors import AlreadyDone, RequestError
from ropeteam_trainer.contract.errors import RopeteamError

Object = dict[str, Any]

_ATTEMPTS = 5
_CONCURRENT_REQUESTS = 100
"""Watches are not counted."""
_CHANCE = SystemRandom()
_RETRYABLE = {429, 500, 502, 503, 504}
REFUSALS = {400, 403, 422}
"""Statuses that are not retried: the same request gets the same answer, until something is changed."""
_LARGEST_ANSWER = 64 << 20
_TIMEOUT = aiohttp.ClientTimeout(total=30, connect=5)
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5)
CLUSTER_WIDE = frozenset({"Node", "Namespace", "CustomResourceDefinition"})
"""Kinds without a namespace."""
_API_PATHS = {
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "Node": ("/api/v1", "nodes"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Namespace": ("/api/v1", "namespaces"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "TrainingJob": (f"/apis/{API_VERSION}", PLURAL),
}

_UNREADABLE_KINDS = frozenset({"Secret", "Event", "NetworkPolicy"})
"""Kinds that our role does not let us read; their names identify the owner."""


class ApiError(RequestError):
    """An error status, with the API server's own message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class NotFound(ApiError):
    """404."""


class NoSuchKind(NotFound):
    """404: the server does not serve the kind."""


class QuotaExceeded(ApiError):
    """403: the object would exceed a ResourceQuota. Servers check quotas last, even before they notice that
    the object exists."""


class Conflict(ApiError):
    """409: the object has changed since it was read, or the name is taken."""


class Fenced(RopeteamError):
    """This process may not write any more: another operator may lead."""


class OwnedObjectExists(AlreadyDone):
    """The object to create exists, and its owner is the one that we would have set."""


class AlreadyGone(AlreadyDone):
    """The object to delete does not exist, or another object has its name by now."""


@dataclass(frozen=True)
class ObjectRef:
    """An object's address. `name` empty: all of the kind; `namespace` empty: in all namespaces, or none."""

    kind: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        """The URL's path. Raises KeyError for a kind that is not in `_API_PATHS`."""
        base, plural = _API_PATHS[self.kind]
        parts = [base, *(["namespaces", self.namespace] if self.namespace else []), plural]
        return "/".join(part for part in (*parts, self.name, self.subresource) if part)

    @classmethod
    def knows(cls, kind: str) -> bool:
        """Whether objects of this kind have a `path`."""
        return kind in _API_PATHS

    @classmethod
    def of(cls, obj: Object) -> ObjectRef:
        """The address of this object, without a subresource."""
        meta = obj["metadata"]
        return cls(obj["kind"], meta.get("namespace", ""), meta["name"])


def _new_session(access: Access) -> aiohttp.ClientSession:
    """A connection pool. Its size has no limit: `ApiClient` limits requests, and watches stay open."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=access.tls or True))


class ApiClient:
    """One connection pool. Use as `async with ApiClient(load) as client`, where `load` reads server and
    credentials (again). `may_write` is called right before each write is sent; if false, the write raises
    Fenced. Entering raises what `load` raises. `count_answer` is called with method and status of each
    answer. `connect` opens a pool of connections; `chance` is for jitter.

    All methods raise connection errors, also as TimeoutError and OSError, and those that write raise Fenced.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Access]],
        may_write: Callable[[], bool] = lambda: True,
        count_answer: Callable[[str, int], None] = lambda *_: None,
        connect: Callable[[Access], aiohttp.ClientSession] = _new_session,
        chance: Random = _CHANCE,
    ) -> None:
        self._load, self._may_write, self._count_answer = load, may_write, count_answer
        self._connect, self.chance = connect, chance
        self._access: Access | None = None
        self._session: aiohttp.ClientSession | None = None
        """Both None: outside of the `async with`."""
        self._connecting = asyncio.Lock()
        self._limit = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        """Acquired before a request's timeout begins; while one waits for a connection pool, it would run."""

    async def __aenter__(self) -> Self:
        await self._reconnect(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def _reconnect(self, refused: Access | None) -> None:
        """Load credentials (again) and open a new pool with them. Does nothing if the credentials in use are
        no longer those that were `refused`: another caller was first. Raises what `load` raises."""
        async with self._connecting:
            if self._access is not refused:
                return
            old, self._access = self._session, await self._load()
            self._session = self._connect(self._access)
            if old is not None:
                await old.close()  # breaks its other requests: they are repeated with the new credentials

    async def get(self, ref: ObjectRef, parse: Callable[[bytes], Object] | None = None) -> Object:
        """Read one object. `parse` reads the answer. Raises NotFound, ApiError."""
        return await self.request("GET", ref.path, parse=parse)

    async def items(self, ref: ObjectRef, labels: str = "") -> list[Object]:
        """List all objects of a kind, in one page. `labels`: a selector; "": all. Only for short lists: an
        informer pages. Raises ApiError, ResponseTooLarge."""
        answer = await self.request("GET", ref.path, params={"labelSelector": labels} if labels else {})
        return list(answer["items"])

    async def create(self, obj: Object, *, dry_run: bool = False) -> Object:
        """Create an object; returns it as the API server has it. Raises OwnedObjectExists, without looking at
        the object for kinds that we may not read; Conflict, if an object of another owner has the name;
        QuotaExceeded; ApiError. `dry_run`: the server checks the object and stores nothing."""
        ref = ObjectRef.of(obj)
        params = {"dryRun": "All"} if dry_run else {}
        try:
            return await self.request("POST", _collection_path(ref), body=obj, params=params)
        except Conflict:
            if ref.kind in _UNREADABLE_KINDS or _first_owner(obj) == _first_owner(await self.get(ref)):
                raise OwnedObjectExists from None
            raise

    async def delete(self, ref: ObjectRef, *, uid: str, grace_seconds: int | None = None) -> Object:
        """Delete the object with this UID, and its dependents in the background. Returns the terminating
        object, or a Status if it is gone already. `grace_seconds` None: the object's own. Raises AlreadyGone,
        ApiError."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        options["propagationPolicy"] = "Background"
        try:
            return await self.request("DELETE", ref.path, body=options)
        except (NotFound, Conflict):
            raise AlreadyGone from None

    async def replace(
        self, obj: Object, subresource: str = "", parse: Callable[[bytes], Object] | None = None
    ) -> Object:
        """Replace an object, or its `subresource`; returns it as the API server has it now. `parse` reads
        that answer. Raises Conflict if `metadata.resourceVersion` is not the latest; NotFound; ApiError."""
        ref = ObjectRef.of(obj)
        path = ObjectRef(ref.kind, ref.namespace, ref.name, subresource).path
        return await self.request("PUT", path, body=obj, parse=parse)

    async def merge(self, ref: ObjectRef, patch: Object) -> Object:
        """Send a JSON merge patch; returns the object as the API server has it now. Raises Conflict if the
        patch has another UID or resourceVersion than the object; NotFound; ApiError."""
        return await self.request("PATCH", ref.path, body=patch)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: dict[str, str] | None = None,
        most_bytes: int = _LARGEST_ANSWER,
        parse: Callable[[bytes], Object] | None = None,
    ) -> Object:
        """Send one request; returns the answer below status 400, as `parse` reads it. Raises ApiError,
        ResponseTooLarge, or the last connection error.

        Up to `_ATTEMPTS` times, with growing pauses, or as long as the server's Retry-After says: a 401 loads
        the credentials again; throttling, server errors and connection errors are repeated; all other
        statuses raise at once.
        """
        for left in reversed(range(_ATTEMPTS)):
            used = self._access
            try:
                async with self._limit, self._send(method, path, body, params or {}) as answer:
                    content = await boundedjson.read_body(answer, most_bytes)
                    if answer.status < 400:
                        return (parse or _parse_answer)(content)
                    if answer.status == 401 and left:
                        await self._reconnect(used)
                    elif answer.status not in _RETRYABLE or not left:
                        raise _error_of(answer.status, content)
                    wait = _retry_after_seconds(answer)
            except (aiohttp.ClientError, TimeoutError):
                if not left:
                    raise
                wait = 0.0
            await asyncio.sleep(max(wait, 0.05 * 3 ** (_ATTEMPTS - 1 - left)) * self.chance.uniform(0.7, 1.3))
        raise AssertionError("the last try returns or raises")

    @asynccontextmanager
    async def watch(self, path: str, params: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """An open watch, whose lines the caller reads; one attempt. 75 s without data break it: a server
        writes a bookmark each minute. Raises ApiError; after a 401 the credentials are new for the next
        attempt."""
        endless = aiohttp.ClientTimeout(total=None, connect=5, sock_read=75)
        used = self._access
        async with self._send("GET", path, None, {**params, "watch": "true"}, endless) as answer:
            if answer.status == 401:
                await self._reconnect(used)
            if answer.status >= 400:
                raise _error_of(answer.status, await answer.read())
            yield answer

    @asynccontextmanager
    async def open(
        self,
        path: str,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        *,
        any_status: bool = False,
        endless: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one GET, once, and yield the open answer, which need not be JSON: a log, or an answer through
        a Service's proxy. `endless`: without a timeout, for a log that is followed. Raises ApiError for a
        status of 400 or more, unless `any_status`.
        """
        limits = _NO_TIMEOUT if endless else _TIMEOUT
        async with self._send("GET", path, None, params or {}, limits, headers) as answer:
            if answer.status >= 400 and not any_status:
                raise _error_of(answer.status, await answer.read())
            yield answer

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        params: dict[str, str],
        limits: aiohttp.ClientTimeout = _TIMEOUT,
        headers: dict[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, once, and yield the open answer, of any status. Raises Fenced for a write that
        `may_write` does not permit, connection errors. The check comes after the headers, whose token may
        take a while: nothing is awaited between it and the request.
        """
        if self._session is None or self._access is None:
            raise RuntimeError("use ApiClient in an `async with`")
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        all_headers = {**(headers or {}), **await self._access.headers(), "Content-Type": content_type}
        data = None if body is None else orjson.dumps(body)
        if method != "GET" and not self._may_write():
            raise Fenced(f"{method} {path} was not sent: this operator is no longer the leader")
        try:
            async with self._session.request(
                method,
                self._access.server + path,
                data=data,
                params=params,
                headers=all_headers,
                timeout=limits,
            ) as answer:
                self._count_answer(method, answer.status)
                yield answer
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # _reconnect has closed the session: aiohttp cancels the DNS lookups that its requests wait for
            text = f"{method} {path} was interrupted, because the credentials are loaded again"
            raise aiohttp.ClientConnectionError(text) from None


def _collection_path(ref: ObjectRef) -> str:
    """The path of all objects of this kind and namespace, to which a new one is posted."""
    return ObjectRef(ref.kind, ref.namespace).path


def _first_owner(obj: Object) -> tuple[str, bool]:
    """UID of the first owner, "" if there is none, and whether it controls the object."""
    owners = obj["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", "")), bool(owners[0].get("controller"))


def _parse_answer(content: bytes) -> Object:
    """The answer as an object; one that is another value is `{"value": ...}`. Raises
    orjson.JSONDecodeError."""
    parsed = boundedjson.loads(content or b"{}")
    return parsed if isinstance(parsed, dict) else {"value": parsed}


def _error_of(status: int, content: bytes) -> ApiError:
    """The error of an answer, with the message in its Status, or the begin of a text that is none."""
    try:
        message = str(_parse_answer(content)["message"])
    except (ValueError, KeyError):
        message = content[:500].decode(errors="replace") or f"HTTP {status}"
    return _error_type(status, message)(status, message)


def _error_type(status: int, message: str) -> type[ApiError]:
    """The class of an error. Where several have the same status and reason, the server's text decides."""
    match status:
        case 403 if "exceeded quota" in message:
            return QuotaExceeded
        case 404 if "could not find the requested resource" in message:
            return NoSuchKind
        case 404:
            return NotFound
        case 409:
            return Conflict
    return ApiError


def _retry_after_seconds(answer: aiohttp.ClientResponse) -> float:
    """Seconds that the server requests to wait, 10 at most. 0: none, or a date, which no API server sends."""
    try:
        return min(float(answer.headers.get("Retry-After", "0")), 10.0)
    except ValueError:
        return 0.0
