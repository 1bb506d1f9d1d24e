"""Agents of this release are shown their own part of a plan, and a coordinator that was restarted puts the
parts together again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lab.coordinator.reports import SIGKILL, agent
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract import VERSION, codec
from ropeteam_trainer.contract.world import Cause, Plan, WorldId


def filmed(workers: int = 3, **settings: Any) -> Timeline:
    film = Timeline(workers, **settings)
    film.agents = {slot: agent(slot, contract=VERSION) for slot in range(film.config.slots)}
    return film


def part(film: Timeline, slot: int) -> Plan:
    plan = film.sent_orders(slot).plan
    assert plan is not None
    return plan


def test_an_agent_is_shown_itself_and_the_first():
    film = filmed(5).up()
    assert [member.slot for member in part(film, 3).members] == [0, 3]
    assert (part(film, 3).world_size, part(film, 3).slots, part(film, 3).ranks(3)) == (5, 5, range(3, 4))
    assert len({part(film, slot).hash for slot in range(5)}) == 1


def test_with_parameter_servers_it_is_shown_these_too():
    film = filmed(4, servers=2).up()
    assert [member.slot for member in part(film, 2).members] == [0, 2, 4, 5]


@pytest.mark.parametrize("what", ["orders", "report"])
def test_what_goes_over_the_wire_for_one_agent_does_not_grow_with_their_number(what: str):
    def size(workers: int) -> int:
        film = filmed(workers)
        film.desires()
        for slot in range(workers):
            film.reports(slot)
        film.applies_orders(0, 7)
        return len(codec.encode(film.sent_orders(7) if what == "orders" else film.agents[7]))

    assert size(200) <= size(20) + 10, "a few digits more"


def test_a_world_is_adopted_when_all_have_reported_their_parts():
    film = filmed().up(step=7)
    before = [part(film, slot) for slot in range(3)]
    film.reboots()
    film.desires()
    film.reports(0)
    film.reports(1)
    assert film.phase == "Waiting"
    film.reports(2)
    assert film.phase == "Running"
    assert [part(film, slot) for slot in range(3)] == before
    assert film.state.world is not None
    assert [member.address for member in film.state.world.plan.members] == [f"10.0.0.{n}" for n in (1, 2, 3)]


def test_of_a_member_that_stays_away_the_others_know_who_it_was():
    film = filmed().up(step=7)
    film.reboots()
    film.falls_silent(1)
    film.desires()
    film.reports(0)
    film.reports(2)
    film.later(6)
    assert film.phase == "Stopping"
    assert (film.incident.cause, film.incident.slot) == (Cause.AGENT_LOST, 1)
    assert film.incident.message == "the agent of slot 1 has not reported for more than 5 s"
    assert [(request.slot, request.incarnation) for request in film.report.replacement_requests] == [(1, 1)]


def test_a_pod_that_was_replaced_meanwhile_is_a_fault_of_the_old_world():
    film = filmed().up(step=7)
    film.reboots()
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2")
    film.reports(0)
    film.reports(2)
    film.agents[1] = agent(1, 2, contract=VERSION)
    film.reports(1)
    assert film.phase == "Stopping"
    assert film.incident.message == "slot 1 was assigned to another pod, without the ranks of this world"
    film.applies_orders()
    assert film.phase == "Running"


def test_a_plan_that_only_some_have_got_is_superseded():
    film = filmed().up(step=7)
    film.exits(1, SIGKILL)
    film.applies_orders(0)
    film.applies_orders(2)
    film.applies_orders(0)
    assert film.agents[0].plan != film.agents[1].plan
    film.reboots()
    film.desires()
    for slot in range(3):
        film.reports(slot)
    assert film.phase == "Stopping"
    film.applies_orders()
    assert film.world_id == WorldId(1, 1, 1)
    assert film.report.incidents == ()


def test_a_part_of_another_shape_is_not_adopted():
    film = filmed().up(step=7)
    whole = part(film, 0).whole
    assert whole is not None
    film.reboots()
    for slot in range(3):
        other = replace(part_of(film, slot), whole=replace(whole, slots=4, incarnations=(4, 1)))
        film.reports(slot, plan=other)
    film.desires()
    assert film.phase == "Forming"


def part_of(film: Timeline, slot: int) -> Plan:
    plan = film.agents[slot].plan
    assert plan is not None
    return plan
