"""/healthz, /readyz and /metrics of the operator, on one port.

Ready: every cache has been listed once and is up to date. Healthy: the event loop answers and no reconcile
hangs. Port 0 takes a free one; the caller gets its number.
No authentication: a connection is for one request and lasts 5 seconds, and at most 64 are open
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
from ropeteam_trainer.contract.preauth import BACKLOG, HEAD_SECONDS, UnauthenticatedConnections

_HUNG_SECONDS = 300.0
"""A reconcile that runs for longer hangs: /healthz then fails, and the kubelet restarts the operator."""
_MAX_CONNECTIONS = 64


class _Connection(web.RequestHandler):
    """One connection, aborted after `HEAD_SECONDS` or when newer ones need its place. aiohttp alone limits
    neither their number nor their time. The methods are hooks of asyncio and aiohttp."""

    __slots__ = ("_address", "_time_limit", "_unauthenticated")

    def __init__(self, server: web.Server, admission: UnauthenticatedConnections) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._unauthenticated = admission

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # uvloop looks the name up only now; for a connection that was reset meanwhile there is none
        self._address: str = (transport.get_extra_info("peername") or ("",))[0]
        self._time_limit = self._loop.call_later(HEAD_SECONDS, self._abort)
        self._unauthenticated.admit(self._address, self._abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._time_limit.cancel()
        self._unauthenticated.free(self._address, self._abort)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that failed. Logs nothing for errors of the peer (status below 500), for
        which aiohttp would log a traceback."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        answer = web.Response(status=status, text=message)
        answer.force_close()
        return answer

    def _abort(self) -> None:
        """Close the connection at once, without a last answer; `connection_lost` follows."""
        if self.transport:
            self.transport.abort()


@asynccontextmanager
async def serve(
    address: str, unready: Callable[[], str], longest_reconcile_seconds: Callable[[], float]
) -> AsyncIterator[str]:
    """Serve while the block runs; yields `host:port`, with the real port. `address`: the same, with port 0
    for a free one; no host: all addresses. `unready`: returns the reason, "" if ready. Raises OSError when
    the port is taken, ValueError if it is no number.
    """
    pages = _pages(unready, longest_reconcile_seconds)

    async def answer(request: web.BaseRequest) -> web.Response:
        """Answer one request, after which the connection is closed. A function instead of aiohttp's routes:
        those answer 500 to an `Expect:` header that is not UTF-8."""
        page = pages.get(request.path)
        if page is None:
            response = web.Response(status=404, text="404: Not Found")
        elif request.method in ("GET", "HEAD"):
            response = page()
        else:
            response = web.Response(status=405, text="405: Method Not Allowed", headers={"Allow": "GET,HEAD"})
        response.force_close()
        return response

    server, admission = web.Server(answer), UnauthenticatedConnections(_MAX_CONNECTIONS)
    host, _, port = address.rpartition(":")
    connection = partial(_Connection, server, admission)
    try:
        listener = await asyncio.get_running_loop().create_server(
            connection, host or None, int(port), backlog=BACKLOG
        )
        with closing(listener):
            bound = listener.sockets[0].getsockname()
            yield f"{bound[0]}:{bound[1]}"
    finally:
        await server.shutdown(1)  # running answers get 1 s


def _pages(
    unready: Callable[[], str], longest_reconcile_seconds: Callable[[], float]
) -> dict[str, Callable[[], web.Response]]:
    """The functions that answer, by path; parameters as of `serve`."""

    def health() -> web.Response:
        seconds = longest_reconcile_seconds()
        text = f"the longest running reconcile has taken {seconds:.1f} s (limit: {_HUNG_SECONDS:.0f} s)\n"
        return web.Response(status=503 if seconds > _HUNG_SECONDS else 200, text=text)

    def readiness() -> web.Response:
        why = unready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    def prometheus_metrics() -> web.Response:
        return web.Response(
            body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    return {"/healthz": health, "/readyz": readiness, "/metrics": prometheus_metrics}
