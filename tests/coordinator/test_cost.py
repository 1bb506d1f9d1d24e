"""The cost of one report, one lease, one look at the clock does not grow with the number of agents: counted
in calls, which a busy machine does not change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lab.coordinator.reports import SIGKILL, agent
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract import VERSION
from ropeteam_trainer.contract.messages import Progress, RankPhase, Shard
from ropeteam_trainer.contract.world import ShardFile
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.state.events import Pod

FEW, MANY = 32, 512
MORE = 1.1
"""Small differences come from rounding: a digit more, a branch."""


def calls(act: Callable[[], Any]) -> int:
    """Python functions and built-in ones that were called."""
    count = 0

    def note(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def costs(workers: int) -> dict[str, int]:
    """Of a world's life, what one event of each kind costs, with the orders of its sender."""
    film, found, slot = Timeline(workers, feature_level=2), {}, workers // 2
    film.agents = {each: agent(each, contract=VERSION) for each in range(workers)}

    def note(name: str, event: membership.Event) -> None:
        def act() -> None:
            film.event(event)
            membership.orders_for_slot(film.state, slot, film.now)

        found[name] = calls(act)

    def reported(**changes: Any) -> membership.Event:
        film.agents[slot] = replace(film.agents[slot], **changes)
        return membership.ReportReceived(film.agents[slot], True)

    film.desires()
    for each in range(slot):
        film.reports(each)
    note("registration", reported())
    film.up(step=3)
    rank = film.agents[slot].ranks[0]
    note("progress", reported(progress=Progress(step=4), ranks=(replace(rank, step=4),)))
    note("clock", membership.Tick())
    plan = film.agents[slot].plan
    assert plan is not None
    shard = Shard(rank.rank, plan.world_id, 4, (ShardFile("x", 1, "00"),))
    note("shard", reported(shards=(shard,)))
    note("asked to leave", reported(terminating=True))
    film.reports(slot, terminating=False)
    film.exits(1, SIGKILL)
    assert film.phase == "Stopping"
    film.applies_orders(*range(2, slot))
    dead = replace(rank, phase=RankPhase.EXITED, exit=SIGKILL)
    note("rank ended", reported(ranks=(dead,), stopped=True))
    return found


def test_an_event_costs_the_same_among_many_agents_as_among_few():
    few, many = costs(FEW), costs(MANY)
    assert {name: cost for name, cost in many.items() if cost > MORE * few[name]} == {}, few


def cost_while_a_rank_is_lost(workers: int) -> int:
    """Under sync Exact, of the report of a rank that lives on."""
    film, slot = Timeline(workers, feature_level=3, processes=2).up(step=3), workers // 2
    for each, report in sorted(film.agents.items()):
        film.reports(each, ranks=tuple(replace(rank, regroups=True) for rank in report.ranks))
    first, second = film.agents[1].ranks
    film.reports(1, ranks=(first, replace(second, phase=RankPhase.EXITED, exit=SIGKILL)))
    ranks = tuple(replace(rank, step=4) for rank in film.agents[slot].ranks)
    event = membership.ReportReceived(replace(film.agents[slot], ranks=ranks), True)

    def act() -> None:
        film.event(event)
        orders = membership.orders_for_slot(film.state, slot, film.now)
        assert orders is not None
        assert orders.lost == (3,)

    return calls(act)


def test_an_event_costs_the_same_among_many_ranks_that_live_on():
    assert cost_while_a_rank_is_lost(MANY) <= MORE * cost_while_a_rank_is_lost(FEW)


def test_a_lease_costs_next_to_nothing():
    film = Timeline(MANY).up(step=3)
    pods = [Pod(slot, 1, f"pod-{slot}-1") for slot in range(MANY)]
    each = calls(lambda: film.event(membership.LeasesRenewed(dict.fromkeys(pods, film.now)))) / MANY
    assert each < 10
    assert film.phase == "Running"


def test_a_tick_and_an_unchanged_report_concern_next_to_nobody():
    """Orders were made again for every agent, each second."""
    film = Timeline(MANY).up(step=3)
    for event in (membership.Tick(), membership.DesiredReceived(film.desired)):
        before = film.state
        film.event(event)
        concerned = membership.affected_slots(before, film.state) & film.state.all_slots
        assert concerned.bit_count() <= 2


def test_while_leases_are_renewed_expiry_is_not_scanned():
    film = Timeline(MANY).up(step=3)
    film.now += film.config.timeouts.lost / 2
    film.event(membership.LeasesRenewed(dict.fromkeys(film.state.agents, film.now)))
    film.now = film.state.leases_until + 0.01
    assert calls(lambda: film.event(membership.Tick())) / MANY < 3
    assert film.phase == "Running"
