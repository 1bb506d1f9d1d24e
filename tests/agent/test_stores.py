"""The machine: the TCPStore that an agent hosts for a world."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.agent.life import Life, a_plan, world_id

from ropeteam_trainer.agent.machine.effects import (
    CloseStore,
    HostStore,
    KillRanks,
    StartRanks,
)
from ropeteam_trainer.agent.machine.events import (
    Event,
    LinkLost,
    LinkUp,
    RanksStarted,
    StoreDown,
    StoreUp,
)
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.stores import StoreHost
from ropeteam_trainer.contract.messages import StoreOffer

HAS_IPV6 = Path("/proc/net/if_inet6").exists()


def test_a_store_is_held_for_the_requested_world():
    life = Life().receives(LinkUp()).ordered(host_store=world_id(1))
    assert life.did == (HostStore(world_id(1)),)
    assert life.wait(1).did == ()
    offer = StoreOffer(world_id(1), "10.0.0.0", 4)
    assert life.receives(StoreUp(offer)).report.store == offer
    assert life.ordered(plan=a_plan(1), host_store=None).did_no(CloseStore), "the world's own"
    assert life.ordered(host_store=world_id(2)).did == (HostStore(world_id(2)),)
    assert CloseStore(world_id(1)) in life.ordered(plan=None).did, "it ends a world for ranks that wait in it"
    assert life.report.store is None
    assert life.receives(StoreUp(offer)).report.store is None, "too late"


def test_a_store_that_fails_is_tried_again_after_a_pause():
    life = Life().receives(LinkUp()).ordered(host_store=world_id()).receives(StoreDown(world_id()))
    assert life.wait(0.5).did == ()
    assert life.wait(0.5).did == (HostStore(world_id()),)


def a_host():
    """An agent that has offered the store that a_plan(1) names."""
    life = Life().receives(LinkUp()).ordered(host_store=world_id(1))
    return life.receives(StoreUp(StoreOffer(world_id(1), "s", 1)))


def test_ranks_whose_store_ends_are_killed_and_the_store_is_the_cause():
    life = a_host().running().receives(StoreDown(world_id(1))).wait(0)
    assert life.did == (KillRanks(world_id(1), (0, 1)),)
    assert life.wait(1).did_no(KillRanks), "once"
    exit = life.died(0).report.ranks[0].exit
    assert (exit.signal, exit.killed) == (9, False), "weighed as what nobody ordered"
    assert exit.message == (
        "the TCPStore of world 1.0.1 at s:1 has ended, so its ranks cannot form a process group; the log of "
        "the pod in slot 0 says why it ended"
    )


def test_ranks_that_have_not_started_yet_are_killed_when_they_have():
    life = a_host().ordered(plan=a_plan(1)).receives(StoreDown(world_id(1))).wait(0)
    assert life.did_no(KillRanks), "nobody has a pid"
    assert life.receives(RanksStarted(world_id(1))).did_a(KillRanks).ranks == (0, 1)


def test_ranks_that_save_on_orders_may_do_so_without_a_store():
    life = a_host().running().ordered(pause=world_id(1)).receives(StoreDown(world_id(1))).wait(0)
    assert life.did_no(KillRanks)
    assert life.ordered(pause=None).did_a(KillRanks).ranks == (0, 1)


def test_a_plan_that_crosses_the_end_of_its_store_starts_nothing():
    life = a_host().receives(StoreDown(world_id(1)))
    assert life.report.store is None
    life.wait(1).receives(StoreUp(StoreOffer(world_id(1), "s", 2)))
    assert life.report.store == StoreOffer(world_id(1), "s", 2)
    life.ordered(plan=a_plan(1))
    assert life.did_no(StartRanks)
    exits = [rank.exit for rank in life.report.ranks]
    assert [exit.message.partition(" has")[0] for exit in exits] == ["the TCPStore of world 1.0.1 at s:1"] * 2


def test_a_plan_that_names_the_newer_store_of_its_world_starts():
    life = (
        a_host().receives(StoreDown(world_id(1))).wait(1).receives(StoreUp(StoreOffer(world_id(1), "s", 2)))
    )
    assert life.ordered(plan=a_plan(1, store_port=2)).did_a(StartRanks)


def test_a_store_that_was_closed_for_a_problem_that_passes_is_missed():
    life = a_host()
    life.disk_answers = False
    life.ordered(plan=a_plan(1)).wait(301)
    assert CloseStore(world_id(1)) in life.did
    life.claimed(a_plan(1))
    assert life.did_no(StartRanks)
    assert "has ended" in life.report.ranks[0].exit.message


def test_no_store_is_held_by_a_refused_or_fenced_agent():
    life = Life().receives(LinkUp()).ordered(host_store=world_id())
    assert life.ordered(refused="no").did == (CloseStore(world_id()),)
    life = Life().receives(LinkUp()).ordered(host_store=world_id()).receives(LinkLost()).wait(200)
    assert life.did == (CloseStore(world_id()),)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_store_listens_on_the_address_of_its_pod(address: str):
    if ":" in address and not HAS_IPV6:
        pytest.skip("this machine has no IPv6")
    events: list[Event] = []
    host = StoreHost(address, Reaper(), None, events.append)
    host.host(world_id())
    (event,) = events
    assert isinstance(event, StoreUp)
    assert event.offer.host == address
    with socket.create_connection((address, event.offer.port)):
        host.close_all()
