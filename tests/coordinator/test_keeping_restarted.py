"""A restarted coordinator finds ranks that were kept, whatever of the plan has reached their agents."""

from __future__ import annotations

from dataclasses import replace

from lab.coordinator.reports import KILLED, after_orders
from tests.coordinator.test_preserving import EVERYBODY, others, recovered, struck

from ropeteam_trainer.contract.messages import AgentReport, RankPhase
from ropeteam_trainer.contract.world import Member, Plan, WorldId
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld


def test_a_world_of_preserved_ranks_is_adopted():
    seen = struck(1)
    seen.applies_orders()
    plan = seen.state.world.plan
    seen.reboots()
    seen.desires()
    for slot in EVERYBODY:
        seen.reports(slot)
    assert (seen.phase, seen.state.world.plan) == ("Running", plan)


def test_a_preserved_agent_that_has_not_received_the_plan_is_in_that_world():
    seen = struck(1)
    seen.applies_orders(1)
    seen._apply_orders(0)
    seen.applies_orders(1)
    plan = seen.state.world.plan
    assert seen.agents[1].plan == plan != seen.agents[2].plan
    seen.reboots()
    seen.desires()
    for slot in EVERYBODY:
        seen.reports(slot)
    assert (seen.phase, seen.state.world.plan) == ("Running", plan)
    seen.applies_orders()
    assert {report.plan.world_id for report in seen.agents.values()} == {plan.world_id}


def test_after_a_restart_while_a_world_forms_preserved_ranks_stay_preserved():
    seen = struck(1)
    seen.applies_orders(1)
    old = seen.state.world.plan
    assert seen.phase == "Forming"
    seen.reboots()
    seen.desires()
    for slot in EVERYBODY:
        seen.reports(slot)
    seen.applies_orders()
    plan = seen.sent_orders(0).plan
    assert (plan.preserved, plan.server_generation) == (others(1), old.world_id)
    assert all(exits(seen.agents[slot]) == [None] for slot in others(1)), "nobody was killed"


def exits(report: AgentReport) -> list[object]:
    return [rank.exit for rank in report.ranks]


def test_a_plan_that_only_some_got_is_superseded_and_its_preserved_ranks_live():
    seen = struck(1)
    seen.applies_orders(1)
    seen._apply_orders(0)
    assert seen.phase == "Running"
    seen.agents[0] = after_orders(seen.agents[0], seen.sent_orders(0))
    assert seen.agents[1].plan.world_id.n == 1, "it has not got it"
    seen.reboots()
    seen.desires()
    for slot in EVERYBODY:
        seen.reports(slot)
    seen.applies_orders()
    plan = seen.sent_orders(0).plan
    assert plan.preserved == others(1)
    assert all(exits(seen.agents[slot]) == [None] for slot in others(1))


def test_an_agent_without_the_preserved_ranks_is_a_fault():
    seen = struck(1)
    seen.applies_orders()
    dead = replace(seen.agents[2].ranks[0], phase=RankPhase.EXITED, exit=KILLED)
    seen.reports(2, ranks=(dead,), stopped=True)
    assert recovered(seen).preserved == others(2)


def test_ranks_are_those_of_a_world_only_if_pod_and_birth_are_the_same():
    """An agent that has not received yet that they were kept shows a plan from before."""

    def a_plan(n: int, pod: str, started_in: int | None) -> Plan:
        member = Member(0, 1, pod, "10.0.0.1", 1, WorldId(1, 0, started_in) if started_in else None)
        return Plan(WorldId(1, 0, n), 1, (member,), "10.0.0.1", 1)

    def has(pod: str, n: int, started_in: int | None) -> bool:
        report = AgentReport(0, 1, pod, "10.0.0.1", "job", 1, plan=a_plan(n, pod, started_in))
        return FormedWorld(a_plan(3, "a", 1), 0.0).has_ranks_of(report)

    assert has("a", 1, None)
    assert has("a", 2, 1)
    assert not has("a", 2, None), "started anew in between"
    assert not has("b", 2, 1), "another pod"
