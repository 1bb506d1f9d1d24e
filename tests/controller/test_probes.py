"""The operator's own port, beside clients that stay connected: probes are answered, and places are few."""

from __future__ import annotations

import asyncio
import socket
import struct

import aiohttp
import pytest
import uvloop
from lab.coordinator.link import Crowd, come_at_once, http
from lab.waiting import wait_until_async

from ropeteam.controller import probes


async def test_a_request_that_is_none_is_refused_without_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with probes.serve("127.0.0.1:0", lambda: "", lambda: 0.0) as address:
        status, _ = await http(int(address.rpartition(":")[2]), b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n")
    assert status == 400
    assert caplog.records == []


@pytest.mark.parametrize(("seconds", "most"), [(300.0, 64), (0.1, 0)])
async def test_half_requests_end_for_their_number_and_with_their_time_and_keep_no_probe_out(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    monkeypatch.setattr(probes, "HEAD_SECONDS", seconds)
    async with probes.serve("127.0.0.1:0", lambda: "", lambda: 0.0) as address:
        crowd = Crowd(int(address.rpartition(":")[2]), 100, b"GET /metrics HTTP/1.1\r\n")
        await crowd.has_come()
        await wait_until_async(
            "the listener closed all but the most that it keeps", lambda: crowd.ended >= 100 - most
        )
        monkeypatch.setattr(probes, "HEAD_SECONDS", 300.0)
        async with aiohttp.ClientSession(f"http://{address}") as session:
            for path in ("/readyz", "/healthz", "/metrics"):
                async with session.get(path) as answer:
                    assert answer.status == 200
                    assert answer.headers["Connection"] == "close"
        await crowd.go()


async def test_a_probe_waits_in_the_queue_behind_who_comes_while_the_operator_is_busy() -> None:
    async with probes.serve("127.0.0.1:0", lambda: "", lambda: 0.0) as address:
        port = int(address.rpartition(":")[2])
        come_at_once(port)
        assert (await http(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200


def test_connections_that_are_reset_at_once_leave_nothing_behind() -> None:
    """uvloop, which the operator runs on, looks a peer's address up when it may have gone."""

    async def play() -> list[str]:
        errors = list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context)))
        before = len(asyncio.all_tasks())
        async with probes.serve("127.0.0.1:0", str, lambda: 0.0) as address:
            port = int(address.rpartition(":")[2])
            for _ in range(60):
                with socket.create_connection(("127.0.0.1", port)) as peer:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await wait_until_async(
                "the tasks of closed connections have ended", lambda: len(asyncio.all_tasks()) <= before
            )
            status, _ = await http(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status == 200
        return errors

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(play()) == []
