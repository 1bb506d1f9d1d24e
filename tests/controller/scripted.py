"""An API server that does what a test tells it: lists what it is given, and watches that say and break what
they are told.

For faults that a healthy server does not show. What a healthy one does is tested against the local cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from ropeteam.controller.access import Access

Object = dict[str, Any]


def thing(name: str, version: int, **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": meta, "spec": spec}


class Scripted:
    """`answers`: what the next requests get, as (status, body), before anything else. `say`: a line of the
    watch.
    """

    def __init__(self) -> None:
        self.listed: list[Object] = []
        self.version = 1
        self.answers: list[tuple[int, Object]] = []
        self.requests: list[str] = []
        self.tokens: list[str] = []
        self.watches = 0
        self.address = ""
        self._lines: asyncio.Queue[Object | None] = asyncio.Queue()

    def say(self, kind: str, value: Object) -> None:
        self._lines.put_nowait({"type": kind, "object": value})

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
            page = {"items": self.listed, "metadata": {"resourceVersion": str(self.version)}}
            return web.json_response(page)
        return web.Response(body=await request.read(), content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        self.watches += 1
        while line := await self._lines.get():
            await answer.write(orjson.dumps(line) + b"\n")
        return answer


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
