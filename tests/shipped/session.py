"""The operator's aiohttp: its sessions, in simulated time.

To the API server: requests that take time, are cut off on the way there or back, are refused during an
outage; watches that lag and end. To coordinators: HTTP/1.1 in bytes, over a simulated connection, to the
shipped server. Limits: of aiohttp's surface only what controller/ uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from tests.shipped import skew
from tests.shipped.kubernetes import Object, concerns, parse_kind
from tests.shipped.loop import Process

from ropeteam_trainer.contract import signing

if TYPE_CHECKING:
    from tests.shipped.site import Site

CONTROL = "control"
"""The node of the API server."""
_BOOKMARK_SECONDS = 50.0


class Answer:
    def __init__(self, status: int, content: bytes, stream: Stream | None = None) -> None:
        self.status, self._content, self.headers = status, content, dict[str, str]()
        """Headers: what we read of them."""
        self.content = stream or self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._content

    async def read(self) -> bytes:
        return self._content

    def close(self) -> None:
        """The response came whole."""


class ApiSession:
    """Of one process."""

    def __init__(self, site: Site, process: Process) -> None:
        self._site, self._process = site, process

    async def close(self) -> None:
        """Nothing is pooled."""

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        data: Any,
        params: Any,
        headers: Any,
        timeout: Any,  # noqa: ASYNC109 (aiohttp's name)
    ) -> AsyncIterator[Answer]:
        del headers
        path = urlsplit(url).path
        body = None if data is None else orjson.loads(data)
        if params.get("watch"):
            async with asyncio.timeout(timeout.connect):
                answer = await self._pass(lambda: self._open(path, params))
            try:
                yield answer
            finally:
                answer.content.close()
            return
        async with asyncio.timeout(timeout.total):
            answer = await self._pass(lambda: self._serve(method, path, params, body))
        self._site.called(self._process)
        yield answer

    def _serve(self, method: str, path: str, params: dict[str, str], body: Object | None) -> Answer:
        self._site.writer = self._process
        if method == "POST" and self._process.previous:
            body = skew.made(body)
        status, answer = self._site.kubernetes.handle(method, path, params, body)
        if method == "POST" and status == 201 and self._process.previous:
            self._site.previous_pods.add(answer["metadata"].get("uid", ""))
        self._site.loop.note(self._process.name, method, path, status)
        return Answer(status, orjson.dumps(answer))

    def _open(self, path: str, params: dict[str, str]) -> Answer:
        kind, namespace = parse_kind(path)
        stream = Stream(self._site, self._process, (kind, namespace, params.get("labelSelector", "")))
        if not stream.begin(int(params["resourceVersion"] or 0), float(params["timeoutSeconds"])):
            return Answer(410, orjson.dumps({"message": "too old resource version"}))
        return Answer(200, b"", stream)

    async def _pass(self, serve: Callable[[], Answer]) -> Answer:
        """There and back. A cut on the way is a wait for ever: the caller has a limit."""
        site, loop = self._site, self._site.loop
        future: asyncio.Future[Answer | Exception] = loop.create_future()

        def settle(answer: Answer | Exception) -> None:
            if not future.done():
                future.set_result(answer)

        def back(answer: Answer | Exception) -> None:
            if self._reaches():
                self._process.call(settle, answer)

        def arrive() -> None:
            if not self._reaches():
                return
            refused = aiohttp.ClientConnectionError("Cannot connect to host")
            answer = refused if site.api_away else serve()
            loop.after(site.api_seconds(), back, answer)

        loop.after(site.api_seconds(), arrive)
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _reaches(self) -> bool:
        return self._site.network.reaches(self._process.node, CONTROL)


class Stream:
    """A watch. `lag`: how much later than it happened an event is sent."""

    def __init__(self, site: Site, process: Process, what: tuple[str, str, str]) -> None:
        self._site, self._process, self._what = site, process, what
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._sends_at = 0.0
        self._open = True

    def begin(self, version: int, seconds: float) -> bool:
        missed = self._site.kubernetes.since(*self._what, version)
        if missed is None:
            return False
        for event, obj in missed:
            self._send_event(event, obj)
        self._site.kubernetes.changed.append(self._changed)
        self._site.streams.append(self)
        self._site.loop.after(seconds, self._end)
        self._site.loop.after(_BOOKMARK_SECONDS, self._bookmark)
        return True

    def close(self) -> None:
        if self._open:
            self._open = False
            self._site.kubernetes.changed.remove(self._changed)
            self._site.streams.remove(self)

    async def iter_any(self) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(75.0):
                chunk = await self._queue.get()
            if chunk is None:
                return
            yield chunk

    def _changed(self, event: str, obj: Object) -> None:
        if concerns(obj, *self._what):
            self._send_event(event, obj)

    def _bookmark(self) -> None:
        if self._open and self._process.alive:
            meta = {"metadata": {"resourceVersion": str(self._site.kubernetes.revision)}}
            self._send_event("BOOKMARK", meta)
            self._site.loop.after(_BOOKMARK_SECONDS, self._bookmark)

    def _send_event(self, event: str, obj: Object) -> None:
        line = orjson.dumps({"type": event, "object": obj}) + b"\n"
        self._send(line)

    def _send(self, line: bytes | None) -> None:
        site = self._site
        when = max(self._sends_at, site.loop.now + site.api_seconds() + site.lag)
        self._sends_at = when
        site.loop.after(when - site.loop.now, self._arrive, line)

    def _arrive(self, line: bytes | None) -> None:
        if self._site.network.reaches(self._process.node, CONTROL):
            self._process.call(self._queue.put_nowait, line)
        elif self._open:  # what was lost on the way is not sent later
            self.close()

    def _end(self) -> None:
        if self._open:
            self._send(None)

    def abort(self) -> None:
        """The API server ends."""
        self._process.call(self._queue.put_nowait, None)


class CoordinatorSession:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def close(self) -> None:
        """Nothing is pooled."""

    @asynccontextmanager
    async def put(
        self, url: str, *, data: bytes, headers: dict[str, str], allow_redirects: bool
    ) -> AsyncIterator[Answer]:
        assert not allow_redirects
        data = skew.sent(self._process, data)
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        async with asyncio.timeout(3.0):
            try:
                async with asyncio.timeout(1.0):
                    reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                raise aiohttp.ClientConnectionError(str(error)) from None
            try:
                lines = [f"PUT {parts.path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(data)}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                writer.write("\r\n".join((*lines, "", "")).encode() + data)
                raw = await reader.read()
            finally:
                writer.transport.abort()
        head, _, content = raw.partition(b"\r\n\r\n")
        if not head:
            raise aiohttp.ServerDisconnectedError
        status = int(head.split(b" ", 2)[1])
        answer = Answer(status, skew.received(self._process, content) if status == 200 else content)
        reported = dict(line.partition(": ")[::2] for line in head.decode().split("\r\n"))
        answer.headers[signing.HEADER] = reported.get(signing.HEADER, "")
        yield answer
