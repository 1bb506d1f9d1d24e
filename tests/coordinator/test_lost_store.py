"""Under sync Exact: the store of a world that starts ranks beside others ends."""

from __future__ import annotations

from lab.coordinator.reports import CLEAN
from tests.coordinator.replicas import (
    SLOTS,
    dies,
    film,
    joined,
    joining,
    starting,
    trains,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.world import Cause, FailReason, WorldId


def test_a_store_that_ends_before_its_ranks_have_joined_costs_these_alone_and_no_step():
    seen = joining()
    trains(seen, 12, 0, 2)
    seen.reports(0, lost_store=WorldId(1, 0, 2))
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [(3,)] * 3
    assert seen.report.why.endswith("; the ranks of 3 slots continue")
    assert (seen.incident.id, seen.incident.slot, seen.incident.rank) == ("1.0.2", 0, None)
    assert (seen.incident.cause, seen.incident.charged) == (Cause.SIGNAL, True)
    assert seen.incident.message == (
        "the TCPStore of world 1.0.2 has ended before all its ranks had joined the others; the log of the "
        "pod in slot 0 says why it ended"
    )
    plan = joined(seen)
    assert (plan.world_id.n, plan.started, plan.preserved, plan.origin) == (3, (3,), SLOTS, WorldId(1, 0, 1))
    assert starting(seen) == [3]
    trains(seen, 13)
    assert [incident.steps_lost for incident in seen.report.incidents] == [0, 0]
    assert seen.report.incidents[0].recovery_milliseconds.first_step is not None


def test_a_store_that_ends_before_an_agent_knows_its_plan_ends_that_world():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.replaces(1)
    seen.applies_orders(0)
    assert (seen.phase, seen.agents[1].plan) == ("Running", None)
    seen.reports(0, lost_store=seen.world_id)
    assert (without_plan(seen), seen.incident.cause) == ([1], Cause.SIGNAL)
    plan = joined(seen)
    assert (plan.world_id.n, plan.started, plan.preserved) == (3, (2, 3), (0, 2))


def test_a_store_in_which_all_have_joined_may_end():
    seen = joining()
    trains(seen, 12)
    seen.reports(0, lost_store=seen.world_id)
    assert (seen.phase, len(seen.report.incidents), without_plan(seen)) == ("Running", 1, [])
    seen.later(700)
    assert seen.phase == "Running"


def test_a_store_that_only_a_rank_misses_that_has_ended_well_may_end():
    """Too late for a step."""
    seen = joining()
    dies(seen, 3, how=CLEAN)
    seen.reports(0, lost_store=seen.world_id)
    assert (seen.phase, len(seen.report.incidents)) == ("Running", 1)


def test_the_store_of_another_world_or_in_another_pod_may_end():
    seen = joining()
    seen.reports(0, lost_store=WorldId(1, 0, 1))
    seen.reports(1, lost_store=WorldId(1, 0, 2))
    assert (seen.phase, len(seen.report.incidents)) == ("Running", 1)
    first = Timeline(workers=3, processes=2, feature_level=3).up()
    first.reports(0, lost_store=first.world_id)
    assert first.phase == "Running", "of a world that starts all its ranks together, its agent ends them"


def test_stores_that_end_again_and_again_cost_their_pod_and_then_the_job():
    seen = joining()
    seen.desires(allowance=3)
    for _ in range(2):
        seen.reports(0, lost_store=seen.world_id)
        joined(seen)
    assert [request.slot for request in seen.report.replacement_requests] == [0]
    seen.reports(0, lost_store=seen.world_id)
    seen.applies_orders()
    assert (seen.phase, seen.report.failure.reason) == ("Failed", FailReason.BUDGET_SPENT)
