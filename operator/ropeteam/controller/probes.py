"""/healthz, /readyz and /metrics of the operator, on one port.

Ready: every cache has been listed once. Healthy: the event loop answers and no round hangs. Port 0 takes a
free one; the caller is told which.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ropeteam.controller import metrics

_HUNG_SECONDS = 300.0


@asynccontextmanager
async def served(
    address: str, is_ready: Callable[[], bool], longest_round: Callable[[], float]
) -> AsyncIterator[str]:
    """Serve while the block runs; gives `host:port`. Raises OSError when the port is taken."""

    async def health(_: web.Request) -> web.Response:
        seconds = longest_round()
        hung = seconds > _HUNG_SECONDS
        return web.Response(status=503 if hung else 200, text=f"longest round: {seconds:.1f} s\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if is_ready() else web.Response(status=503, text="still listing\n")

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.add_routes([web.get("/healthz", health), web.get("/readyz", ready), web.get("/metrics", numbers)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    host, _, port = address.rpartition(":")
    site = web.TCPSite(runner, host or None, int(port))
    try:
        await site.start()
        taken = runner.addresses[0]
        text = f"{taken[0]}:{taken[1]}"
        yield text
    finally:
        await runner.cleanup()
