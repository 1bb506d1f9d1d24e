"""The HTTP side of the cluster: paths to verbs, watches, logs, the proxy to Services."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from ropeteam.local import resources as r
from ropeteam.local.api import decode, discovery, listing, selectors
from ropeteam.local.api.store import Event, key_of
from ropeteam.local.api.validation import RequestOptions
from ropeteam.local.api.verbs import Verbs
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.node.kubelet import Kubelet
from ropeteam.local.node.services import Services
from ropeteam.local.resources import Object, Resource, StatusError, invalid

_OPEN = (["healthz"], ["livez"], ["readyz"], ["version"])
_RETURNED = (r.PODS, r.SERVICES, r.CLAIMS)
"""Kinds for which a deletion returns the object, also when it is gone."""
_NOT_FORWARDED = (
    "authorization",
    "host",
    "connection",
    "transfer-encoding",
    "content-length",
    "content-encoding",
)

_NOT_SERVED = {"exec": "exec", "attach": "attach", "portforward": "port-forward"}


@dataclass(frozen=True)
class Target:
    """The target of a path. `rest`: the part after a subresource."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    rest: str


class ApiServer:
    """The HTTP server; requests need `token`."""

    def __init__(self, verbs: Verbs, kubelet: Kubelet, services: Services, token: str) -> None:
        self.verbs, self.store, self.catalog = verbs, verbs.store, verbs.catalog
        self.kubelet, self.services, self._token = kubelet, services, token
        self.bookmark_seconds = 30.0
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self, host: str) -> str:
        """Start to serve. Returns the URL."""
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
        if self._session:
            await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Authenticate and answer a request; a StatusError becomes its Status.

        The token is a bearer, or the first part of the path: kubectl sends no bearer over plain HTTP.
        """
        parts = [part for part in request.path.split("/") if part]
        try:
            bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if parts and self._is_token(parts[0]):
                del parts[0]
            elif not self._is_token(bearer) and parts not in _OPEN:
                raise StatusError(401, "Unauthorized", "Unauthorized")
            return await self._answer(request, parts)
        except StatusError as error:
            return _json(error.status(), error.code)
        except ValueError as error:
            return _json(StatusError(400, "BadRequest", f"the request is invalid: {error}").status(), 400)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())

    async def _answer(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        if parts == ["openapi", "v2"]:  # an empty document in protobuf: kubectl up to 1.28 requires one
            return web.Response(content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        if parts in (["healthz"], ["livez"], ["readyz"]):
            return web.Response(text="ok")
        document = discovery.document(self.catalog, parts)
        if document is not None:
            if request.method != "GET":
                raise decode.not_allowed()
            return _json(document)
        target = self._target(parts)
        if target.subresource == "proxy":
            return await self._proxy(request, target)
        if target.subresource == "log":
            return await self._log(request, target)
        if target.subresource in _NOT_SERVED:
            raise self._not_served(target)
        if target.subresource not in ("", "status") or (
            target.subresource and not target.resource.has_status
        ):
            raise r.path_not_found()
        if request.method == "GET":
            return await self._read(request, target)
        body = await request.read()
        return self._write(request, target, body)

    def _not_served(self, target: Target) -> StatusError:
        pod = self.store.get(r.PODS, (target.namespace, target.name))
        uid, address = pod["metadata"]["uid"], pod["status"].get("podIP", "unknown yet")
        text = (
            f"the local cluster has no {_NOT_SERVED[target.subresource]}: a pod is processes of this "
            f"machine, with address {address}, where its ports are open. Its processes: "
            f"grep -lsz {uid} /proc/[0-9]*/environ"
        )
        return StatusError(501, "NotImplemented", text)

    def _target(self, parts: list[str]) -> Target:
        match parts:
            case ["api", version, _, *_]:
                group, rest = "", parts[2:]
            case ["apis", group, version, _, *_]:
                rest = parts[3:]
            case _:
                raise r.path_not_found()
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        resource = self.catalog.find(group, version, rest[0])
        name, subresource = [*rest, "", ""][1:3]
        return Target(resource, namespace, name, subresource, "/".join(rest[3:]))

    async def _read(self, request: web.Request, target: Target) -> web.StreamResponse:
        query, resource = request.query, target.resource
        if target.name:
            found = self.store.get(resource, (target.namespace, target.name))
            if version := query.get("resourceVersion"):
                decode.revision(version, self.store.revision)
            return _json(self._represented(request, resource, found))
        selected = query.get("labelSelector", ""), query.get("fieldSelector", "")
        test = selectors.parse(*selected, resource)
        if _is_true(query, "watch"):
            return await self._watch(request, target, test)
        items = [item for item in self.store.list(resource, target.namespace) if test(item)]
        return _json(
            self._represented(request, resource, listing.listed(resource, items, query, self.store.revision))
        )

    def _represented(self, request: web.Request, resource: Resource, plain: Object) -> Object:
        accept, include = request.headers.get("Accept", ""), request.query.get("includeObject", "")
        return listing.shaped(accept, include, resource, plain)

    async def _watch(self, request: web.Request, target: Target, test: selectors.Test) -> web.StreamResponse:
        query, resource = request.query, target.resource
        decode.check_match(query, watches=True)
        if query.get("continue"):
            why = "resourceVersionMatch is forbidden when continue is provided"
            error = FieldError.forbidden("resourceVersionMatch", why)
            raise invalid("ListOptions", "meta.k8s.io", "", [error])
        since = _since(query.get("resourceVersion") or "0")
        seconds = decode.number(query.get("timeoutSeconds") or "0") or 10**9
        wants_initial = _is_true(query, "sendInitialEvents")
        initial = wants_initial or (since == 0 and "sendInitialEvents" not in query)
        since = since or self.store.revision
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            with self.store.watch(resource, self.store.revision if initial else since) as queue:
                await response.prepare(request)
                send = _Sender(response, lambda value: self._represented(request, resource, value))
                if initial:
                    revision = self.store.revision
                    for item in self.store.list(resource, target.namespace):
                        if test(item):
                            await send("ADDED", item)
                    if wants_initial and _is_true(query, "allowWatchBookmarks"):
                        await response.write(_bookmark(resource, revision, initial=True))
                await self._stream(request, target, test, queue, send, seconds)
        except StatusError as error:
            if error.code != 410:
                raise
            await response.prepare(request)
            await response.write(orjson.dumps({"type": "ERROR", "object": error.status()}) + b"\n")
        await response.write_eof()
        return response

    async def _stream(
        self,
        request: web.Request,
        target: Target,
        test: selectors.Test,
        queue: asyncio.Queue[Event],
        send: _Sender,
        seconds: float,
    ) -> None:
        """Send events as they come, a bookmark when none does, until the client's timeout."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        bookmarks = _is_true(request.query, "allowWatchBookmarks")
        while (left := end - loop.time()) > 0:
            try:
                event = await asyncio.wait_for(queue.get(), min(left, self.bookmark_seconds))
            except TimeoutError:
                if bookmarks:
                    await send.response.write(_bookmark(target.resource, self.store.revision))
                continue
            if target.namespace and event.object["metadata"].get("namespace") != target.namespace:
                continue
            if kind := _type_for(event, test):
                leaves = kind == "DELETED" and event.before is not None
                await send(kind, _last_matching(event) if leaves else event.object)

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self.store.get(r.PODS, (target.namespace, target.name))
        query = request.query
        names = [container["name"] for container in pod["spec"]["containers"]]
        container = query.get("container") or names[0]
        if not query.get("container") and len(names) > 1:
            text = f"a container name must be specified for pod {target.name}, choose one of: {names}"
            raise StatusError(400, "BadRequest", text)
        previous, follow = _is_true(query, "previous"), _is_true(query, "follow")
        lines = int(query["tailLines"]) if "tailLines" in query else None
        parts = self.kubelet.log(pod, container, previous=previous, follow=follow, tail=lines)
        first = await anext(parts, b"")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        await response.write(first)
        async for part in parts:
            await response.write(part)
        await response.write_eof()
        return response

    async def _proxy(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Forward to a ready pod of a Service. As in Kubernetes, the Authorization header is dropped."""
        name, _, port_name = target.name.removeprefix("http:").partition(":")
        service = self.store.get(r.SERVICES, (target.namespace, name))
        ports = service["spec"].get("ports", ())
        port = next((p for p in ports if port_name in ("", str(p["port"]), p.get("name"))), None)
        backends = self.services.backends(service, port) if port else []
        if not backends or self._session is None:
            raise StatusError(
                503, "ServiceUnavailable", f'no endpoints available for service "{target.name}"'
            )
        host, number, _ = backends[0]
        url = f"http://{host}:{number}/{target.rest}?{request.query_string}".rstrip("?")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
        data = await request.read()
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=data or None
            ) as answer:
                forwarded = {k: v for k, v in answer.headers.items() if k.lower() not in _NOT_FORWARDED}
                return web.Response(status=answer.status, headers=forwarded, body=await answer.read())
        except aiohttp.ClientError as error:
            text = f"error trying to reach service: {error}"
            raise StatusError(503, "ServiceUnavailable", text) from None

    def _write(self, request: web.Request, target: Target, raw: bytes) -> web.Response:
        query, resource = request.query, target.resource
        validation = query.get("fieldValidation") or "Warn"
        options = RequestOptions("dryRun" in query, validation, target.subresource)
        try:
            code, result = self._write_object(request, target, raw, options)
            answer = _json(self._represented(request, resource, result), code)
        except StatusError as error:
            answer = _json(error.status(), error.code)
        for text in options.warnings:
            answer.headers.add("Warning", f'299 - "{text.replace(chr(34), chr(92) + chr(34))}"')
        return answer

    def _write_object(
        self, request: web.Request, target: Target, raw: bytes, options: RequestOptions
    ) -> tuple[int, Object]:
        query, resource, key = request.query, target.resource, (target.namespace, target.name)
        method, content = request.method, request.headers.get("Content-Type", "").partition(";")[0]
        everywhere = resource.namespaced and not target.namespace
        if method not in ("POST", "PUT", "PATCH", "DELETE") or everywhere:
            raise decode.not_allowed()
        if method == "DELETE":
            return 200, self._delete(target, query, decode.delete_options(query, raw))
        if bool(target.name) == (method == "POST"):
            raise decode.not_allowed()
        decode.check_options(method, query)
        if method == "PATCH":
            change = decode.change(resource, content, query, raw)
            result, new = self.verbs.patch(resource, key, change, content, options)
            return (201 if new else 200), result
        body = decode.manifest(resource, content, raw)
        if method == "POST":
            return 201, self.verbs.create(resource, target.namespace, body, options)
        result, new = self.verbs.update(resource, key, body, options)
        return (201 if new else 200), result

    def _delete(self, target: Target, query: Any, options: Object) -> Object:
        dry_run, resource = bool(options.get("dryRun")), target.resource
        if target.subresource or (not target.name and resource == r.NAMESPACES):
            raise decode.not_allowed()
        if not target.name:
            selected = query.get("labelSelector", ""), query.get("fieldSelector", "")
            test = selectors.parse(*selected, resource)
            items = [item for item in self.store.list(resource, target.namespace) if test(item)]
            for item in items:
                self.verbs.delete(resource, key_of(item), options, dry_run)
            return listing.list_of(resource, items, {"resourceVersion": str(self.store.revision)})
        last, gone = self.verbs.delete(resource, (target.namespace, target.name), options, dry_run)
        if not gone or resource in _RETURNED:
            return last
        done = {
            "name": target.name,
            "group": resource.group,
            "kind": resource.plural,
            "uid": last["metadata"]["uid"],
        }
        details = {name: value for name, value in done.items() if value}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


class _Sender:
    """Writes watch events in the representation that the client requested."""

    def __init__(self, response: web.StreamResponse, shape: Callable[[Object], Object]) -> None:
        self.response, self._shape, self._first = response, shape, True

    async def __call__(self, kind: str, value: Object) -> None:
        shaped = self._shape(value)
        if shaped["kind"] == "Table" and not self._first:
            shaped["columnDefinitions"] = None  # they are sent once
        self._first = False
        await self.response.write(orjson.dumps({"type": kind, "object": shaped}) + b"\n")


def _type_for(event: Event, test: selectors.Test) -> str:
    """Type of an event for a watch of objects that pass `test`. Empty: the watch does not get it."""
    now = event.type != "DELETED" and test(event.object)
    before = event.before is not None and test(event.before)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


def _last_matching(event: Event) -> Object:
    """An object that leaves a watch, as it was when it last passed the test."""
    before = event.before or event.object
    return {**before, "metadata": {**before["metadata"], "resourceVersion": str(event.revision)}}


def _is_true(query: Mapping[str, str], name: str) -> bool:
    """Any value but two is true, as in Kubernetes."""
    return name in query and query[name].lower() not in ("false", "0")


def _since(version: str) -> int:
    if not version.isdigit():
        raise StatusError(500, "InternalError", str(decode.no_revision(version)))
    return int(version)


def _bookmark(resource: Resource, revision: int, initial: bool = False) -> bytes:
    meta: Object = {"resourceVersion": str(revision)}
    if initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    value = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return orjson.dumps({"type": "BOOKMARK", "object": value}) + b"\n"


def _json(value: Object, code: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=code, content_type="application/json")
