"""Accepted requests are signed with the job's token, for the challenge that holds. An operator of a release
before shows a bearer instead."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lab.coordinator.link import TOKEN, Operator, answered, get_status, http, request, shut
from lab.coordinator.reports import config
from tests.coordinator.conftest import ServedCoordinator

from ropeteam_trainer.contract import codec, signing, wire
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotDesired
from ropeteam_trainer.coordinator import http as http_module
from ropeteam_trainer.coordinator.http import MOST_BODY, MOST_HEAD, Http
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.server import Coordinator

DESIRED = Desired(1, 1, 1, {"0": SlotDesired(1, "pod-0-1")})
PUT = "PUT /desired"
UNSIGNED = (
    "the request is not signed with this job's token for term 1, or answers an outdated challenge; "
    "only the operator can send it. For the job's state: kubectl get tj\n"
)


def body(generation: int) -> bytes:
    return codec.encode(replace(DESIRED, generation=generation))


def generation(served: ServedCoordinator) -> int:
    desired = served.coordinator.state.desired
    return desired.generation if desired else 0


async def test_a_conversation_costs_one_request_a_time(served: ServedCoordinator):
    operator = Operator(served.http)
    for count in range(1, 6):
        status, text = await operator.request(PUT, body(count))
        assert (status, codec.decode(JobReport, text).observed_generation) == (200, count)
        await operator.request("GET /status")
    assert operator.requests == 2 * 5


async def test_who_names_no_challenge_is_taken_once_by_the_first_process_of_a_term(served: ServedCoordinator):
    """Later ones do not know what the first one has taken."""
    first, second = (Operator(served.http).signed(PUT, body(count))[0] for count in (1, 2))
    assert (await http(served.http, first))[0] == 200
    for raw in (first, second):
        assert await http(served.http, raw) == (401, UNSIGNED)
    assert generation(served) == 1
    again = Coordinator(config(), 1, TOKEN, Log(served.lines.append))
    server = await asyncio.start_server(Http(again).serve, "127.0.0.1", 0)
    async with server:
        assert await http(server.sockets[0].getsockname()[1], first) == (401, UNSIGNED)
    again.stop()
    assert again.state.desired is None


async def test_the_first_request_of_an_operator_may_be_as_large_as_any(served: ServedCoordinator):
    """A request is refused before its body is read, and the answer has the challenge for the next."""
    for count in range(1, 6):
        large = body(count) + b" " * (MOST_BODY - len(body(count)))
        assert (await Operator(served.http).request(PUT, large))[0] == 200
    assert generation(served) == 5


async def test_a_recorded_request_is_refused(served: ServedCoordinator):
    operator = Operator(served.http)
    await operator.request(PUT, body(1))
    recorded, _ = operator.signed(PUT, body(2))
    assert (await http(served.http, recorded))[0] == 200
    assert await http(served.http, recorded) == (401, UNSIGNED)
    await operator.request(PUT, body(3))
    assert await http(served.http, recorded) == (401, UNSIGNED)
    assert generation(served) == 3


async def test_a_request_that_was_held_back_is_refused(served: ServedCoordinator):
    """A later one was taken meanwhile, of this operator or of the one that leads now."""
    operator, next_one = Operator(served.http), Operator(served.http)
    await operator.request(PUT, body(1))
    held_back, _ = operator.signed(PUT, body(2))
    await next_one.request(PUT, body(3))
    assert await http(served.http, held_back) == (401, UNSIGNED)
    assert generation(served) == 3
    before = operator.requests
    assert (await operator.request(PUT, body(4)))[0] == 200
    assert operator.requests == before + 2


async def test_a_request_that_is_held_back_for_long_is_refused_though_nothing_came_after_it(
    served: ServedCoordinator, monkeypatch
):
    operator = Operator(served.http)
    await operator.request(PUT, body(1))
    held_back, _ = operator.signed(PUT, body(2))
    now = served.coordinator.now()
    monkeypatch.setattr(served.coordinator, "now", lambda: now + signing.CHALLENGE_SECONDS)
    assert await http(served.http, held_back) == (401, UNSIGNED)
    assert generation(served) == 1


async def test_an_altered_request_is_refused(served: ServedCoordinator):
    operator = Operator(served.http)
    await operator.request(PUT, body(1))
    for old, new in ((b'"generation":2', b'"generation":7'), (b"PUT /desired", b"GET /status")):
        raw, signature = operator.signed(PUT, body(2))
        assert old in raw
        status, given, text = await answered(served.http, raw.replace(old, new))
        assert status == 401
        assert operator.caller.is_genuine(signature, status, given, text.encode()), "and it says what holds"
    assert generation(served) == 1


@pytest.mark.parametrize(("token", "term"), [(b"another job's", 1), (TOKEN, 2)])
async def test_who_has_another_key_is_refused(served: ServedCoordinator, token: bytes, term: int):
    client = Operator(served.http, token, term)
    raw, signature = client.signed(PUT, body(1))
    status, given, text = await answered(served.http, raw)
    assert (status, text, generation(served)) == (401, UNSIGNED, 0)
    assert client.caller.is_genuine(signature, status, given, text.encode()) is (token == TOKEN)


@pytest.mark.parametrize("signature", ["", "x", "0" * 32, "é" * 200, "0" * 32 + " " + "0" * 64])
async def test_what_is_no_signature_is_refused_and_its_answer_not_signed(
    served: ServedCoordinator, signature: str
):
    raw = request("GET", "/status", X_Ropeteam_Signature=signature)
    assert (await answered(served.http, raw))[:2] == (401, "")


async def test_unauthenticated_requests_neither_use_up_the_challenge_nor_are_remembered(
    served: ServedCoordinator,
):
    operator, client = Operator(served.http), Operator(served.http, b"another job's")
    await operator.request(PUT, body(1))
    for _ in range(100):
        assert (await http(served.http, client.signed(PUT, body(9))[0]))[0] == 401
        assert (await http(served.http, request("GET", "/status")))[0] == 401
    before = operator.requests
    await operator.request(PUT, body(2))
    assert operator.requests == before + 1


async def test_a_coordinator_that_has_restarted_is_reached_in_the_same_round(served: ServedCoordinator):
    operator = Operator(served.http)
    await operator.request(PUT, body(1))
    recorded, _ = operator.signed(PUT, body(2))
    again = Coordinator(config(), 1, TOKEN, Log(served.lines.append))
    server = await asyncio.start_server(Http(again).serve, "127.0.0.1", 0, limit=MOST_HEAD)
    async with server:
        operator.port, before = server.sockets[0].getsockname()[1], operator.requests
        assert (await operator.request(PUT, body(3)))[0] == 200
        assert operator.requests == before + 2
        assert (await http(operator.port, recorded))[0] == 401
    again.stop()


async def test_only_the_requested_response_is_signed(served: ServedCoordinator):
    """A public query with a signature that was seen gets no answer to the signed request."""
    operator = Operator(served.http)
    await operator.request(PUT, body(1))
    signature = operator.signed(PUT, body(2))[1]
    for path in ("/metrics", "/healthz", "/nowhere"):
        raw = request("GET", path, X_Ropeteam_Signature=signature)
        assert (await answered(served.http, raw))[1] == ""


async def test_the_body_of_who_signed_for_another_challenge_is_not_waited_for(served: ServedCoordinator):
    await Operator(served.http).request(PUT, body(1))
    raw, _ = Operator(served.http).signed(PUT, body(2))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    writer.write(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
    await shut(writer)


async def show_bearer(served: ServedCoordinator, generation: int) -> int:
    bearer = f"Bearer {wire.http_bearer(TOKEN)}"
    return (await http(served.http, request("PUT", "/desired", body(generation), Authorization=bearer)))[0]


async def test_a_bearer_is_taken_when_no_operator_signs(served: ServedCoordinator, monkeypatch):
    """As after a rollback; people who look do not count."""
    later = 0.0
    now = served.coordinator.now
    monkeypatch.setattr(served.coordinator, "now", lambda: now() + later)
    assert await show_bearer(served, 1) == 401, "it has just booted"
    later = http_module.BEARER_SECONDS
    assert await show_bearer(served, 1) == 200
    await Operator(served.http).request(PUT, body(2))
    assert await show_bearer(served, 3) == 401
    later = 2 * http_module.BEARER_SECONDS
    assert (await get_status(served.http)).observed_generation == 2
    assert await show_bearer(served, 3) == 200
    assert generation(served) == 3
