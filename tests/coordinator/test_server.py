"""The agents' port, with real sockets: accepted peers, refused ones, and what a bad one can do (nothing)."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace

from lab.coordinator.link import TOKEN, FakeAgent, Link, get_status, put_desired
from lab.coordinator.reports import SIGKILL, agent
from lab.waiting import wait_until_async
from tests.coordinator.conftest import ServedCoordinator

from ropeteam_trainer.contract import OLDEST, VERSION, codec, wire
from ropeteam_trainer.contract.desired import Desired, SlotDesired
from ropeteam_trainer.contract.messages import LEASE, RankPhase, Shard
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.coordinator import agentconnection

DESIRED = Desired(1, 1, 1, {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in (0, 1)}, allowance=5)


async def test_two_agents_form_a_world_and_a_killed_rank_brings_the_next(served: ServedCoordinator):
    agents = [FakeAgent(agent(slot), served.agents) for slot in (0, 1)]
    assert (await put_desired(served.http, DESIRED)).phase.value in ("Waiting", "Forming")
    await wait_until_async(
        "both agents have the plan", lambda: all(each.report.plan is not None for each in agents)
    )
    first = agents[0].report.plan
    assert first is not None
    dead = tuple(replace(rank, phase=RankPhase.EXITED, exit=SIGKILL) for rank in agents[1].report.ranks)
    agents[1].change(ranks=dead, stopped=True)
    await wait_until_async("agent 1 has the next plan", lambda: agents[1].report.plan != first)
    report = await get_status(served.http)
    assert report.phase.value == "Running"
    assert [incident.id for incident in report.incidents] == [str(first.world_id)]
    assert served.logged("phase=Running world=1.0.2")
    for each in agents:
        await each.stop()


async def test_orders_are_numbered_from_one_on_each_connection(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    for _ in range(2):
        link = await Link().connect(served.agents)
        link.send(agent(0))
        orders = await link.wait_for(lambda orders: orders.host_store is not None)
        assert orders.number == 1
        await link.close()


async def test_orders_that_were_not_applied_are_sent_again(served: ServedCoordinator, monkeypatch):
    monkeypatch.setattr(agentconnection, "RESEND_SECONDS", -1.0)
    await put_desired(served.http, DESIRED)
    link = await Link().connect(served.agents)
    link.send(agent(0))
    await link.wait_for(lambda orders: orders.number == 1)
    link.send(agent(0, applied_orders=1))
    link.send(agent(0, applied_orders=0))
    await link.wait_for(lambda orders: orders.number == 2)
    await link.close()


async def test_a_wrong_token_is_disconnected(served: ServedCoordinator):
    link = await Link(token=b"another job's").connect(served.agents)
    link.send(agent(0))
    assert await link.is_closed()
    assert served.logged("wrong MAC")
    assert served.coordinator.state.agents == {}


async def test_a_replayed_or_moved_frame_is_disconnected(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    frame = link.sealer.seal(codec.encode(agent(0)))
    link.write(frame)
    await wait_until_async("the agent is registered", lambda: bool(served.coordinator.state.agents))
    link.write(frame)
    assert await link.is_closed()
    other = await Link().connect(served.agents)
    other.write(frame)
    assert await other.is_closed()


async def test_a_report_of_an_agent_of_the_previous_release_is_accepted(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    link = await Link(older=True).connect(served.agents)
    link.send(agent(0))
    await link.wait_for(lambda orders: orders.number == 1)
    await link.close()


async def test_an_answer_in_pieces_is_the_same_answer(served: ServedCoordinator):
    link = await Link(older=True).connect(served.agents)
    sealer = wire.Sealer(wire.session_key(TOKEN, b"n" * wire.NONCE_SIZE), link.nonce, wire.TO_COORDINATOR)
    stream = wire.ANSWER + b"n" * wire.NONCE_SIZE + sealer.seal(codec.encode(agent(0)))
    for byte in stream:
        link.write(bytes([byte]))
        await asyncio.sleep(0)
    await wait_until_async("the agent is registered", lambda: bool(served.coordinator.state.agents))
    await link.close()


async def test_an_oversized_frame_is_disconnected_before_it_is_read(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    link.write(struct.pack(">I", wire.MAX_BODY + 1))
    assert await link.is_closed()
    assert served.logged("the limit is 1048576")


async def test_garbage_and_genuine_nonsense_are_disconnected(served: ServedCoordinator):
    for bad in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02" + b"x" * 40):
        link = await Link().connect(served.agents)
        link.write(bad)
        assert await link.is_closed()
    link = await Link().connect(served.agents)
    link.write(link.sealer.seal(b'{"slot": "one"}'))
    assert await link.is_closed()
    assert served.logged("AgentReport.slot: expected int")
    link = await Link().connect(served.agents)
    link.send(agent(0))
    await wait_until_async("the agent is registered", lambda: bool(served.coordinator.state.agents))
    await link.close()


async def test_the_newest_connection_of_a_pod_wins(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    old = await Link().connect(served.agents)
    old.send(agent(0))
    await old.wait_for(lambda _: True)
    new = await Link().connect(served.agents)
    new.send(agent(0))
    await new.wait_for(lambda _: True)
    assert await old.is_closed()
    assert served.logged("the same pod has a newer connection")
    await new.close()


async def test_another_pod_does_not_displace_the_one_that_holds_the_slot(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    holder = await Link().connect(served.agents)
    holder.send(agent(0))
    await holder.wait_for(lambda _: True)
    twin = await Link().connect(served.agents)
    twin.send(agent(0, pod_uid="twin"))
    orders = await twin.wait_for(lambda orders: bool(orders.refused))
    assert orders.refused == "slot 0 is held by another pod (pod-0-1)"
    assert served.logged("refused")
    holder.send(agent(0, terminating=True))
    await holder.wait_for(lambda orders: orders.leave)
    await holder.close()
    await twin.close()


async def test_what_follows_a_bad_message_in_the_same_packet_is_not_read(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    link.write(link.sealer.seal(codec.encode(agent(0))) + link.sealer.seal(codec.encode(agent(1))))
    link.send(agent(0))
    assert await link.is_closed()
    assert sorted(pod.slot for pod in served.coordinator.state.agents) == [0]


async def test_one_connection_speaks_for_one_pod(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    link.send(agent(0))
    link.send(agent(1))
    assert await link.is_closed()


async def test_a_connection_that_sends_nothing_is_closed(served: ServedCoordinator, monkeypatch):
    monkeypatch.setattr(agentconnection, "FIRST_REPORT_SECONDS", 0.05)
    link = await Link().connect(served.agents)
    assert await link.is_closed()
    assert served.logged("no report was received")


async def test_an_agent_that_reads_nothing_is_closed(served: ServedCoordinator, monkeypatch):
    monkeypatch.setattr(agentconnection, "MOST_UNSENT", -1)
    await put_desired(served.http, DESIRED)
    link = await Link().connect(served.agents)
    link.send(agent(0))
    await wait_until_async(
        "the closed connection is logged", lambda: served.logged("the agent does not read its orders")
    )
    await link.close()


async def test_when_the_coordinator_stops_its_connections_end(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    served.coordinator.stop()
    assert await link.is_closed()


async def test_orders_that_do_not_fit_into_a_frame_end_the_connection(served: ServedCoordinator, monkeypatch):
    monkeypatch.setattr(wire, "MAX_BODY", 2000)
    lineage = tuple(CheckpointRef(step, WorldId(1, 0, 1), "f" * 900) for step in (30, 20, 10))
    await put_desired(served.http, replace(DESIRED, lineage=lineage))
    link = await Link().connect(served.agents)
    link.send(agent(0))
    assert await link.is_closed()
    assert served.logged("is over the limit of 2000")


async def test_a_grant_of_more_files_than_a_frame_holds_reaches_the_leading_agent(served: ServedCoordinator):
    """From 4,100 ranks on the leading agent was cut off for ever by its first checkpoint."""
    agents = [FakeAgent(agent(slot, contract=VERSION), served.agents, feature_level=2) for slot in (0, 1)]
    await put_desired(served.http, DESIRED)
    await wait_until_async(
        "both agents have the plan", lambda: all(each.report.plan is not None for each in agents)
    )
    plan = agents[0].report.plan
    assert plan is not None
    for slot, each in enumerate(agents):
        files = tuple(ShardFile(f"__{slot}_{n}.distcp", 1, "f" * 64) for n in range(5_000))
        each.change(shards=(Shard(slot, plan.world_id, 10, files),))
    await wait_until_async("the checkpoint is committed", lambda: agents[0].report.committed is not None)
    (granted,) = {orders.grant for orders in agents[0].seen if orders.grant}
    assert len(granted.files) == 10_000
    assert len(codec.encode(granted)) > wire.MAX_BODY
    for each in agents:
        await each.stop()


async def test_a_lease_is_answered_now_and_then_also_before_the_operators_first_request(
    served: ServedCoordinator, monkeypatch
):
    """fenceSeconds of an agent begin with the newest of its reports that was answered."""
    monkeypatch.setattr(agentconnection, "answer_seconds", lambda _: 0.0)
    link = await Link().connect(served.agents)
    link.send(agent(0, number=1, contract=OLDEST))
    waiting = await link.wait_for(lambda orders: orders.same)
    assert (waiting.answers, waiting.number, waiting.term) == (1, 0, 1)
    await put_desired(served.http, DESIRED)
    await link.wait_for(lambda orders: not orders.same and orders.answers == 1)
    link.send(agent(0, number=2, applied_orders=1, contract=OLDEST))
    await link.wait_for(lambda orders: orders.same and (orders.answers, orders.number) == (2, 1))
    await link.close()


async def test_an_empty_frame_is_a_lease_that_counts_and_is_answered_in_24_bytes(
    served: ServedCoordinator, monkeypatch
):
    monkeypatch.setattr(agentconnection, "answer_seconds", lambda _: 0.0)
    await put_desired(served.http, DESIRED)
    link = await Link().connect(served.agents)
    link.send(agent(0, number=1))
    await link.wait_for(lambda orders: orders.answers == 1)
    link.send(agent(0, number=2, applied_orders=1))
    await link.wait_for(lambda orders: orders.same and orders.answers == 2)
    (known,) = served.coordinator.state.agents.values()
    link.write(link.sealer.seal(LEASE))
    await link.wait_for(lambda orders: orders.answers == 3)
    put = await put_desired(served.http, DESIRED)
    assert put.slots["0"].registered
    (again,) = served.coordinator.state.agents.values()
    assert again.received_at > known.received_at
    assert again.report is known.report, "nothing was decoded, judged or copied"
    await link.close()


async def test_a_lease_before_any_report_is_disconnected(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    link.write(link.sealer.seal(LEASE) + link.sealer.seal(LEASE))
    assert await link.is_closed()
    assert served.logged("a lease was received before any report"), "the first one only shows the token"


async def test_a_superseded_coordinator_answers_no_lease_nor_does_any_of_a_foreign_pod(
    served: ServedCoordinator, monkeypatch
):
    monkeypatch.setattr(agentconnection, "answer_seconds", lambda _: 0.0)
    await put_desired(served.http, DESIRED)
    old, link = await Link().connect(served.agents), await Link().connect(served.agents)
    old.send(agent(1))
    assert not (await old.wait_for(lambda _: True)).same
    link.send(agent(0, number=1, term=2))
    link.send(agent(0, number=2, term=2))
    await wait_until_async(
        "the coordinator knows that it is superseded", lambda: bool(served.coordinator.state.superseded)
    )
    served.coordinator.stop()
    assert await link.is_closed()
    await old.is_closed()
    assert old.count == 1


async def test_small_writes_are_not_delayed(served: ServedCoordinator):
    link = await Link().connect(served.agents)
    await wait_until_async("the agent is connected", lambda: bool(served.coordinator._connections))
    (line,) = served.coordinator._connections
    sock = line._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    await link.close()


async def test_time_alone_moves_it(served: ServedCoordinator):
    """A silent agent is lost without any message coming."""
    agents = [FakeAgent(agent(slot), served.agents) for slot in (0, 1)]
    await put_desired(served.http, DESIRED)
    await wait_until_async(
        "both agents have the plan", lambda: all(each.report.plan is not None for each in agents)
    )
    await agents[1].stop()
    await wait_until_async(
        "the lost slot is logged", lambda: served.logged("slot 1, which stopped reporting")
    )
    report = await get_status(served.http)
    assert [request.slot for request in report.replacement_requests] == [1]
    await agents[0].stop()


async def test_an_agent_of_this_release_is_sent_its_part_of_the_plan(served: ServedCoordinator):
    agents = [FakeAgent(agent(slot, contract=VERSION), served.agents) for slot in (0, 1)]
    await put_desired(served.http, DESIRED)
    await wait_until_async(
        "both agents have the plan", lambda: all(each.report.plan is not None for each in agents)
    )
    parts = [each.report.plan.whole for each in agents if each.report.plan]
    assert [part and part.slot for part in parts] == [0, 1]
    for each in agents:
        await each.stop()
