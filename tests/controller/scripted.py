"""An API server scripted by a test: lists of given objects, and watches that send given events and break on
request.

For faults that a healthy server does not show. What a healthy one does is tested against the local cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from ropeteam.controller.client.access import Access

Object = dict[str, Any]


def an_object(name: str, version: int, **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": meta, "spec": spec}


class Scripted:
    """`answers`: what the next requests get, as (status, body), before anything else. `say`: a line of the
    watch. The text "DEEP" is sent as an object of 3,000 levels, which no library of ours writes.
    """

    def __init__(self) -> None:
        self.listed: list[Object] = []
        self.version = 1
        self.answers: list[tuple[int, Object]] = []
        self.requests: list[str] = []
        self.tokens: list[str] = []
        self.watches = 0
        self.address = ""
        self.limits: list[int] = []
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, kind: str, value: Object) -> None:
        self.send_text(_text({"type": kind, "object": value}))

    def send_text(self, line: bytes) -> None:
        self._lines.put_nowait(line)

    def hang_up(self) -> None:
        self._lines.put_nowait(None)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.answers:
            status, body = self.answers.pop(0)
            return web.json_response(body, status=status)
        if "watch" in request.query:
            return await self._watch(request)
        if request.method == "GET":
            page = self._page(int(request.query.get("limit", "0")), int(request.query.get("continue", "0")))
            return web.Response(body=_text(page), content_type="application/json")
        return web.Response(body=await request.read(), content_type="application/json")

    def _page(self, limit: int, begin: int) -> Object:
        self.limits.append(limit)
        end = begin + limit if limit else len(self.listed)
        more = {"continue": str(end)} if end < len(self.listed) else {}
        return {"items": self.listed[begin:end], "metadata": {"resourceVersion": str(self.version), **more}}

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        self.watches += 1
        while line := await self._lines.get():
            await answer.write(line + b"\n")
        return answer


def _text(value: Object) -> bytes:
    return orjson.dumps(value).replace(b'"DEEP"', b'{"a":' * 3000 + b"1" + b"}" * 3000)


@asynccontextmanager
async def serving(api: Scripted) -> AsyncIterator[str]:
    """Gives the address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def access(server: str, token: str = "") -> Access:
    async def same() -> str:
        return token

    return Access(server, None, same)
