"""The agent's end of the wire: real sockets and frames, and an agent that applies its orders."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from lab.coordinator.reports import JOB_UID, after_orders
from lab.waiting import wait_until_async, within
from ropeteam_trainer.contract import codec, grantchunks, signing, wire
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.messages import AgentReport, Orders, parse_lease_answer

TOKEN = b"\x07" * 32
PATIENCE = 120.0


class Link:
    """One connection. `orders` is the last that came. `older`: of the release before, without a nonce."""

    def __init__(self, token: bytes = TOKEN, older: bool = False) -> None:
        self._token, self._older = token, older
        self.orders: Orders | None = None
        self.count = self.bytes = 0
        self._files: grantchunks.GrantFiles | None = None
        self._bodies: deque[bytes] = deque()
        """Read, and not judged yet: of frames that came together, each may be the one that is waited for."""

    async def connect(self, port: int, nonce: bytes | None = None) -> Link:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        hello = await self.reader.readexactly(len(wire.HELLO) + wire.NONCE_SIZE)
        assert hello.startswith(wire.HELLO)
        self.nonce, key = nonce or hello[len(wire.HELLO) :], self._token
        if not self._older:
            mine = os.urandom(wire.NONCE_SIZE)
            self.writer.write(wire.ANSWER + mine)
            key = wire.session_key(self._token, mine)
        self.sealer = wire.Sealer(key, self.nonce, wire.TO_COORDINATOR)
        self._opener = wire.Opener(key, self.nonce, wire.TO_AGENT)
        return self

    def send(self, report: AgentReport) -> None:
        self.write(self.sealer.seal(codec.encode(report)))

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def take(self) -> bool:
        """The next frame; False: the coordinator closed the connection."""
        while not self._bodies:
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError:
                return False
            self._bodies.extend(self._opener.feed(data))
            if not data:
                return False
        body = self._bodies.popleft()
        self.count += 1
        self.bytes += len(body)
        if part := grantchunks.parse_part(body):
            self._files = grantchunks.with_part(self._files, part)
        else:
            orders = parse_lease_answer(body) or codec.decode(Orders, body)
            self.orders = grantchunks.with_files(orders, self._files)
        return True

    async def wait_for(self, holds: Callable[[Orders], bool]) -> Orders:
        """The first orders for which this holds."""

        async def wait() -> Orders:
            while self.orders is None or not holds(self.orders):
                assert await self.take(), "the coordinator closed the connection"
            return self.orders

        return await within(lambda: f"orders; frames: {self.count}, last: {self.orders}", wait())

    async def is_closed(self) -> bool:
        """The coordinator ends this connection, without a frame before."""

        async def wait() -> bool:
            before = self.count
            while await self.take():
                pass
            return self.count == before

        ended = await within("the coordinator closes the connection", wait())
        await self.close()
        return ended

    async def close(self) -> None:
        await shut(self.writer)


class FakeAgent:
    """An agent without processes: it applies orders at once, renews its lease, and reconnects for ever."""

    def __init__(self, report: AgentReport, port: int, feature_level: int = 1) -> None:
        self.report, self.port, self._feature_level = report, port, feature_level
        self.link: Link | None = None
        self.seen: list[Orders] = []
        self._task = asyncio.create_task(self._live())

    def change(self, **changes: Any) -> None:
        """Something happened to its ranks."""
        self.report = replace(self.report, **changes)
        self._send_report()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.link:
            await self.link.close()

    async def _live(self) -> None:
        while True:
            try:
                self.link = await Link().connect(self.port)
                self.report = replace(self.report, applied_orders=0)
                self._send_report()
                await self._apply(self.link)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            if self.link:
                await self.link.close()
            await asyncio.sleep(0.05)

    async def _apply(self, link: Link) -> None:
        reporting = asyncio.create_task(self._report_again())
        try:
            while await link.take():
                if link.orders and (not self.seen or link.orders != self.seen[-1]):
                    self.seen.append(link.orders)
                    after = after_orders(self.report, link.orders, self._feature_level)
                    self.report = replace(after, applied_orders=link.orders.number)
                    self._send_report()
        finally:
            reporting.cancel()

    async def _report_again(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            self._send_report()

    def _send_report(self) -> None:
        if self.link and not self.link.writer.is_closing():
            self.link.send(self.report)


class Crowd:
    """Unauthenticated clients of another address: each sends `sent`, stays until closed, and reconnects."""

    def __init__(self, port: int, count: int, sent: bytes = b"", address: str = "127.0.0.2") -> None:
        self._port, self._sent, self._address = port, sent, address
        self._came, self.ended = [False] * count, 0
        self._tasks = [asyncio.create_task(self._stay(number)) for number in range(count)]

    async def has_come(self) -> None:
        await wait_until_async("all connections have come", lambda: all(self._came))

    async def go(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stay(self, number: int) -> None:
        while True:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self._port, local_addr=(self._address, 0)
            )
            try:
                with suppress(ConnectionError):
                    writer.write(self._sent)
                    await writer.drain()
                    self._came[number] = True
                    while await reader.read(1 << 16):
                        pass
            finally:
                writer.transport.abort()
            self._came[number] = True
            self.ended += 1
            await asyncio.sleep(0.2)


def come_at_once(port: int) -> None:
    """500 unauthenticated clients, and one more, while the loop is blocked. The kernel drops a client that
    finds the queue full, which tries again a second later, and later each time: OSError."""
    with ExitStack() as ends:
        for address in ("127.0.0.2",) * 500 + ("127.0.0.1",):
            ends.enter_context(socket.create_connection(("127.0.0.1", port), 30, (address, 0)))


async def shut(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):  # the other end was faster
        await writer.wait_closed()


async def http(port: int, request: bytes) -> tuple[int, str]:
    """Status and body of the answer to raw bytes."""
    status, _, body = await answered(port, request)
    return status, body


async def answered(port: int, request: bytes) -> tuple[int, str, str]:
    """Status, signature and body of the answer to raw bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await within("the whole answer", reader.read())).decode()
    await shut(writer)
    head, _, body = answer.partition("\r\n\r\n")
    headers = dict(line.partition(": ")[::2] for line in head.split("\r\n"))
    return int(head.split(" ")[1]), headers.get(signing.HEADER, ""), body


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: coordinator"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


class Operator:
    """Signed requests of an operator, counted; an answer must be signed."""

    def __init__(self, port: int, token: bytes = TOKEN, term: int = 1) -> None:
        self.port, self.caller, self.requests = port, signing.Client(signing.Keys(token, JOB_UID, term)), 0

    def signed(self, what: str, body: bytes = b"") -> tuple[bytes, str]:
        """A request, and its signature."""
        signature = self.caller.sign(what, body, os.urandom(signing.NONCE_SIZE))
        method, path = what.split(" ")
        return request(method, path, body, X_Ropeteam_Signature=signature), signature

    async def request(self, what: str, body: bytes = b"") -> tuple[int, str]:
        """Once more if the challenge has passed. Fails if the answer is not genuine."""
        status, text = 401, ""
        for _ in range(2):
            raw, signature = self.signed(what, body)
            self.requests += 1
            status, given, text = await answered(self.port, raw)
            assert self.caller.is_genuine(signature, status, given, text.encode()), text
            if status != 401:
                break
        return status, text


async def put_desired(port: int, desired: Desired, token: bytes = TOKEN) -> JobReport:
    status, body = await Operator(port, token, desired.term).request("PUT /desired", codec.encode(desired))
    assert status == 200, body
    return codec.decode(JobReport, body)


async def get_status(port: int) -> JobReport:
    status, body = await Operator(port).request("GET /status")
    assert status == 200, body
    return codec.decode(JobReport, json.dumps(json.loads(body)))
