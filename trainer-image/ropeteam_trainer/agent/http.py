"""GET /metrics of an agent, for anyone who reaches the pod. Nothing else is answered, nothing is changed.

It must never cost training anything: a port that is taken is replaced by a free one, none at all is a line in
the log; a text is made at most once a second, however often it is asked for; a peer has 5 seconds and 8 KiB,
and there are places for 16 (contract/preauth.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.metrics import CONTENT_TYPE
from ropeteam_trainer.agent.processes.waiting import within
from ropeteam_trainer.contract.config import AGENT_METRICS_PORT
from ropeteam_trainer.contract.preauth import BACKLOG, HEAD_SECONDS, Strangers

MOST_HEAD, MOST_PEERS = 8 << 10, 16
FRESH_SECONDS = 1.0


class Metrics:
    """`render`: makes the text."""

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render
        self._text, self._made_at = b"", float("-inf")
        self._strangers = Strangers(MOST_PEERS)
        self._server: asyncio.Server | None = None

    async def listen(self, address: str, port: int = AGENT_METRICS_PORT) -> int:
        """The port that answers; 0: none. Never raises."""
        for wanted in (port, 0):
            try:
                self._server = await asyncio.start_server(
                    self._serve, address, wanted, limit=MOST_HEAD, backlog=BACKLOG
                )
            except OSError as error:
                log(f"no metrics at {address}:{wanted}: {error}")
                continue
            taken = int(self._server.sockets[0].getsockname()[1])
            if taken != port:
                log(f"metrics are at http://{address}:{taken}/metrics")
            return taken
        return 0

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, leave = writer.get_extra_info("peername")[0], writer.transport.abort
        self._strangers.take(address, leave)
        try:
            head = await within(HEAD_SECONDS, reader.readuntil(b"\r\n\r\n"))
            writer.write(self._answer(head))
            await within(HEAD_SECONDS, writer.drain())
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # it went away, said too much, or is too slow
        finally:
            self._strangers.free(address, leave)
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _answer("404 Not Found", b"there is /metrics\n")
        if method != b"GET":
            return _answer("405 Method Not Allowed", b"/metrics takes GET\n")
        now = asyncio.get_running_loop().time()
        if now - self._made_at >= FRESH_SECONDS:
            self._text, self._made_at = self._render().encode(), now
        return _answer("200 OK", self._text)


def _answer(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + body
