"""An operator and a coordinator that both sign, and a process between them or in the coordinator's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from lab.coordinator.link import TOKEN
from lab.coordinator.reports import JOB_UID
from tests.controller.scripted import an_object
from tests.coordinator import conftest
from tests.coordinator.conftest import ServedCoordinator

from ropeteam.api.job import Metadata
from ropeteam.api.status import CoordinatorStatus, JobStatus
from ropeteam.controller.cache import parsing
from ropeteam.controller.client.coordinator import (
    BearerAuth,
    Coordinators,
    CoordinatorUnreachable,
    RequestAuth,
    SignedAuth,
    auth_for,
)
from ropeteam.controller.reconcile.exchange import CoordinatorLink, Exchange
from ropeteam.controller.reconcile.jobread import JobRead
from ropeteam.controller.reconcile.leases import Leases
from ropeteam.controller.settings import OperatorKey, OperatorKeys
from ropeteam.core.seen.observation import PodSeen, Role, ServiceSeen
from ropeteam_trainer.contract import OLDEST, SIGNED, VERSION, signing, wire
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotDesired

served = conftest.served
KEYS = signing.Keys(TOKEN, JOB_UID, 1)
DESIRED = Desired(1, 1, 1, {"0": SlotDesired(1, "pod-0-1"), "1": SlotDesired(1, "pod-1-1")})
Pass = Callable[[bytes], bytes]
SendDesired = Callable[..., Awaitable[int]]


class Between:
    """Messages between operator and coordinator, which may be altered on its way."""

    def __init__(self, port: int, alter_request: Pass = bytes, answer: Pass = bytes) -> None:
        self.port, self._alter_request, self._answer = port, alter_request, answer
        self.requests, self.answered = list[bytes](), list[bytes]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(size))
        writer.write(await self.forward(self._alter_request(self.requests[-1])))
        await writer.drain()
        writer.close()

    async def forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        self.answered.append(await reader.read())
        writer.close()
        return self._answer(self.answered[-1])


@asynccontextmanager
async def between(
    served: ServedCoordinator, alter_request: Pass = bytes, answer: Pass = bytes
) -> AsyncIterator[tuple[Between, SendDesired]]:
    it = Between(served.http, alter_request, answer)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    port, speaks = server.sockets[0].getsockname()[1], SignedAuth(KEYS)
    async with server, Coordinators(port) as coordinators:

        async def send_desired(generation: int, speaks: RequestAuth = speaks) -> int:
            desired = replace(DESIRED, generation=generation)
            return (await coordinators.send_desired("127.0.0.1", speaks, desired)).observed_generation

        yield it, send_desired


async def test_a_round_is_one_request(served: ServedCoordinator) -> None:
    async with between(served) as (path, send_desired):
        assert [await send_desired(generation) for generation in (1, 2, 3, 4)] == [1, 2, 3, 4]
        assert len(path.requests) == 4
        assert not any(wire.http_bearer(TOKEN).encode() in each for each in path.requests)


async def test_another_operator_or_a_restart_costs_one_request_more(served: ServedCoordinator) -> None:
    async with between(served) as (path, send_desired):
        await send_desired(1)
        assert await send_desired(2, SignedAuth(KEYS)) == 2
        before = len(path.requests)
        assert await send_desired(3) == 3
        assert len(path.requests) == before + 2


async def test_what_was_recorded_is_of_no_use(served: ServedCoordinator) -> None:
    async with between(served) as (path, send_desired):
        for generation in (1, 2):
            await send_desired(generation)
        for recorded in path.requests:
            assert (await path.forward(recorded)).startswith(b"HTTP/1.1 401 ")
        desired = served.coordinator.state.desired
        assert desired is not None
        assert desired.generation == 2


async def test_a_request_that_is_altered_each_time_is_refused_each_time(served: ServedCoordinator) -> None:
    async with between(served, lambda text: text.replace(b'"allowance":0', b'"allowance":9')) as (
        path,
        send_desired,
    ):
        with pytest.raises(CoordinatorUnreachable, match="HTTP 401: the body does not match its signature"):
            await send_desired(1)
        assert len(path.requests) == 2
        assert served.coordinator.state.desired is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"phase":"Forming"', b'"phase":"Failed" '),
        (b"200 OK", b"201 OK"),
        (b"X-Ropeteam-Sig", b"X-Another-Sig"),
    ],
)
async def test_an_altered_answer_is_not_accepted(served: ServedCoordinator, old: bytes, new: bytes) -> None:
    async with between(served, answer=lambda text: text.replace(old, new)) as (_, send_desired):
        with pytest.raises(
            CoordinatorUnreachable, match="the answer is not signed with this job's token: HTTP"
        ):
            await send_desired(1)


async def test_the_answer_to_another_request_is_not_accepted(served: ServedCoordinator) -> None:
    async with between(served) as (path, send_desired):
        await send_desired(1)
        recorded = path.answered[-1]
    async with between(served, answer=lambda _: recorded) as (path, send_desired):
        with pytest.raises(CoordinatorUnreachable, match="not signed with this job's token: HTTP 200"):
            await send_desired(1)
        assert len(path.requests) == 1


async def test_a_server_without_the_token_is_requested_once_and_shown_none(served: ServedCoordinator) -> None:
    """Also if it claims to take a bearer."""
    no = b"HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer\r\nContent-Length: 19\r\n\r\na bearer is needed\n"
    async with between(served, answer=lambda _: no) as (path, send_desired):
        with pytest.raises(
            CoordinatorUnreachable, match="not signed with this job's token: HTTP 401: a bearer is needed"
        ):
            await send_desired(1)
        assert len(path.requests) == 1
        assert b"earer" not in path.requests[0]


async def test_another_jobs_token_opens_nothing(served: ServedCoordinator) -> None:
    async with between(served) as (path, send_desired):
        with pytest.raises(CoordinatorUnreachable, match="not signed"):
            await send_desired(1, SignedAuth(replace(KEYS, token=b"another job's")))
        with pytest.raises(CoordinatorUnreachable, match="not signed with this job's token for term 1, or"):
            await send_desired(1, SignedAuth(replace(KEYS, term=2)))
        assert len(path.requests) == 1 + 2


@pytest.mark.parametrize(
    ("contract", "kind"), [(OLDEST, BearerAuth), (2, BearerAuth), (SIGNED, SignedAuth), (VERSION, SignedAuth)]
)
def test_what_a_coordinator_was_made_for_decides_how_it_is_spoken_to(
    contract: int, kind: type[RequestAuth]
) -> None:
    assert type(auth_for(KEYS, contract)) is kind


async def voices_of(pods: tuple[PodSeen, ...], uid: str, more: str = "") -> list[RequestAuth]:
    """With which an operator speaks, twice."""
    auths = list[RequestAuth]()

    class Listening(Coordinators):
        async def send_desired(self, address: str, auth: RequestAuth, desired: Desired) -> JobReport:  # noqa: ARG002
            auths.append(auth)
            raise CoordinatorUnreachable("it only listens")

    link, known = CoordinatorLink(Listening(), OperatorKeys((OperatorKey(b"k"),))), Exchange(Leases(0.0))
    status = JobStatus(coordinator=CoordinatorStatus(term=1, pod_uid=uid, address="10.0.0.1"))
    service = ServiceSeen(name="job", uid="s", cluster_ip="10.0.0.1", term=1)
    read = JobRead(Metadata(name="job", uid="uid"), {}, "", status, service, pods)
    for _ in range(2):
        assert await link.exchange(read, known, DESIRED) == (None, f"it only listens{more}")
    return auths


async def test_of_a_job_that_was_made_with_a_key_which_is_gone_it_names_what_to_do() -> None:
    pods = (PodSeen(name="c", uid="c", role=Role.COORDINATOR, key_id="gone"),)
    fix = (
        "give the operator that key as a previous key, in the entry `previous` of its Secret or with "
        "--previous-key-file"
    )
    await voices_of(
        pods, "c", f" (the job was created with an operator key that is no longer accepted: {fix})"
    )


@pytest.mark.parametrize(
    ("uid", "contract", "kind"),
    [("c", 2, BearerAuth), ("c", VERSION, SignedAuth), ("another", 2, SignedAuth), ("", 2, SignedAuth)],
)
async def test_only_the_pod_that_status_names_is_read_for_its_contract(
    uid: str, contract: int, kind: type[RequestAuth]
) -> None:
    """Not one that somebody else made, and not what answers."""
    pods = (
        PodSeen(name="w", uid="w", role=Role.WORKER),
        PodSeen(name="c", uid="c", role=Role.COORDINATOR, contract=contract),
    )
    first, second = await voices_of(pods, uid)
    assert type(first) is kind
    assert second is first, "it remembers the challenge"


def test_a_coordinator_is_remembered_until_another_takes_its_place() -> None:
    known = Exchange(Leases(0.0))
    first = known.auth(KEYS, VERSION)
    assert known.auth(replace(KEYS), VERSION) is first
    for keys, contract in ((replace(KEYS, term=2), VERSION), (replace(KEYS, term=2), OLDEST)):
        other = known.auth(keys, contract)
        assert other is not first
        first = other


def made(*variables: Any, role: str = "coordinator") -> int:
    pod = an_object(
        "pod", 1, containers=[{"name": "x"}, {"name": "coordinator", "env": [{"name": "A"}, *variables]}]
    )
    pod["metadata"]["labels"] = {"ropeteam.dev/role": role}
    return parsing.pod(pod)[1].contract


def config_env(value: Any) -> Any:
    return {"name": "ROPETEAM_CONFIG", "value": value}


def test_what_a_coordinator_was_made_for_is_read_from_its_pod() -> None:
    """Where it does not say it as an operator of ours would, it is spoken to in the strictest way."""
    assert made(config_env('{"contract": 2}')) == 2
    assert made(config_env('{"contract": 2}'), role="worker") == VERSION
    for malformed in ("{}", "", "[]", "7", '"contract"', '{"contract": true}', '{"contract": "1"}', None, 7):
        assert made(config_env(malformed)) == VERSION
    assert made() == made({"name": "ROPETEAM_CONFIG", "valueFrom": {}}) == VERSION
    assert made(config_env(orjson.dumps({"contract": VERSION}).decode())) == VERSION
