"""The connection to the coordinator: one at a time, for ever. Reports go out, orders come in.

After a loss it is tried again after 50 ms, then ever longer up to 0.4 s, with jitter. A peer that does not
greet is left, and one that falls silent though asked (a report that claims to have seen no orders is always
answered).
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.state import Event, LinkLost, LinkUp, OrdersReceived
from ropeteam_trainer.agent.waiting import within
from ropeteam_trainer.contract import codec, wire
from ropeteam_trainer.contract.messages import AgentReport, Orders

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 0.4


class Link:
    """`address`: `host:port`, numeric. `lost`: lostSeconds."""

    def __init__(self, address: str, token: bytes, lost: float, post: Callable[[Event], None]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._token, self._lost, self._post = token, lost, post
        self._writer: asyncio.StreamWriter | None = None
        self._sealer: wire.Sealer | None = None
        self._delay = _FIRST_DELAY
        self._heard_at: float | None = None
        """When the last frame of this connection came; None before the first."""

    async def run(self) -> None:
        last_error = ""
        while True:
            try:
                await self._connect()
            except (OSError, EOFError, codec.DecodeError) as error:
                text = f"{type(error).__name__}: {error}"
                if text != last_error:
                    log(f"no coordinator at {self._host}:{self._port}: {text}")
                last_error = text
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
            self._delay = min(self._delay * 2, _LONGEST_DELAY)

    def send(self, report: AgentReport) -> None:
        """Without a connection nothing happens: the next one begins with a report."""
        if self._writer is None or self._sealer is None:
            return
        try:
            self._writer.write(self._sealer.seal(codec.encode(report)))
        except wire.WireError as error:
            log(f"report not sent: {error}")

    def drop(self, why: str) -> None:
        log(f"connection to the coordinator closed: {why}")
        if self._writer is not None:
            self._writer.transport.abort()

    def silent_seconds(self) -> float:
        """How long a coordinator that has given orders on this connection has been silent."""
        if self._writer is None or self._heard_at is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._heard_at

    async def _connect(self) -> None:
        """One connection from greeting to end; returns or raises when it is over."""
        reader, writer = await within(self._lost, asyncio.open_connection(self._host, self._port))
        try:
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._lost * 1000))
            greeting = await within(self._lost, reader.readexactly(len(wire.HELLO) + wire.NONCE_SIZE))
            if not greeting.startswith(wire.HELLO):
                raise wire.WireError("the peer is no coordinator")
            await self._converse(reader, writer, greeting[len(wire.HELLO) :])
        finally:
            writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: bytes
    ) -> None:
        opener = wire.Opener(self._token, nonce, wire.TO_AGENT)
        self._writer, self._sealer = writer, wire.Sealer(self._token, nonce, wire.TO_COORDINATOR)
        self._heard_at, self._delay = None, _FIRST_DELAY
        self._post(LinkUp())
        try:
            while data := await reader.read(1 << 16):
                for body in opener.feed(data):
                    self._heard_at = asyncio.get_running_loop().time()
                    self._post(OrdersReceived(codec.decode(Orders, body)))
            raise EOFError("closed by the coordinator")
        finally:
            self._writer = self._sealer = None
            self._post(LinkLost())
