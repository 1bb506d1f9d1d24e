"""Under sync Exact: while the pod of rank 0 is missing, the agent of another slot commits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.coordinator.replicas import (
    RANKS,
    SLOTS,
    dies,
    film,
    joined,
    lineage,
    loses_pods,
    plan_of,
    reaches,
    restores,
    saves,
    saves_for_all,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Problem, RankPhase
from ropeteam_trainer.contract.world import CheckpointRef, FailReason, WorldId
from ropeteam_trainer.coordinator.membership import unstartable
from ropeteam_trainer.coordinator.membership.state import slotfacts, slotindex

DEPUTY, NEXT = WorldId(1, 0, 2), WorldId(1, 0, 3)


def able(seen: Timeline, *slots: int) -> Timeline:
    """The agents of these slots (all, if none is named) are of this release."""
    for slot in slots or SLOTS:
        seen.reports(slot, supports_claim=True)
    return seen


def deputized(*slots: int, silent: tuple[int, ...] = (0,)) -> Timeline:
    """The pod of rank 0 is lost at step 12, and others with it; agents of `slots` are of this release."""
    return loses_pods(able(film(), *slots), *silent)


def claims(seen: Timeline) -> dict[int, WorldId]:
    """By slot."""
    orders = {slot: seen.sent_orders(slot) for slot in SLOTS if slot not in seen.silent}
    assert {each.saves_as for each in orders.values() if each.plan} == {
        seen.state.world.deputy and seen.state.world.deputy.world_id
    }
    return {slot: each.claim for slot, each in orders.items() if each.claim}


def granted(seen: Timeline) -> dict[int, tuple[int, WorldId]]:
    """By slot: step and world."""
    grants = {slot: seen.sent_orders(slot).grant for slot in SLOTS if slot not in seen.silent}
    return {slot: (grant.ref.step, grant.ref.world_id) for slot, grant in grants.items() if grant}


# ---- who is deputy


def test_the_lowest_of_the_other_slots_claims_by_a_number_of_its_own():
    seen = deputized()
    assert claims(seen) == {1: DEPUTY}
    assert seen.state.next_world_id == NEXT
    seen.later(20)
    assert claims(seen) == {1: DEPUTY}, "the same for as long as it takes"


def test_an_agent_of_an_earlier_release_is_not_chosen():
    assert claims(deputized(0, 2)) == {2: DEPUTY}
    seen = deputized(0)
    saves_for_all(seen, 12, 2)
    assert (claims(seen), granted(seen)) == ({}, {})


def test_there_is_none_beside_a_leading_agent_of_an_earlier_release():
    """If it lives, it would end for good when it met the claim."""
    seen = deputized(1, 2)
    assert claims(seen) == {}
    seen.desires_slot(0, incarnation=2, pod_uid="pod-0-2")
    assert claims(seen) == {1: DEPUTY}, "its pod is replaced"


def test_numbers_of_deputies_of_a_coordinator_that_is_forgotten_are_not_used_again():
    """After a restore of etcd another one may have had this term."""
    seen = deputized()
    seen.reports(2, granted=CheckpointRef(14, WorldId(1, 0, 7)))
    seen.reports(1, committed=CheckpointRef(13, WorldId(1, 0, 6), "digest"))
    assert seen.state.next_world_id == WorldId(1, 0, 8)


def test_a_volume_that_does_not_answer_the_deputy_is_a_problem_of_the_job():
    seen = deputized()
    seen.reports(1, pending_disk_request="the claim of world 1.0.2")
    problem = unstartable.stalled_problem(seen.state)
    assert problem is not None
    assert "had not answered slot 1 for a minute" in problem.message


def test_a_leading_rank_that_is_started_again_at_once_needs_no_deputy():
    seen = able(film())
    dies(seen, 0, 1)
    assert (seen.phase, claims(seen)) == ("Forming", {})
    assert joined(seen).world_id == DEPUTY


def test_it_has_one_if_it_waits_for_the_pod_of_another():
    seen = able(film())
    dies(seen, 0, 1)
    seen.falls_silent(2)
    seen.later(6)
    assert claims(seen) == {1: DEPUTY}
    assert seen.sent_orders(0).claim is None
    assert seen.sent_orders(0).host_store == NEXT


def test_a_leading_rank_that_lives_on_has_none():
    assert claims(deputized(silent=(1,))) == {}


def test_a_lost_deputy_is_replaced_by_the_next_slot_under_another_number():
    seen = deputized()
    saves_for_all(seen, 14, 2)
    assert granted(seen) == {1: (14, DEPUTY)}
    seen.falls_silent(1)
    seen.later(6)
    assert (claims(seen), granted(seen)) == ({2: NEXT}, {})
    saves_for_all(seen, 16, 4)
    assert granted(seen) == {2: (16, NEXT)}


def test_a_world_that_has_ended_as_a_whole_has_none():
    assert claims(deputized(silent=(0, 1))) == {2: DEPUTY}
    seen = deputized(silent=SLOTS)
    assert seen.state.world
    assert (seen.state.world.deputy, seen.state.numbers_used) == (None, 1)


# ---- what it commits


def test_what_is_saved_from_then_on_is_granted_to_the_deputy():
    seen = deputized()
    saves_for_all(seen, 14, 2)
    assert granted(seen) == {1: (14, DEPUTY)}
    parent = seen.sent_orders(1).grant.parent
    assert parent
    assert parent.step == 8
    seen.applies_orders()
    assert lineage(seen) == [(14, "1.0.2"), (8, "1.0.1")]
    saves_for_all(seen, 16, 2)
    assert seen.sent_orders(1).grant.parent.step == 14


def test_what_is_saved_under_the_previous_name_counts_no_more():
    seen = able(film())
    saves(seen, 12, 1, 2)
    saves_for_all(seen, 10, 2)
    of_world = seen.agents[1].shards[-1]
    before = seen.state.saved
    seen.falls_silent(0)
    seen.later(6)
    assert claims(seen) == {1: DEPUTY}
    assert (before[12], seen.state.saved) == (4, {})
    seen.reports(1, shards=(replace(of_world, step=14),))
    assert granted(seen) == {}


def test_the_index_equals_one_of_all_slots_after_a_change_of_deputies():
    seen = deputized()
    saves_for_all(seen, 14, 4)
    seen.falls_silent(1)
    seen.later(6)
    saves_for_all(seen, 16, 4)
    state = seen.state
    blank = replace(state, facts=slotfacts.NOBODY, saved={})
    expected = slotindex.refresh_facts(None, blank, state.all_slots, seen.now)
    assert (expected.facts, expected.saved) == (state.facts, state.saved)
    assert expected.saved == {16: 6}


def test_a_grant_of_the_lost_leading_rank_is_withdrawn():
    seen = able(film())
    saves(seen, 12)
    assert granted(seen) == {0: (12, WorldId(1, 0, 1))}
    seen.falls_silent(0)
    seen.later(6)
    assert granted(seen) == {}
    assert seen.state.pending, "it may be written all the same"
    saves_for_all(seen, 14, 2)
    assert granted(seen) == {1: (14, DEPUTY)}


# ---- the next world


def test_the_next_world_has_a_greater_number_and_continues_from_what_the_deputy_has_committed():
    seen = deputized()
    saves_for_all(seen, 14, 2)
    seen.applies_orders()
    seen.replaces(0)
    plan = joined(seen)
    assert (plan.world_id, plan.started, plan.restore[0].step) == (NEXT, (0, 1), 14)
    assert [seen.sent_orders(slot).claim for slot in SLOTS] == [None] * 3
    assert [seen.sent_orders(slot).saves_as for slot in SLOTS] == [None] * 3
    saves_for_all(seen, 18, 2)
    assert granted(seen) == {0: (18, NEXT)}


def test_what_the_deputy_has_committed_is_known_also_if_it_is_reported_late():
    seen = deputized()
    saves_for_all(seen, 14, 2)
    seen.replaces(0)
    seen.applies_orders(0, 2)
    assert seen.phase == "Running"
    seen.reports(1, committed=CheckpointRef(14, DEPUTY, "digest-14"))
    assert lineage(seen) == [(14, "1.0.2"), (8, "1.0.1")]


@pytest.mark.parametrize("ended", [False, True])
def test_what_an_earlier_deputy_has_committed_is_no_part_of_a_lineage_that_began_before(ended: bool):
    """All were lost, and its checkpoint could not be read. It still reports it as its newest."""
    seen = deputized()
    saves_for_all(seen, 14, 2)
    seen.applies_orders()
    dies(seen, 2, 3, 4, 5)
    seen.replaces(0)
    joined(seen)
    restores(seen, 8)
    assert lineage(seen) == [(8, "1.0.1")]
    if ended:
        dies(seen, 2, 3, 4, 5)
    seen.reports(1)
    assert lineage(seen) == [(8, "1.0.1")]


# ---- drains


def test_a_job_that_is_drained_then_saves_through_its_deputy():
    seen = deputized()
    seen.desires(drain=True)
    for slot in (1, 2):
        assert seen.sent_orders(slot).pause == seen.world_id
        reaches(seen, slot, RankPhase.PAUSED, 12)
    assert seen.sent_orders(1).stop_at == 14
    saves_for_all(seen, 14, 2)
    for slot in (1, 2):
        reaches(seen, slot, RankPhase.DRAINED, 14)
    assert without_plan(seen) == [], "the manifest is not written yet"
    assert granted(seen) == {1: (14, DEPUTY)}
    seen.reports(1, committed=CheckpointRef(14, DEPUTY, "digest-14"))
    assert without_plan(seen) == [1, 2]
    seen.applies_orders()
    seen.later(6)
    assert (seen.phase, lineage(seen)[0]) == ("Drained", (14, "1.0.2"))
    seen.desires(drain=False)
    seen.replaces(0)
    plan = joined(seen)
    assert (plan.started, plan.restore[0].step) == ((), 14)


def test_without_its_deputy_nobody_saves_in_a_drain():
    seen = deputized()
    seen.desires(drain=True)
    assert without_plan(seen) == []
    dies(seen, 2, 3)
    assert without_plan(seen) == [1, 2]


def test_a_new_pod_of_rank_0_that_terminates_ends_nobody():
    seen = deputized()
    seen.replaces(0)
    seen.reports(0, terminating=True)
    seen.later(6)
    assert [seen.sent_orders(slot).pause for slot in (1, 2)] == [None, None]
    assert claims(seen) == {1: DEPUTY}


def test_a_deputy_whose_pod_terminates_is_left_behind():
    seen = deputized()
    seen.reports(1, terminating=True)
    assert claims(seen) == {2: NEXT}
    assert seen.sent_orders(2).lost == RANKS[:4]


def test_a_job_that_fails_has_no_deputy():
    seen = able(film())
    seen.falls_silent(0)
    seen.desires(failure=Problem(FailReason.DEADLINE_EXCEEDED, "late"))
    seen.later(6)
    assert (seen.phase, seen.state.deputized) == ("Failed", ())


# ---- a coordinator that restarts


def test_after_a_restart_there_is_a_deputy_under_a_greater_number():
    seen = deputized()
    saves_for_all(seen, 14, 2)
    seen.applies_orders()
    seen.reboots()
    seen.up()
    seen.later(6)
    assert claims(seen) == {1: WorldId(1, 1, 1)}
    assert lineage(seen)[0] == (14, "1.0.2"), "as its agent reports, status does not know it"
    assert plan_of(seen, 1).world_id == WorldId(1, 0, 1)
    saves_for_all(seen, 16, 2)
    assert granted(seen) == {1: (16, WorldId(1, 1, 1))}


# ---- an agent that was cut off


@pytest.mark.parametrize(
    ("by", "is_ours"),
    [(DEPUTY, True), (WorldId(1, 0, 9), False), (WorldId(2, 0, 1), False)],
)
def test_the_claim_of_a_deputy_supersedes_no_coordinator(by: WorldId, is_ours: bool):
    """The leading agent was cut off, and is back: its claim is older."""
    seen = deputized()
    seen.silent.clear()
    seen.reports(0, superseded=by)
    assert (seen.state.superseded == "") == is_ours
    seen.applies_orders()
    assert (seen.phase == "Running") == is_ours


def test_that_of_an_earlier_boot_does_not_either():
    seen = deputized()
    seen.reboots()
    seen.silent.clear()
    seen.agents[0] = replace(seen.agents[0], superseded=DEPUTY)
    seen.up()
    assert not seen.state.superseded
