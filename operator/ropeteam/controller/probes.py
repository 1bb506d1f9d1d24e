"""/healthz, /readyz and /metrics of the operator, on one port.

Ready: every cache has been listed once and has been heard of since. Healthy: the event loop answers and no
round hangs. Port 0 takes a free one; the caller is told which.
Anyone may ask: a connection is for one request and lasts 5 seconds, and there are places for 64
(contract/preauth.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ropeteam.controller import metrics
from ropeteam_trainer.contract.preauth import BACKLOG, HEAD_SECONDS, Strangers

_HUNG_SECONDS = 300.0
_PLACES = 64


class _Visit(web.RequestHandler):
    """One connection. aiohttp alone limits neither their number nor their time."""

    __slots__ = ("_address", "_strangers", "_until")

    def __init__(self, server: web.Server, strangers: Strangers) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._strangers = strangers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # uvloop asks only now, and whoever has reset the connection meanwhile has no name any more
        self._address: str = (transport.get_extra_info("peername") or ("",))[0]
        self._until = self._loop.call_later(HEAD_SECONDS, self._leave)
        self._strangers.take(self._address, self._leave)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._until.cancel()
        self._strangers.free(self._address, self._leave)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Of what a peer says, no line in the log; aiohttp writes its stack."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        answer = web.Response(status=status, text=message)
        answer.force_close()
        return answer

    def _leave(self) -> None:
        if self.transport:
            self.transport.abort()


@asynccontextmanager
async def served(
    address: str, unready: Callable[[], str], longest_round: Callable[[], float]
) -> AsyncIterator[str]:
    """Serve while the block runs; gives `host:port`. `unready` says why, "" if it is. Raises OSError when the
    port is taken.
    """

    def health() -> web.Response:
        seconds = longest_round()
        hung = seconds > _HUNG_SECONDS
        return web.Response(status=503 if hung else 200, text=f"longest round: {seconds:.1f} s\n")

    def ready() -> web.Response:
        why = unready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    def numbers() -> web.Response:
        return web.Response(
            body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    pages = {"/healthz": health, "/readyz": ready, "/metrics": numbers}

    async def answer(request: web.BaseRequest) -> web.Response:
        """aiohttp's own routes answer 500 to who expects what is no UTF-8 (`Expect:`)."""
        page = pages.get(request.path)
        if page is None:
            told = web.Response(status=404, text="404: Not Found")
        elif request.method in ("GET", "HEAD"):
            told = page()
        else:
            told = web.Response(status=405, text="405: Method Not Allowed", headers={"Allow": "GET,HEAD"})
        told.force_close()
        return told

    server, strangers = web.Server(answer), Strangers(_PLACES)
    host, _, port = address.rpartition(":")
    visit = partial(_Visit, server, strangers)
    try:
        listener = await asyncio.get_running_loop().create_server(
            visit, host or None, int(port), backlog=BACKLOG
        )
        with closing(listener):
            taken = listener.sockets[0].getsockname()
            yield f"{taken[0]}:{taken[1]}"
    finally:
        await server.shutdown(1)
