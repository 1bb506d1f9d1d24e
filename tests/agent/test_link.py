"""The connection to the coordinator, with real sockets: coming back, and peers that are not trusted."""

from __future__ import annotations

import asyncio

from lab.waiting import wait_until_async
from tests.agent import harness
from tests.agent.harness import a_plan

from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.messages import RankPhase

SLEEP = "import time\nprint('up')\ntime.sleep(1000)\n"


async def running(pod, coordinator):
    (pod.folder / "x.py").write_text(SLEEP)
    pod.start("python3", "x.py")
    coordinator.order(plan=a_plan())
    await coordinator.wait_for(lambda r: r.plan and r.ranks[0].phase is RankPhase.RUNNING)


async def test_a_returning_coordinator_receives_the_whole_state_and_the_world_continues(pod, coordinator):
    await running(pod, coordinator)
    ranks, port = set(pod.living()), coordinator.port
    await coordinator.stop()
    await pod.printed("no connection to the coordinator at")
    coordinator.report = None
    await coordinator.start(port)
    report = await coordinator.wait_for(lambda r: r.plan == a_plan())
    assert report.ranks[0].phase is RankPhase.RUNNING
    assert set(pod.living()) == ranks


async def test_a_lease_is_renewed_without_changes(pod, coordinator):
    await running(pod, coordinator)
    seen = len(coordinator.history)
    await coordinator.wait_for(lambda _: len(coordinator.history) >= seen + 3)
    assert coordinator.connections == 1
    assert all(report.applied_orders for report in coordinator.history[-2:])


async def test_orders_with_a_wrong_mac_are_not_applied(pod, coordinator, monkeypatch):
    (pod.folder / "x.py").write_text(SLEEP)
    pod.start("python3", "x.py")
    await coordinator.wait_for(lambda _: True)
    monkeypatch.setattr(harness, "TOKEN", bytes(32))
    await coordinator.drop_link()
    coordinator.order(plan=a_plan())
    await pod.printed("wrong MAC")
    assert "up" not in pod.text()


async def test_a_lower_term_is_refused_with_a_reason(pod, coordinator):
    coordinator.order(term=3)
    await running(pod, coordinator)
    coordinator.order(term=2, plan=None)
    await pod.printed("closed: it is of term 2.0, and a coordinator of term 3.0 has answered before")
    coordinator.order(term=3, plan=a_plan())
    report = await coordinator.wait_for(lambda r: r.applied_orders > 0)
    assert report.ranks[0].phase is RankPhase.RUNNING
    assert report.term == 3


async def test_a_peer_that_is_no_coordinator_is_left(make_pod, coordinator):
    await coordinator.stop()

    async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(chat, "127.0.0.1", coordinator.port)
    pod = make_pod()
    (pod.folder / "x.py").write_text("")
    pod.start("python3", "x.py")
    await pod.printed("the peer is not a coordinator")
    server.close()


async def test_a_coordinator_that_falls_silent_is_probed_and_then_left(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=1))
    await running(pod, coordinator)
    coordinator.silent = True
    await coordinator.wait_for(lambda r: r.applied_orders == 0 and coordinator.connections == 1)
    await wait_until_async(pod.text, lambda: coordinator.connections > 1)
    await pod.printed("no answer for")


async def test_a_recorded_coordinator_cannot_be_played_to_an_agent(pod, coordinator):
    await running(pod, coordinator)
    coordinator.order(plan=None, release=True)
    assert await pod.exit_code() == 0
    recorded, port = coordinator.sent, coordinator.port
    await coordinator.stop()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(recorded)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", port)
    pod.start("python3", "x.py")
    await pod.printed("wrong MAC")
    assert pod.process.poll() is None
    server.close()


async def test_the_token_is_shown_before_the_report_to_who_looks_for_it(pod, coordinator):
    await running(pod, coordinator)
    assert coordinator.shown == 1
    coordinator.looks = False
    await coordinator.drop_link()
    await coordinator.wait_for(lambda _: coordinator.connections == 2)
    assert coordinator.shown == 1, "a coordinator of the release before takes a report only"


async def test_orders_of_the_previous_release_are_applied_unless_they_may_be_replayed(pod, coordinator):
    coordinator.older = True
    await running(pod, coordinator)
    coordinator.older = False
    await coordinator.drop_link()
    coordinator.order(term=2)
    await coordinator.wait_for(lambda r: r.term == 2)
    coordinator.older = True
    await coordinator.drop_link()
    await pod.printed("orders of term 2 are refused, because they may be a replay")
    coordinator.order(term=3)
    await coordinator.wait_for(lambda r: r.term == 3)
