"""The HTTP side of the cluster: paths to verbs, watches, logs, the proxy to Services."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
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
from ropeteam.local.resources import Object, Resource, StatusError, invalid_error
from ropeteam.local.watchevents import EventSender, bookmark_line, event_type, last_matching_object

_WITHOUT_TOKEN = (["healthz"], ["livez"], ["readyz"], ["version"])
_RETURNED_BY_DELETE = (r.PODS, r.SERVICES, r.CLAIMS)
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
    """The target of a path. Namespace, name and subresource are empty where the path has none. `rest`: the
    part after the subresource, for the proxy."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    rest: str


class ApiServer:
    """The HTTP server. Requests need `token`, except for _WITHOUT_TOKEN."""

    def __init__(self, verbs: Verbs, kubelet: Kubelet, services: Services, token: str) -> None:
        self.verbs, self.store, self.catalog = verbs, verbs.store, verbs.catalog
        self.kubelet, self.services, self._token = kubelet, services, token
        self.bookmark_seconds = 30.0
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self, host: str) -> str:
        """Listen on a free port of `host`. Returns the URL."""
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
        """Stop serving; open watches and logs are cancelled."""
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
            elif not self._is_token(bearer) and parts not in _WITHOUT_TOKEN:
                raise StatusError(401, "Unauthorized", "Unauthorized")
            return await self._route(request, parts)
        except StatusError as error:
            return _json_response(error.status(), error.code)
        except ValueError as error:
            text = f"{request.method} /{'/'.join(parts)} is invalid: {error}"
            return _json_response(StatusError(400, "BadRequest", text).status(), 400)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())

    async def _route(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        """Answer an authenticated request. `parts`: of the path, without the token. First match wins: health
        and discovery; the subresources proxy and log; reads; writes. Raises StatusError."""
        if parts == ["openapi", "v2"]:  # an empty document in protobuf: kubectl up to 1.28 requires one
            return web.Response(content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        if parts in (["healthz"], ["livez"], ["readyz"]):
            return web.Response(text="ok")
        document = discovery.document(self.catalog, parts)
        if document is not None:
            if request.method != "GET":
                raise decode.not_allowed_error()
            return _json_response(document)
        target = self._parse_target(parts)
        if target.subresource == "proxy":
            return await self._forward_to_service(request, target)
        if target.subresource == "log":
            return await self._answer_log(request, target)
        if target.subresource in _NOT_SERVED:
            raise self._not_served_error(target)
        if target.subresource not in ("", "status") or (
            target.subresource and not target.resource.has_status
        ):
            raise r.path_not_found_error()
        if request.method == "GET":
            return await self._answer_read(request, target)
        body = await request.read()
        return self._answer_write(request, target, body)

    def _not_served_error(self, target: Target) -> StatusError:
        """501 for a subresource of a pod in _NOT_SERVED, with what to do instead. Raises 404 without the
        pod."""
        pod = self.store.get(r.PODS, (target.namespace, target.name))
        uid, address = pod["metadata"]["uid"], pod["status"].get("podIP", "unknown yet")
        text = (
            f"the local cluster has no {_NOT_SERVED[target.subresource]}: a pod is processes of this "
            f"machine, with address {address}, where its ports are open. Its processes: "
            f"grep -lsz {uid} /proc/[0-9]*/environ"
        )
        return StatusError(501, "NotImplemented", text)

    def _parse_target(self, parts: list[str]) -> Target:
        """The target of a path below /api or /apis. Raises 404 for another path, or a resource that is not
        served."""
        match parts:
            case ["api", version, _, *_]:
                group, rest = "", parts[2:]
            case ["apis", group, version, _, *_]:
                rest = parts[3:]
            case _:
                raise r.path_not_found_error()
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        resource = self.catalog.find(group, version, rest[0])
        name, subresource = [*rest, "", ""][1:3]
        return Target(resource, namespace, name, subresource, "/".join(rest[3:]))

    async def _answer_read(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Answer a get, a list or a watch. Raises StatusError, as a real server does, for options that are
        invalid or contradict each other, and for a missing object."""
        query, resource = request.query, target.resource
        if target.name:
            found = self.store.get(resource, (target.namespace, target.name))
            if version := query.get("resourceVersion"):  # an invalid or future one is refused; else no effect
                decode.parse_revision(version, self.store.revision)
            return _json_response(self._in_requested_form(request, resource, found))
        selected = query.get("labelSelector", ""), query.get("fieldSelector", "")
        test = selectors.parse(*selected, resource)
        if _is_true(query, "watch"):
            return await self._answer_watch(request, target, test)
        items = [item for item in self.store.list(resource, target.namespace) if test(item)]
        return _json_response(
            self._in_requested_form(
                request, resource, listing.list_page(resource, items, query, self.store.revision)
            )
        )

    def _in_requested_form(self, request: web.Request, resource: Resource, plain: Object) -> Object:
        """An object or a List in the representation that the request accepts. Raises StatusError (400)."""
        accept, include = request.headers.get("Accept", ""), request.query.get("includeObject", "")
        return listing.in_requested_form(accept, include, resource, plain)

    async def _answer_watch(
        self, request: web.Request, target: Target, test: selectors.Test
    ) -> web.StreamResponse:
        """Answer a watch: initial objects if requested, or if there is no resourceVersion or it is 0; then
        events until the client's timeout. If the resourceVersion is too old, the only event is an ERROR, as
        on a real server. Raises StatusError for a request that is not valid, with a real server's texts."""
        query, resource = request.query, target.resource
        decode.check_list_options(query, watches=True)
        if query.get("continue"):
            why = "resourceVersionMatch is forbidden when continue is provided"
            error = FieldError.forbidden("resourceVersionMatch", why)
            raise invalid_error("ListOptions", "meta.k8s.io", "", [error])
        since = _parse_since(query.get("resourceVersion") or "0")
        seconds = decode.parse_integer(query.get("timeoutSeconds") or "0") or 10**9
        wants_initial = _is_true(query, "sendInitialEvents")
        initial = wants_initial or (since == 0 and "sendInitialEvents" not in query)
        since = since or self.store.revision
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            with self.store.watch(resource, self.store.revision if initial else since) as queue:
                await response.prepare(request)
                send = EventSender(response, lambda value: self._in_requested_form(request, resource, value))
                if initial:
                    revision = self.store.revision
                    for item in self.store.list(resource, target.namespace):
                        if test(item):
                            await send("ADDED", item)
                    if wants_initial and _is_true(query, "allowWatchBookmarks"):
                        await response.write(bookmark_line(resource, revision, initial=True))
                await self._send_events(request, target, test, queue, send, seconds)
        except StatusError as error:
            if error.code != 410:
                raise
            await response.prepare(request)
            await response.write(orjson.dumps({"type": "ERROR", "object": error.status()}) + b"\n")
        await response.write_eof()
        return response

    async def _send_events(
        self,
        request: web.Request,
        target: Target,
        test: selectors.Test,
        queue: asyncio.Queue[Event],
        send: EventSender,
        seconds: float,
    ) -> None:
        """Send events as they come until the client's timeout, `seconds`; a bookmark, if the client allows
        them, after each `bookmark_seconds` without an event."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        bookmarks = _is_true(request.query, "allowWatchBookmarks")
        while (left := end - loop.time()) > 0:
            try:
                event = await asyncio.wait_for(queue.get(), min(left, self.bookmark_seconds))
            except TimeoutError:
                if bookmarks:
                    await send.response.write(bookmark_line(target.resource, self.store.revision))
                continue
            if target.namespace and event.object["metadata"].get("namespace") != target.namespace:
                continue
            if kind := event_type(event, test):
                leaves = kind == "DELETED" and event.before is not None
                await send(kind, last_matching_object(event) if leaves else event.object)

    async def _answer_log(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Send the log of a container. The first part is read before the response begins: errors get their
        status."""
        pod = self.store.get(r.PODS, (target.namespace, target.name))
        query = request.query
        names = [container["name"] for container in pod["spec"]["containers"]]
        container = query.get("container") or names[0]
        if not query.get("container") and len(names) > 1:
            text = f"a container name must be specified for pod {target.name}, choose one of: {names}"
            raise StatusError(400, "BadRequest", text)
        previous, follow = _is_true(query, "previous"), _is_true(query, "follow")
        lines = int(query["tailLines"]) if "tailLines" in query else None
        parts = self.kubelet.read_log(pod, container, previous=previous, follow=follow, tail=lines)
        first = await anext(parts, b"")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        await response.write(first)
        async for part in parts:
            await response.write(part)
        await response.write_eof()
        return response

    async def _forward_to_service(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Forward to the first ready pod of a Service. The name in the path is `[http:]service[:port]`, its
        port a number or a name; without one it is the first. As in Kubernetes, the Authorization header is
        dropped."""
        name, _, port_name = target.name.removeprefix("http:").partition(":")
        service = self.store.get(r.SERVICES, (target.namespace, name))
        ports = service["spec"].get("ports", ())
        port = next((p for p in ports if port_name in ("", str(p["port"]), p.get("name"))), None)
        backends = self.services.backends(service, port) if port else []
        if not backends or self._session is None:
            text = f'no endpoints available for service "{target.name}"'
            raise StatusError(503, "ServiceUnavailable", text)
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

    def _answer_write(self, request: web.Request, target: Target, raw: bytes) -> web.Response:
        """Perform a write and answer with the object or the error, and with a Warning header for each
        warning."""
        query, resource = request.query, target.resource
        validation = query.get("fieldValidation") or "Warn"
        options = RequestOptions("dryRun" in query, validation, target.subresource)
        try:
            code, result = self._perform_write(request, target, raw, options)
            answer = _json_response(self._in_requested_form(request, resource, result), code)
        except StatusError as error:
            answer = _json_response(error.status(), error.code)
        for text in options.warnings:
            answer.headers.add("Warning", f'299 - "{text.replace(chr(34), chr(92) + chr(34))}"')
        return answer

    def _perform_write(
        self, request: web.Request, target: Target, raw: bytes, options: RequestOptions
    ) -> tuple[int, Object]:
        """Perform a write. Returns the HTTP status and the object. Raises StatusError."""
        query, resource, key = request.query, target.resource, (target.namespace, target.name)
        method, content = request.method, request.headers.get("Content-Type", "").partition(";")[0]
        everywhere = resource.namespaced and not target.namespace
        if method not in ("POST", "PUT", "PATCH", "DELETE") or everywhere:
            raise decode.not_allowed_error()
        if method == "DELETE":
            return 200, self._perform_delete(target, query, decode.parse_delete_options(query, raw))
        if bool(target.name) == (method == "POST"):
            raise decode.not_allowed_error()
        decode.check_write_options(method, query)
        if method == "PATCH":
            change = decode.parse_patch(resource, content, query, raw)
            result, new = self.verbs.patch(resource, key, change, content, options)
            return (201 if new else 200), result
        body = decode.parse_manifest(resource, content, raw)
        if method == "POST":
            return 201, self.verbs.create(resource, target.namespace, body, options)
        result, new = self.verbs.update(resource, key, body, options)
        return (201 if new else 200), result

    def _perform_delete(self, target: Target, query: Any, options: Object) -> Object:
        """Delete one object, or all that the query selects. Returns, as a real server, the object while it is
        terminating and for kinds in _RETURNED_BY_DELETE, else a Status of success; for several a List."""
        dry_run, resource = bool(options.get("dryRun")), target.resource
        if target.subresource or (not target.name and resource == r.NAMESPACES):
            raise decode.not_allowed_error()
        if not target.name:
            selected = query.get("labelSelector", ""), query.get("fieldSelector", "")
            test = selectors.parse(*selected, resource)
            items = [item for item in self.store.list(resource, target.namespace) if test(item)]
            for item in items:
                self.verbs.delete(resource, key_of(item), options, dry_run)
            return listing.list_object(resource, items, {"resourceVersion": str(self.store.revision)})
        last, gone = self.verbs.delete(resource, (target.namespace, target.name), options, dry_run)
        if not gone or resource in _RETURNED_BY_DELETE:
            return last
        done = {
            "name": target.name,
            "group": resource.group,
            "kind": resource.plural,
            "uid": last["metadata"]["uid"],
        }
        details = {name: value for name, value in done.items() if value}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _is_true(query: Mapping[str, str], name: str) -> bool:
    """Whether a query parameter is true: any value but `false` and `0`, as in Kubernetes."""
    return name in query and query[name].lower() not in ("false", "0")


def _parse_since(version: str) -> int:
    """The resourceVersion from which to watch. Raises 500 for an invalid one, as a real server does."""
    if not version.isdigit():
        raise StatusError(500, "InternalError", str(decode.invalid_revision_error(version)))
    return int(version)


def _json_response(value: Object, code: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=code, content_type="application/json")
