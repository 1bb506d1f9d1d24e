"""Answers of a tenant's coordinator: a report, or what comes to one sentence about why there is none.
Nothing that it sends makes the operator remember much, wait long, or call somebody else.
"""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from ropeteam.controller.client import coordinator
from ropeteam.controller.client.coordinator import Coordinators, CoordinatorUnreachable, RequestAuth, auth_for
from ropeteam_trainer.contract import OLDEST, VERSION, codec
from ropeteam_trainer.contract.desired import (
    Desired,
    JobReport,
    ReplacementRequest,
    SlotDesired,
    SlotReport,
    WorldPhase,
)
from ropeteam_trainer.contract.signing import Keys
from ropeteam_trainer.contract.world import Cause

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
SLOTS = 4096
BEARER, SIGNED = (auth_for(Keys(b"t" * 32, "u", 1), contract) for contract in (OLDEST, VERSION))
"""A coordinator of an earlier release signs nothing, and one of ours may come from anybody with the token."""


REAL = coordinator._TIMEOUT


@pytest.fixture(autouse=True)
def _time_is_not_what_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test does not say so: answers of megabytes take seconds on a machine that has much to do."""
    monkeypatch.setattr(coordinator, "_TIMEOUT", aiohttp.ClientTimeout(total=120))


def desired(slots: int = 1) -> Desired:
    return Desired(1, 1, 1, {str(slot): SlotDesired(1) for slot in range(slots)})


@asynccontextmanager
async def served(answer: Answer, reads: bool = True) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port where every request is answered so, and the requests that came."""
    requests: list[bytes] = []
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving[task] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if reads:
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            requests.append(head)
            await answer(writer)
            await asyncio.sleep(0 if reads else 3600)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1], requests
        finally:
            for task, writer in serving.items():
                if not task.done():  # else its transport may be gone, which cannot be aborted
                    writer.transport.abort()
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def send_desired(
    answer: Answer, slots: int = 1, reads: bool = True, auth: RequestAuth = BEARER
) -> JobReport:
    async with served(answer, reads) as (port, _), Coordinators(port) as coordinators:
        return await coordinators.send_desired("127.0.0.1", auth, desired(slots))


def at_once(text: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()

    return answer


def endless(begin: bytes, more: bytes) -> tuple[Answer, list[int]]:
    """And how much of it was taken so far."""
    taken = [0]

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while True:
            writer.write(more)
            await writer.drain()
            taken[0] += len(more)

    return answer, taken


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"


async def test_an_answer_without_end_is_read_up_to_a_bound() -> None:
    answer, taken = endless(CHUNKED, CHUNK)
    with pytest.raises(CoordinatorUnreachable, match="the coordinator's answer has more than 1052672 bytes"):
        await send_desired(answer)
    assert taken[0] < 132 << 20, "what lies in buffers of sockets comes on top"


async def test_what_it_announces_is_not_waited_for() -> None:
    answer = at_once(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b" " * (2 << 20))
    with pytest.raises(CoordinatorUnreachable, match="the coordinator's answer has more than"):
        await send_desired(answer)


async def test_a_compressed_answer_is_refused_and_never_unpacked() -> None:
    bomb = response(zlib.compress(b" " * (64 << 20), wbits=31), "Content-Encoding: gzip")
    tracemalloc.start()
    with pytest.raises(CoordinatorUnreachable, match=r"the coordinator's answer is compressed \(gzip\)"):
        await send_desired(at_once(bomb))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 << 20


async def test_an_answer_that_leads_elsewhere_is_not_followed() -> None:
    async with served(at_once(response(b"{}"))) as (target, reached):
        there = f"Location: http://127.0.0.1:{target}/desired"
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            with pytest.raises(CoordinatorUnreachable, match=f"HTTP {status[:3]}"):
                await send_desired(at_once(response(b"", there, status=status)))
        assert reached == []


async def test_it_is_requested_not_to_compress_and_to_close() -> None:
    async with served(at_once(response(b"{}"))) as (port, requests), Coordinators(port) as coordinators:
        with pytest.raises(CoordinatorUnreachable):
            await coordinators.send_desired("127.0.0.1", BEARER, desired())
    head = requests[0].lower()
    assert b"accept-encoding: identity\r\n" in head
    assert b"connection: close\r\n" in head


MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 64,
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "an absurd status": response(b"", status="99999999999999999999 OK"),
    "a status below 100": response(b"", status="0 OK"),
    "no status": b"HTTP/1.1\r\n\r\n",
    "an endless number as length": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a header without a name": response(b"{}", ": x"),
    "a header with NUL": response(b"{}", "X: \0"),
    "a header that is no ASCII": b"HTTP/1.1 200 OK\r\nX: \xff\xfe\r\nContent-Length: 2\r\n\r\n{}",
    "a large header": response(b"{}", "X: " + "x" * (1 << 20)),
    "many headers": response(b"{}", *(f"X-{number}: x" for number in range(100_000))),
    "odd chunks": CHUNKED + b"zz\r\n{}\r\n",
    "half an answer": response(b"{}" * 100)[:-50],
    "cookies": response(b"{}", "Set-Cookie: \xff=\x01; Domain=.; Max-Age=x"),
    "an odd type": response(b"{}", "Content-Type: \xff; charset=nonsense"),
    "another protocol wished": response(
        b"", "Upgrade: websocket", "Connection: upgrade", status="101 Switch"
    ),
    "bytes that are no UTF-8": response(b'{"why": "\xff\xfe"}'),
    "an error that is no UTF-8": response(b"\xed\xa0\x80\xff", status="500 Oops"),
    "a reason that is no ASCII": b"HTTP/1.1 500 \xff\xfe\r\nContent-Length: 0\r\n\r\n",
    "numbers that are too large": response(b'{"term": 1' + b"0" * 400 + b"}"),
    "deep": response(b"[" * 500_000),
    "a number of a million digits": response(b'{"term": ' + b"1" * 1_000_000 + b"}"),
    "a key without end": response(b'{"slots": {"' + b"x" * 900_000 + b'": 1}}'),
    "null": response(b"null"),
}


@pytest.mark.parametrize("auth", [BEARER, SIGNED], ids=["older", "signed"])
@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED.keys())
async def test_whatever_is_answered_the_reason_is_one_short_sentence(
    answer: bytes, auth: RequestAuth
) -> None:
    with pytest.raises(CoordinatorUnreachable) as refusal:
        await send_desired(at_once(answer), auth=auth)
    message = str(refusal.value)
    assert message.startswith("127.0.0.1: ")
    assert len(message) < 500
    assert message.isprintable()
    message.encode()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 1000 + b"\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 ", b"2" * 1000),
    ],
    ids=["headers", "promises", "a status line"],
)
async def test_a_head_without_end_is_given_up(
    begin: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_TIMEOUT", REAL)
    answer, taken = endless(begin, more)
    with pytest.raises(CoordinatorUnreachable):
        await send_desired(answer)
    assert taken[0] < 64 << 20


async def test_who_falls_silent_in_mid_sentence_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_TIMEOUT", aiohttp.ClientTimeout(total=0.3))

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"{}" * 100)[:-50])
        await asyncio.Event().wait()

    with pytest.raises(CoordinatorUnreachable, match="no answer within"):
        await send_desired(answer)


@pytest.mark.parametrize("text", [response(b"busy", status="503 Busy"), response(b" " * (32 << 20))])
async def test_who_answers_without_reading_is_left(text: bytes) -> None:
    with pytest.raises(CoordinatorUnreachable, match=r"HTTP 503: busy|has more than"):
        await send_desired(at_once(text), SLOTS, reads=False)


async def test_a_report_that_no_coordinator_of_ours_would_make_names_the_field() -> None:
    by_slot = {"0": SlotReport(1, "u"), "1": SlotReport(1, "u")}
    report = JobReport("u", 1, 0, WorldPhase.RUNNING, "trains", slots=by_slot)
    with pytest.raises(
        CoordinatorUnreachable,
        match="the coordinator's report is out of bounds: slots has 2 entries, at most 1 are",
    ):
        await send_desired(at_once(response(codec.encode(report))))


@pytest.mark.parametrize("each", [b"[],", b"{},", b'"ab",', b"0.1,", b'[{"a":[]}],'])
async def test_a_report_of_more_small_values_than_slots_is_not_parsed(each: bytes) -> None:
    """Of 17 MB of text as many lists would be half a gigabyte, and as much again for half a character."""
    values = each * ((16 << 20) // len(each))
    answer = at_once(response(b'{"x": "\\ud800", "y": [' + values + b"0]}"))
    tracemalloc.start()
    with pytest.raises(CoordinatorUnreachable, match="values; at most"):
        await send_desired(answer, SLOTS)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 << 20


async def test_a_report_of_another_term_is_none() -> None:
    other = JobReport("u", 2, 0, WorldPhase.RUNNING, "trains")
    with pytest.raises(CoordinatorUnreachable, match="the coordinator's report is of term 2, not of 1"):
        await send_desired(at_once(response(codec.encode(other))))


async def test_the_largest_job_is_received() -> None:
    by_slot = {
        str(slot): SlotReport(10**9, "u" * 36, "n" * 253, True, False, 1e5, 10**9) for slot in range(SLOTS)
    }
    message = "ranks in slot 4095 failed in 2 worlds in a row without a new step; last: " + "x" * 300
    requests = tuple(
        ReplacementRequest(slot, 10**9, Cause.STORAGE_UNAVAILABLE, message) for slot in range(SLOTS)
    )
    report = JobReport("u", 1, 0, WorldPhase.FORMING, "waits", slots=by_slot, replacement_requests=requests)
    assert await send_desired(at_once(response(codec.encode(report))), SLOTS) == report
