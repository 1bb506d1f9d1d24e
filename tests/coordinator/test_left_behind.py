"""Under sync Exact: ranks continue without those of terminating pods, and save before the last ones end."""

from __future__ import annotations

import pytest
from tests.coordinator.replicas import (
    SLOTS,
    dies,
    film,
    joined,
    last_save,
    restores,
    trains,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.desired import SlotDesired
from ropeteam_trainer.contract.world import Cause


def test_a_terminating_pod_is_left_behind():
    seen = film()
    seen.reports(1, terminating=True)
    seen.later(0.9)
    assert seen.phase == "Running", "others may terminate, too"
    seen.later(0.2)
    assert (without_plan(seen), seen.sent_orders(0).lost) == ([1], (2, 3))
    assert not any(seen.sent_orders(slot).pause for slot in SLOTS)
    assert [seen.report.slots[str(slot)].preserved for slot in SLOTS] == [True, False, True]
    seen.applies_orders()
    assert (seen.phase, seen.sent_orders(1).leave) == ("Forming", True)
    trains(seen, 14)
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.preserved) == ((2, 3), (0, 2))
    assert (seen.incident.cause, seen.incident.charged) == (Cause.POD_DELETED, False)
    assert seen.incident.steps_lost == 0
    assert not any(seen.report.slots[str(slot)].preserved for slot in SLOTS), "their world runs"


def test_pods_that_terminate_at_once_are_left_behind_in_one_incident():
    seen = film()
    seen.reports(2, terminating=True)
    seen.later(0.5)
    seen.reports(1, terminating=True)
    seen.later(0.6)
    assert (without_plan(seen), seen.sent_orders(0).lost) == ([1, 2], (2, 3, 4, 5))
    assert len(seen.report.incidents) == 1


def test_a_pod_that_terminates_while_a_rank_is_lost_is_preserved_no_longer():
    seen = film()
    dies(seen, 3, dying=True)
    seen.reports(2, terminating=True)
    assert without_plan(seen) == [2]
    assert seen.sent_orders(0).lost == (3, 4, 5)
    seen.applies_orders()
    assert seen.sent_orders(2).leave


def terminates(seen: Timeline, slot: int) -> None:
    """The operator knows first."""
    seen.desires_slot(slot, terminating=True)
    seen.reports(slot, terminating=True)


def left_behind(*slots: int, replica_ranks: int = 1) -> Timeline:
    """The pods of these slots, and no others have come. The ranks of the others are at step 10."""
    seen = film(replica_ranks=replica_ranks)
    for slot in slots:
        terminates(seen, slot)
    seen.later(1.1)
    seen.applies_orders()
    for slot in slots:
        seen.falls_silent(slot)
        del seen.agents[slot]
        seen.desires_slot(slot, incarnation=2, pod_uid="", terminating=False)
    assert (seen.phase, without_plan(seen)) == ("Forming", [])
    return seen


def test_pods_that_terminate_one_after_the_other_save_last():
    """The pods of slots 1 and 2 are gone, and have no successors yet."""
    seen = left_behind(1)
    terminates(seen, 2)
    assert without_plan(seen) == [2], "slot 0 continues"
    seen.applies_orders()
    terminates(seen, 0)
    assert seen.report.slots["0"].preserved
    assert "terminating: the pod of slot 0" in seen.report.why
    last_save(seen, 0)
    seen.applies_orders()
    assert seen.sent_orders(0).leave
    assert "0" not in seen.report.slots, "the operator may replace it"
    for slot in SLOTS:
        seen.desires_slot(slot, terminating=False)
        seen.replaces(slot, 3)
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.restore[0].step) == ((), (), 13)
    restores(seen, 13)
    assert [each.steps_lost for each in seen.report.incidents] == [0]


@pytest.mark.parametrize("later", [False, True])
def test_all_save_before_the_leading_pod_ends(later: bool):
    """Also those whose pods begin to terminate then."""
    seen = left_behind(1)
    terminates(seen, 0)
    if later:
        terminates(seen, 2)
    assert seen.phase == "Forming"
    last_save(seen, 0, 2)


@pytest.mark.parametrize("first", [0, 1])
def test_all_save_before_the_pod_of_a_mate_of_the_leading_rank_ends(first: int):
    """Ranks 0 to 2 are in the pods of slots 0 and 1."""
    seen = left_behind(2, replica_ranks=3)
    for slot in (first, 1 - first):
        terminates(seen, slot)
        assert seen.sent_orders(0).pause == seen.world_id
    assert [slot for slot in (0, 1) if seen.sent_orders(slot).plan] == [0, 1]
    assert seen.sent_orders(0).lost == (3, 4, 5)


@pytest.mark.parametrize(("slot", "leaves"), [(0, False), (1, False), (2, True)])
def test_pods_of_the_leading_replica_are_not_left_behind(slot: int, leaves: bool):
    seen = film(replica_ranks=3)
    terminates(seen, slot)
    seen.later(1.1)
    assert seen.phase == ("Stopping" if leaves else "Draining")


def test_the_mates_of_the_leading_rank_save_while_others_join():
    seen = film(replica_ranks=3)
    seen.falls_silent(2)
    seen.later(6)
    seen.replaces(2)
    assert joined(seen).started == (3, 4, 5)
    terminates(seen, 1)
    seen.later(1.1)
    assert (seen.phase, seen.sent_orders(0).lost) == ("Stopping", (3, 4, 5))
    assert [slot for slot in SLOTS if seen.sent_orders(slot).pause == seen.world_id] == [0, 1]


def test_a_drain_that_is_requested_then_is_shown_as_such():
    seen = left_behind(1)
    seen.desires(drain=True)
    terminates(seen, 0)
    assert "the job is to be drained" in seen.report.why
    last_save(seen, 0, 2)


def test_a_rank_that_dies_as_the_leading_pod_terminates_spares_the_save():
    seen = film()
    seen.reports(0, terminating=True)
    seen.later(0.5)
    dies(seen, 5)
    assert (seen.phase, seen.sent_orders(0).lost) == ("Forming", (5,))
    last_save(seen, *SLOTS)


def test_a_rank_that_dies_as_a_drain_is_requested_spares_the_save():
    """Both are known at once: its pod has lost the slot."""
    seen = film()
    seen.desires(drain=True, slots={**seen.desired.slots, "1": SlotDesired(2, "")})
    assert (seen.phase, seen.sent_orders(0).lost) == ("Forming", (2, 3))
    last_save(seen, 0, 2)


def test_before_any_rank_has_made_a_step_a_terminating_pod_ends_all():
    seen = Timeline(workers=3, processes=2, feature_level=3).up()
    seen.reports(1, terminating=True)
    seen.later(1.1)
    assert seen.phase in ("Draining", "Stopping")
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [()] * 3


# ---- while ranks join others


def newcomers(slot: int) -> Timeline:
    """The pod of this slot was lost; the ranks of another one have started, and have not joined yet."""
    seen = film()
    seen.falls_silent(slot)
    seen.later(6)
    seen.replaces(slot)
    plan = joined(seen)
    assert plan.started == (2 * slot, 2 * slot + 1)
    return seen


def test_a_leading_pod_that_terminates_while_others_join_is_not_awaited_by_these():
    """The new ranks could not join before all have stopped."""
    seen = newcomers(1)
    terminates(seen, 0)
    seen.later(1.1)
    assert (seen.phase, seen.sent_orders(0).lost) == ("Stopping", (2, 3))
    assert without_plan(seen) == [1]
    assert seen.incident.cause is Cause.POD_DELETED
    last_save(seen, 0, 2)


def test_a_drain_does_not_wait_for_ranks_that_join():
    seen = newcomers(1)
    incidents = len(seen.report.incidents)
    seen.desires(drain=True)
    assert without_plan(seen) == [1]
    assert len(seen.report.incidents) == incidents, "it is none"
    last_save(seen, 0, 2)


def test_a_drain_waits_for_the_leading_rank_to_join():
    """Without it nothing is committed."""
    seen = newcomers(0)
    seen.desires(drain=True)
    assert (seen.phase, without_plan(seen)) == ("Draining", [])


@pytest.mark.parametrize(("slot", "lost"), [(0, (0, 1)), (1, (0, 1, 2, 3))])
def test_while_the_leading_rank_joins_any_pod_is_left_behind(slot: int, lost: tuple[int, ...]):
    """A drain could save nothing."""
    seen = newcomers(0)
    terminates(seen, slot)
    seen.later(1.1)
    assert (without_plan(seen), seen.sent_orders(2).lost) == ([*range(slot + 1)], lost)
    assert not seen.sent_orders(2).pause


def test_while_the_leading_rank_joins_the_last_others_are_not_left_behind():
    seen = newcomers(0)
    for slot in (1, 2):
        terminates(seen, slot)
    seen.later(1.1)
    assert (seen.phase, without_plan(seen)) == ("Draining", [])
