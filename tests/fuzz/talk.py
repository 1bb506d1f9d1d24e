"""Requests to each port of ours that speaks HTTP, over sockets, and answers to the one request that we make.

`coordinator` (29402), `metrics` (29403), `probes` (8080): whatever comes is answered with a status that says
whose fault it was, or with nothing; never with 500. Some requests to a coordinator are signed with the job's
token, so that the request is read, too. `answers`: a false coordinator answers the operator, signed or not:
what comes of it is a report with which the job's status can be written, or a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import orjson
from lab.coordinator.link import TOKEN, request
from lab.coordinator.reports import JOB_UID, config
from tests.builders import UID, Scene, a_report, a_running_job, an_incident
from tests.fuzz import mutations
from tests.fuzz.campaign import Attempt, Campaign

from ropeteam.controller import probes
from ropeteam.controller.client.coordinator import Coordinators, CoordinatorUnreachable, RequestAuth, auth_for
from ropeteam.core.decide import decide
from ropeteam_trainer.agent.http import MetricsServer
from ropeteam_trainer.contract import OLDEST, VERSION, codec, signing
from ropeteam_trainer.contract.desired import (
    Desired,
    RecoveryTimes,
    ReplacementRequest,
    SlotDesired,
    SlotReport,
)
from ropeteam_trainer.contract.messages import Problem, Progress
from ropeteam_trainer.contract.world import Cause, CheckpointRef, FailReason, ProcessExit, WorldId
from ropeteam_trainer.coordinator.http import MOST_HEAD, Http
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.server import Coordinator

_SIGNED, _RAW = b"S", b"R"
_PATHS = (
    "/desired",
    "/status",
    "/metrics",
    "/healthz",
    "/readyz",
    "/",
    "*",
    "http://x/metrics",
    "/metrics?a=b",
)
_METHODS = ("GET", "PUT", "POST", "HEAD", "OPTIONS", "CONNECT", "PRI", "get", "")
_HEADERS = (
    *(
        ("Content-Length", "2"),
        ("Content-Length", "-1"),
        ("Content-Length", "9" * 30),
        ("Content-Length", "²"),
    ),
    *(("Transfer-Encoding", "chunked"), ("Connection", "keep-alive"), ("Upgrade", "websocket")),
    *(("Expect", "100-continue"), ("Authorization", "Bearer " + "f" * 64), ("Accept-Encoding", "gzip")),
    *(("Content-Encoding", "gzip"), ("X-Ropeteam-Bearer", "é"), ("Cookie", "=;=,"), ("X", "x" * 9000)),
    *((signing.HEADER, "f" * 32), (signing.HEADER, f"{'0' * 32} {'0' * 32} {'0' * 64} {'0' * 64}")),
)
REFS = (CheckpointRef(9, WorldId(1, 0, 2), "d" * 64), CheckpointRef(3, WorldId(1, 0, 1)))
DESIRED = Desired(
    generation=1,
    attempt=1,
    term=1,
    slots={str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in (0, 1)},
    allowance=5,
    lineage=REFS,
)


def draw(chance: Random) -> bytes:
    if chance.random() < 0.4:
        return _SIGNED + mutations.written(mutations.bent(chance, codec.to_plain(DESIRED)))
    headers = dict(chance.sample(_HEADERS, chance.choice((0, 0, 1, 3))))
    body = chance.choice((b"", b"{}", b"2\r\n{}\r\n0\r\n\r\n", b"x" * 3000, codec.encode(DESIRED)))
    raw = request(chance.choice(_METHODS), chance.choice(_PATHS), body)
    raw = raw.replace(
        b"\r\n\r\n", b"".join(f"\r\n{k}: {v}".encode() for k, v in headers.items()) + b"\r\n\r\n", 1
    )
    return _RAW + (mutations.damaged(chance, raw) if chance.random() < 0.6 else raw)


async def answered(port: int, raw: bytes) -> bytes:
    """Everything that the server sends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    with suppress(ConnectionError):
        writer.write(raw)
        for _ in range(20):  # a server of aiohttp does not answer who has hung up
            await asyncio.sleep(0)
        writer.write_eof()
        found = await reader.read()
    writer.transport.abort()
    return found


def status_of(answer: bytes) -> str:
    """Fails for one that says that it is our fault."""
    if not answer:
        return "no answer"
    version, _, rest = answer.partition(b" ")
    assert version.startswith(b"HTTP/"), answer[:100]
    assert not rest.startswith((b"500", b"502")), answer[:300]
    return rest[:3].decode()


@asynccontextmanager
async def _coordinator() -> AsyncIterator[Attempt]:
    async def attempt(case: bytes) -> list[str]:
        log = Log(lambda _: None)
        coordinator = Coordinator(config(), 0, TOKEN, log, lambda: 1.7e9, Random(0), float)
        server = await asyncio.start_server(Http(coordinator).serve, "127.0.0.1", 0, limit=MOST_HEAD)
        port, raw = server.sockets[0].getsockname()[1], case[1:]
        try:
            send = _signed if case.startswith(_SIGNED) else answered
            found = status_of(await send(port, raw))
            assert found != "no answer"
            for path in ("/healthz", "/metrics"):
                assert status_of(await answered(port, request("GET", path))) == "200"
        finally:
            server.close()
            coordinator.stop()
        return [found]

    yield attempt


async def _signed(port: int, body: bytes) -> bytes:
    """Once more with the challenge of the first answer."""
    caller, found = signing.Client(signing.Keys(TOKEN, JOB_UID, 1)), b""
    for _ in range(2):
        signature = caller.sign("PUT /desired", body, b"n" * signing.NONCE_SIZE)
        raw = request("PUT", "/desired", body, X_Ropeteam_Signature=signature)
        found = await answered(port, raw)
        head, _, text = found.partition(b"\r\n\r\n")
        headers = dict(line.partition(": ")[::2] for line in head.decode().split("\r\n"))
        assert caller.is_genuine(signature, int(status_of(found)), headers[signing.HEADER], text)
    return found


async def _answer_of(port: int, case: bytes, path: str) -> str:
    """And now and then, whether a well-formed request is still answered."""
    if len(case) % 16 == 0:
        assert status_of(await answered(port, request("GET", path))) == "200"
    return status_of(await answered(port, case[1:]))


@asynccontextmanager
async def _metrics() -> AsyncIterator[Attempt]:
    server = MetricsServer(lambda: "a 1\n")
    port = await server.listen("127.0.0.1", 0)

    async def attempt(case: bytes) -> list[str]:
        return [await _answer_of(port, case, "/metrics")]

    yield attempt
    server.close()


@asynccontextmanager
async def _probes() -> AsyncIterator[Attempt]:
    async with probes.serve("127.0.0.1:0", lambda: "", lambda: 0.0) as address:
        port = int(address.rpartition(":")[2])

        async def attempt(case: bytes) -> list[str]:
            return [await _answer_of(port, case, "/readyz")]

        yield attempt


@cache
def scene() -> Scene:
    return a_running_job(2)


@cache
def reports() -> tuple[Any, ...]:
    plain = a_report(scene(), incidents=(an_incident(),), lineage=REFS)
    full = replace(
        plain,
        slots={"0": SlotReport(1, "uid-3", "node-0", True), "1": SlotReport(1, "uid-4")},
        replacement_requests=(ReplacementRequest(0, 1, Cause.ERROR, "why"),),
        progress=Progress(1, 2, "0.5", 3.0, "train"),
        failure=Problem(FailReason.EXIT_CODE, "it said 42"),
        stalled=Problem(FailReason.CHECKPOINT_UNAVAILABLE, "no answer"),
        incidents=(
            replace(
                an_incident(),
                recovery_milliseconds=RecoveryTimes(1, 2, 3, 4),
                exit=ProcessExit(1, 9, last_lines=("a",)),
            ),
        ),
    )
    return codec.to_plain(plain), codec.to_plain(full)


def draw_answer(chance: Random) -> bytes:
    body = mutations.written(mutations.bent(chance, chance.choice(reports()), loose=0.2))
    if chance.random() < 0.6:
        return _SIGNED + body
    headers = dict(chance.sample(_HEADERS, chance.choice((0, 0, 1, 3))))
    lines = [f"HTTP/1.1 {chance.choice(('200 OK', '200', '101 x', '302 Found', '401 No', '503 x', '999 x'))}"]
    lines += [f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    raw = "\r\n".join(lines).encode() + body
    return _RAW + (mutations.damaged(chance, raw) if chance.random() < 0.8 else raw)


class Liar:
    """A coordinator that has read the token. `case`: what it answers."""

    case = b""

    def __init__(self) -> None:
        self._gate = signing.Server(signing.Keys(TOKEN, UID, 1), lambda size: b"c" * size)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.partition(": ")[::2] for line in head.lower().split("\r\n"))
            await reader.readexactly(int(headers["content-length"]))
            writer.write(self._answer(headers.get(signing.HEADER.lower(), "")))
            await writer.drain()
        writer.close()

    def _answer(self, signature: str) -> bytes:
        if self.case.startswith(_RAW):
            return self.case[1:]
        body = self.case[1:]
        given = self._gate.sign(signature, 200, body, 0.0)
        return (
            f"HTTP/1.1 200 OK\r\n{signing.HEADER}: {given}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )


@asynccontextmanager
async def _answers() -> AsyncIterator[Attempt]:
    false, voices = Liar(), [auth_for(signing.Keys(TOKEN, UID, 1), each) for each in (OLDEST, VERSION)]
    server = await asyncio.start_server(false.serve, "127.0.0.1", 0)
    async with Coordinators(server.sockets[0].getsockname()[1]) as coordinators:

        async def attempt(case: bytes) -> list[str]:
            false.case = case
            return [await _report_or_sentence(coordinators, each) for each in voices]

        yield attempt
    server.close()


async def _report_or_sentence(coordinators: Coordinators, speaks: RequestAuth) -> str:
    try:
        report = await coordinators.send_desired(
            "127.0.0.1", speaks, replace(DESIRED, term=scene().status.coordinator.term)
        )
    except CoordinatorUnreachable as why:
        sentence = str(why)
        if not (sentence.isprintable() and len(sentence) < 500):
            raise AssertionError(f"no sentence: {sentence!r}") from why
        return "a sentence"
    seen = scene().but(report=report)
    for _ in range(2):
        decision = decide(seen)
        orjson.dumps(decision.status.to_json())
        seen = seen.but(status=decision.status)
    return "a report"


CAMPAIGNS = (
    Campaign("coordinator", "requests", 100_000, draw, _coordinator),
    Campaign("metrics", "requests", 100_000, draw, _metrics),
    Campaign("probes", "requests", 100_000, draw, _probes),
    Campaign("answers", "answers", 100_000, draw_answer, _answers),
)
