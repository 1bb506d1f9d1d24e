"""GET /metrics of an agent, for any client that reaches the pod. No other path is served; read only.

A malformed request is answered 4xx with a sentence, and the connection ends.

Metrics must never cost training anything: a port in use is replaced by a free one, and no port at all is a
line in the log; a text is rendered at most once a second, however often it is requested; a peer has 5 seconds
and 8 KiB for its request, as long for the response and for what is discarded after a refusal (64 KiB), and 16
peers may be connected (contract/preauth.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.metrics import CONTENT_TYPE
from ropeteam_trainer.agent.processes.waiting import within
from ropeteam_trainer.contract.config import AGENT_METRICS_PORT
from ropeteam_trainer.contract.preauth import BACKLOG, HEAD_SECONDS, UnauthenticatedConnections
from ropeteam_trainer.system.http import (
    HttpError,
    Request,
    Response,
    half_close_and_discard_rest,
    read_head,
)

MOST_HEAD, MOST_DISCARDED, MOST_PEERS = 8 << 10, 64 << 10, 16
"""Bytes of a request's head; bytes of a refused request's body that are read; connections at a time."""
FRESH_SECONDS = 1.0
"""Time for which a rendered text is served again."""


class MetricsServer:
    """The server of /metrics. `render` returns the text."""

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render
        self._text, self._rendered_at = b"", float("-inf")
        self._admission = UnauthenticatedConnections(MOST_PEERS)
        self._server: asyncio.Server | None = None

    async def listen(self, address: str, port: int = AGENT_METRICS_PORT) -> int:
        """Listen on `port`, or on a free one if that is in use, and return it. 0: on none, which is logged:
        training continues without metrics."""
        for candidate in (port, 0):
            try:
                self._server = await asyncio.start_server(
                    self._serve, address, candidate, limit=MOST_HEAD, backlog=BACKLOG
                )
            except OSError as error:
                where = f"{address}:{candidate}" if candidate else f"{address}, on any port"
                log(f"metrics cannot be served at {where}: {error}")
                continue
            bound = int(self._server.sockets[0].getsockname()[1])
            if bound != port:
                log(f"metrics are at http://{address}:{bound}/metrics")
            return bound
        return 0

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection, and close it. Beyond MOST_PEERS an older connection is
        aborted (contract/preauth.py). The rest of a refused request is read, so that the peer sees the
        answer instead of a reset."""
        address, abort = writer.get_extra_info("peername")[0], writer.transport.abort
        self._admission.admit(address, abort)
        try:
            answer = await self._answer(reader)
            writer.write(answer.to_bytes())
            await within(HEAD_SECONDS, writer.drain())
            if answer.status >= 400:
                await within(HEAD_SECONDS, half_close_and_discard_rest(reader, writer, MOST_DISCARDED))
        except OSError:
            pass  # the peer disconnected, or is too slow
        finally:
            self._admission.free(address, abort)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Response:
        """The response to one request, also to one that is refused. Raises OSError, and TimeoutError (one of
        them) for a peer that is too slow."""
        try:
            request = await within(HEAD_SECONDS, read_head(reader, MOST_HEAD))
            return Response(200, self._metrics(request), CONTENT_TYPE)
        except HttpError as refused:
            return replace(refused.response, type=CONTENT_TYPE)

    def _metrics(self, request: Request) -> bytes:
        """The text for a GET of /metrics, rendered at most once in FRESH_SECONDS. Raises HttpError."""
        if request.path != "/metrics":
            raise HttpError(404, "the only path here is /metrics")
        if request.method != "GET":
            raise HttpError(405, "/metrics accepts GET only")
        now = asyncio.get_running_loop().time()
        if now - self._rendered_at >= FRESH_SECONDS:
            self._text, self._rendered_at = self._render().encode(), now
        return self._text
