"""A rolling upgrade: agents of the release before, as recorded from it, under a coordinator of this one, and
the other way round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.coordinator.reports import SIGKILL, agent
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract import LEASES, OLDEST, VERSION, codec
from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.contract.messages import AgentReport

RECORDED = Path(__file__).parent / "recorded"


def old_agents() -> dict[int, AgentReport]:
    reports = (codec.decode(AgentReport, file.read_bytes()) for file in sorted(RECORDED.iterdir()))
    return {report.slot: report for report in reports}


def test_a_world_of_old_agents_is_adopted_and_goes_on_after_a_fault():
    film = Timeline(boot=1)
    film.agents = old_agents()
    assert {report.contract for report in film.agents.values()} == {OLDEST}
    film.desires()
    film.reports(0)
    film.reports(1)
    assert (film.phase, str(film.world_id)) == ("Running", "1.0.1")
    film.exits(1, SIGKILL)
    film.applies_orders()
    assert (film.phase, str(film.world_id)) == ("Running", "1.1.1")
    plan = film.sent_orders(1).plan
    assert plan is not None
    assert (plan.whole, len(plan.members)) == (None, 2), "an old agent wants all members"


def test_old_and_new_agents_are_in_one_world():
    film = Timeline()
    film.agents = {0: agent(0), 1: agent(1, contract=LEASES)}
    film.up(step=7)
    old, new = film.sent_orders(0).plan, film.sent_orders(1).plan
    assert old is not None
    assert new is not None
    assert (old.whole, old.hash) == (None, new.hash)
    assert new.whole is not None
    film.reboots()
    film.desires()
    film.reports(0)
    film.reports(1)
    assert film.phase == "Running"
    assert film.sent_orders(0).plan == old
    assert film.sent_orders(1).plan == new


def test_a_part_and_the_whole_of_a_plan_are_of_one_world_in_any_order():
    film = Timeline(3)
    film.agents = {slot: agent(slot, contract=OLDEST + slot % VERSION) for slot in range(3)}
    film.up(step=7)
    film.reboots()
    film.desires()
    for slot in (1, 2, 0):
        film.reports(slot)
    assert (film.phase, str(film.world_id)) == ("Running", "1.0.1")


def test_an_operator_claims_no_more_than_a_coordinator_of_the_release_before_takes():
    assert replace(Timeline().desired).contract == Desired(1, 1, 1, {}).contract == OLDEST
