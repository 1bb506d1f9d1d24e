"""Many unauthenticated clients: those with the token are served all the same, and memory has a bound."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from lab.coordinator.link import Crowd, Link, get_status, http, put_desired, request
from lab.coordinator.reports import agent
from lab.waiting import wait_until_async
from tests.coordinator.conftest import ServedCoordinator

from ropeteam_trainer.contract import codec, wire
from ropeteam_trainer.contract.desired import Desired, SlotDesired
from ropeteam_trainer.contract.messages import AgentReport, Shard
from ropeteam_trainer.contract.world import ShardFile, WorldId
from ropeteam_trainer.coordinator import agentconnection, server

DESIRED = Desired(1, 1, 1, {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in (0, 1)}, allowance=5)
LONGEST = struct.pack(">I", wire.MAX_BODY) + b"x" * wire.MAX_BODY
"""A frame without the last 32 bytes."""


def long_report() -> AgentReport:
    files = tuple(ShardFile(f"__0_{n}.distcp", 1, "f" * 64) for n in range(6_000))
    return replace(agent(0), shards=(Shard(0, WorldId(1, 0, 1), 10, files),))


async def registered(served: ServedCoordinator, report: AgentReport) -> None:
    """At once: the first connection is served."""
    link = await Link().connect(served.agents)
    link.send(report)
    await link.wait_for(lambda orders: orders.number == 1)
    await link.close()


async def test_silent_unauthenticated_peers_keep_no_agent_out(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    crowd = Crowd(served.agents, 150)
    await crowd.has_come()
    await registered(served, agent(0))
    await crowd.go()


async def test_an_agent_that_has_reported_stays_whoever_comes(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    link = await Link().connect(served.agents)
    link.send(agent(0))
    await link.wait_for(lambda orders: orders.number == 1)
    crowd = Crowd(served.agents, 150, address="127.0.0.1")
    await crowd.has_come()
    link.send(agent(0, number=2, applied_orders=1, terminating=True))
    await link.wait_for(lambda orders: orders.leave)
    await crowd.go()
    await link.close()


async def test_who_has_shown_the_token_stays_however_long_its_report_is(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    link = await Link().connect(served.agents)
    link.write(link.sealer.seal(b""))
    await wait_until_async(
        "the agent is authenticated", lambda: served.coordinator.unauthenticated.taken == 0
    )
    frame = link.sealer.seal(codec.encode(long_report()))
    link.write(frame[: len(frame) // 2])
    crowd = Crowd(served.agents, 150)
    await crowd.has_come()
    link.write(frame[len(frame) // 2 :])
    await link.wait_for(lambda orders: orders.number == 1)
    await crowd.go()
    await link.close()


async def test_half_requests_keep_neither_the_operator_nor_a_probe_nor_prometheus_out(
    served: ServedCoordinator,
):
    crowd = Crowd(served.http, 150, b"GET /metrics HTTP/1.1\r\n")
    await crowd.has_come()
    assert (await put_desired(served.http, DESIRED)).observed_generation == 1
    assert (await get_status(served.http)).observed_generation == 1
    for path in ("/healthz", "/metrics"):
        assert (await http(served.http, request("GET", path)))[0] == 200
    await crowd.go()


async def test_the_log_does_not_grow_with_unauthenticated_input(served: ServedCoordinator):
    for size in range(3):
        link = await Link().connect(served.agents)
        link.write(struct.pack(">I", wire.MAX_BODY + 1 + size))
        assert await link.is_closed()
    assert len([line for line in served.lines if "closed" in line]) == 1


def held(served: ServedCoordinator) -> int:
    """Bytes of frames that nobody knows to be genuine."""
    return sum(len(line._opener._buffer) for line in served.coordinator._connections if line._opener)


async def test_unauthenticated_input_is_held_within_a_bound(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(agentconnection, "FIRST_REPORT_SECONDS", 300.0)
    crowd = Crowd(served.agents, 20, LONGEST)
    await crowd.has_come()
    places = 2 + server.SPARE_PLACES
    await wait_until_async(
        "half of the bound is held", lambda: held(served) > places * agentconnection.BYTES_PER_PLACE // 2
    )
    assert held(served) <= (places + 1) * agentconnection.BYTES_PER_PLACE
    await crowd.go()


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
async def test_a_long_first_report_is_received_beside_them(served: ServedCoordinator, address: str):
    """An agent's shards are reported again on each new connection."""
    await put_desired(served.http, DESIRED)
    report = long_report()
    crowd = Crowd(served.agents, 5, LONGEST, address)
    await crowd.has_come()
    await registered(served, report)
    await crowd.go()
