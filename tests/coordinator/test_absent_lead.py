"""Under sync Exact: worlds without the pod of rank 0. The store is in another pod, and a deputy commits."""

from __future__ import annotations

from tests.coordinator.replicas import dies, plan_of, saves_for_all, trains
from tests.coordinator.test_absent import comes, join, missing, reboots_without
from tests.coordinator.test_deputies import able, claims, granted
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason, WorldId
from ropeteam_trainer.coordinator.membership.forming import GATHER_SECONDS


def test_without_the_pod_of_rank_0_another_holds_the_store_and_commits():
    seen = missing(0, 1)
    assert claims(seen) == {2: WorldId(1, 0, 2)}
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    plan = plan_of(seen, 2)
    assert (plan.started, plan.absent, plan.store_host) == ((2, 3), (0, 1), plan.member(2).address)
    deputy = WorldId(1, 0, 2)  # as before
    assert (seen.world_id, claims(seen)) == (WorldId(1, 0, 3), {2: deputy})
    join(seen)
    saves_for_all(seen, 16, 2)
    assert granted(seen) == {2: (16, deputy)}
    seen.applies_orders()
    assert [(ref.step, ref.world_id) for ref in seen.state.lineage][:1] == [(16, deputy)]
    comes(seen, 0)
    plan = plan_of(seen, 0)
    assert (seen.phase, plan.started, plan.absent) == ("Running", (0, 1), ())
    assert claims(seen) == {}


def test_the_store_is_in_no_slot_that_is_absent_with_its_mate():
    seen = Timeline(workers=6, processes=1, replica_ranks=2, feature_level=3).up(step=10)
    for slot in range(6):
        seen.reports(slot, supports_claim=True)
    trains(seen, 12)
    seen.falls_silent(1)
    seen.later(6)
    seen.applies_orders()
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    plan = plan_of(seen, 2)
    assert (seen.phase, plan.absent, plan.store_host) == ("Running", (0, 1), plan.member(2).address)


def test_a_deputy_whose_pod_was_replaced_is_none():
    seen = missing(0, 1)
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    join(seen)
    assert claims(seen) == {2: WorldId(1, 0, 2)}
    dies(seen, 4, 5)
    seen.replaces(2)
    able(seen, 2)
    assert claims(seen) == {1: WorldId(1, 0, 4)}


def test_the_end_of_that_store_restarts_all():
    seen = missing(0, 1)
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    seen.reports(2, lost_store=seen.world_id)
    assert "the TCPStore of world 1.0.3 has ended" in seen.incident.message
    assert "in slot 2 says why" in seen.incident.message


def test_a_pod_of_slot_0_in_which_nothing_starts_does_not_hold_the_store():
    seen = missing(0, 1)
    comes(seen, 0)
    seen.reports(0, problem=Problem(FailReason.CHECKPOINT_NOT_WRITABLE, "read-only", transient=True))
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert (seen.phase, plan_of(seen, 2).absent) == ("Running", (0, 1))
    assert plan_of(seen, 2).store_host == plan_of(seen, 2).member(2).address


def test_a_restarted_coordinator_appoints_another_deputy():
    seen = missing(0, 1)
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    join(seen)
    reboots_without(seen, 0)
    assert (seen.phase, seen.world_id) == ("Running", WorldId(1, 0, 3))
    orders = seen.sent_orders(1)
    assert (orders.claim, orders.saves_as) == (WorldId(1, 1, 1), WorldId(1, 1, 1))
    assert seen.sent_orders(2).claim is None
