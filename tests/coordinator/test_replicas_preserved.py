"""Under sync Exact: checkpoints, drains and a restarted coordinator while ranks are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import KILLED, SIGKILL
from tests.coordinator.replicas import (
    RANKS,
    SLOTS,
    changes,
    dies,
    film,
    joined,
    lineage,
    saves,
    saves_for_all,
    starting,
    trains,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.world import Cause, WorldId

# ---- checkpoints


def test_a_checkpoint_that_some_have_not_written_is_not_committed_while_these_are_lost():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    trains(seen, 12)
    saves(seen, 12, 0, 2)
    assert (seen.phase, seen.state.grant) == ("Forming", None)
    seen.applies_orders()
    assert lineage(seen) == [(8, "1.0.1")]


@pytest.mark.parametrize("rank", [0, 5])
def test_a_checkpoint_that_one_rank_has_saved_for_all_is_committed_while_others_are_lost(rank: int):
    """Also if others have written their shards of that step."""
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    trains(seen, 12)
    saves(seen, 12, 0)
    saves_for_all(seen, 12, rank)
    grant = seen.sent_orders(0).grant
    assert (seen.phase, grant.world_size) == ("Forming", 1)
    assert [file.name for file in grant.files] == ["state.pt", f"rank-{rank}.pt"]
    seen.applies_orders()
    assert lineage(seen) == [(12, "1.0.1"), (8, "1.0.1")]


def test_nothing_is_committed_while_the_pod_of_rank_0_is_lost_and_no_other_agent_can_claim():
    """All agents are of an earlier release."""
    seen = film()
    seen.falls_silent(0)
    seen.later(6)
    trains(seen, 12)
    saves_for_all(seen, 12, 2)
    assert (seen.phase, seen.state.grant) == ("Forming", None)


def test_a_checkpoint_that_all_had_written_is_committed_while_a_rank_is_lost():
    seen = film()
    saves(seen, 10, 0, 2)
    saves(seen, 10, 1)
    dies(seen, 3, dying=True)
    assert [slot for slot in SLOTS if seen.sent_orders(slot).grant] == [0]
    seen.applies_orders()
    assert (seen.phase, lineage(seen)) == ("Stopping", [(10, "1.0.1"), (8, "1.0.1")])


def test_the_last_shard_may_come_after_the_world_ended():
    seen = film()
    saves(seen, 10, 1, 2)
    dies(seen, 3, dying=True)
    assert seen.sent_orders(0).grant is None
    saves(seen, 10, 0)
    assert seen.sent_orders(0).grant.ref.step == 10
    assert [file.name for file in seen.sent_orders(0).grant.files] == [f"rank-{rank}.pt" for rank in RANKS]


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_checkpoints_keep_the_name_of_the_world_that_started_the_leading_pod(rank: int):
    seen = film()
    dies(seen, rank)
    joined(seen)
    trains(seen, 12)
    saves(seen, 12)
    seen.applies_orders()
    assert (seen.world_id.n, lineage(seen)) == (2, [(12, "1.0.1"), (8, "1.0.1")])


def test_checkpoints_of_another_leading_pod_have_the_name_of_its_world():
    seen = film()
    dies(seen, 0, 1)
    joined(seen)
    trains(seen, 12)
    saves(seen, 12)
    seen.applies_orders()
    assert lineage(seen) == [(12, "1.0.2"), (8, "1.0.1")]
    dies(seen, 5)
    joined(seen)
    trains(seen, 14)
    saves(seen, 14)
    seen.applies_orders()
    assert lineage(seen) == [(14, "1.0.2"), (12, "1.0.2"), (8, "1.0.1")]


# ---- the coordinator is restarted


def comes_back(seen: Timeline) -> None:
    """The coordinator dies, and all agents report to its successor."""
    seen.reboots()
    seen.desires()
    for slot in sorted(set(seen.agents) - seen.silent):
        seen.reports(slot)


def test_a_rank_that_died_while_nobody_watched_is_replaced_alone():
    seen = film()
    seen.reboots()
    dies(seen, 3)
    seen.desires()
    for slot in SLOTS:
        seen.reports(slot)
    assert (seen.incident.cause, seen.incident.rank) == (Cause.SIGNAL, 3)
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [(3,)] * 3
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.origin) == ((3,), SLOTS, WorldId(1, 0, 1))
    assert (plan.world_id, starting(seen), seen.incident.steps_lost) == (WorldId(1, 1, 1), [3], 0)


def test_those_who_continued_when_the_coordinator_was_restarted_continue():
    """The boot before had ended the world, and agents have killed what was lost."""
    seen = film()
    seen.reports(2, ranks=(seen.agents[2].ranks[0], replace(seen.agents[2].ranks[1], regroups=False)))
    dies(seen, 3, dying=True)
    seen.applies_orders(0, 2)
    assert seen.agents[2].ranks[1].exit == KILLED
    dies(seen, 3, how=KILLED)
    comes_back(seen)
    assert seen.report.incidents == (), "all that agents know is that they have killed ranks"
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.origin) == ((3, 5), SLOTS, WorldId(1, 0, 1))


def test_a_plan_that_some_agents_know_is_adopted_with_the_ranks_that_it_keeps():
    seen = film()
    dies(seen, 3)
    seen.applies_orders(0)
    assert seen.world_id.n == 2
    comes_back(seen)
    assert (seen.phase, seen.world_id) == ("Running", WorldId(1, 0, 2))
    assert starting(seen) == []
    seen.applies_orders()
    assert starting(seen) == [3], "its agent has learned only now that it is to be started"
    trains(seen, 12)
    assert seen.report.incidents == ()
    dies(seen, 1, how=SIGKILL)
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.origin) == ((1,), SLOTS, WorldId(1, 0, 1))


def test_a_plan_that_is_superseded_keeps_those_who_live_on():
    """The agent of the pod whose ranks it starts again has not received it."""
    seen = film()
    dies(seen, 2, 3)
    seen.applies_orders(1)
    seen.applies_orders(0)
    assert (seen.phase, seen.world_id.n, seen.agents[1].plan.world_id.n) == ("Running", 2, 1)
    comes_back(seen)
    plan = joined(seen)
    assert (plan.world_id, plan.started, plan.preserved) == (WorldId(1, 1, 1), (2, 3), (0, 2))


def test_a_lost_pod_is_still_missing_for_the_next_coordinator():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    trains(seen, 12)
    comes_back(seen)
    assert seen.phase == "Waiting"
    seen.later(6)
    assert (seen.phase, seen.incident.cause) == ("Forming", Cause.AGENT_LOST)
    assert [seen.sent_orders(slot).lost for slot in (0, 2)] == [(2, 3)] * 2
    seen.replaces(1)
    assert joined(seen).started == (2, 3)


def test_a_silent_pod_is_lost_for_the_next_coordinator_too():
    """Although its ranks live, and look well."""
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.applies_orders(0, 2)
    trains(seen, 12)
    assert [seen.agents[slot].lost for slot in (0, 2)] == [(2, 3)] * 2
    seen.silent.clear()
    comes_back(seen)
    assert (seen.phase, without_plan(seen)) == ("Stopping", [1])
    assert [seen.sent_orders(slot).lost for slot in (0, 2)] == [(2, 3)] * 2
    assert seen.report.incidents == (), "the boot before has reported it"
    plan = joined(seen)
    assert (plan.world_id, plan.started, plan.preserved) == (WorldId(1, 1, 1), (2, 3), (0, 2))
    assert plan.origin == WorldId(1, 0, 1)


@pytest.mark.parametrize("knowing", [(0, 2), (0,), (2,)])
def test_a_lost_rank_beside_others_stays_lost_after_a_restart(knowing: tuple[int, ...]):
    """Although it is well again, and its agent does not know."""
    seen = film()
    changes(seen, 3, regroups=False)
    dies(seen, 5, dying=True)
    assert seen.sent_orders(0).lost == (3, 5)
    seen.applies_orders(*knowing)
    changes(seen, 3, regroups=True)
    comes_back(seen)
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [(3, 5)] * 3
    changes(seen, 5, dying=False)
    seen.applies_orders(0, 2)
    assert seen.phase == "Stopping", "rank 3 still lives"
    assert (joined(seen).started, starting(seen)) == ((3, 5), [3, 5])


def test_lost_is_what_any_agent_was_ordered_to_continue_without():
    seen = film()
    seen.reports(0, lost=(3,))
    seen.reports(2, lost=(1, 3))
    comes_back(seen)
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [(1, 3)] * 3


def test_ranks_that_were_lost_in_an_earlier_world_are_members_of_the_next():
    seen = film()
    dies(seen, 3, dying=True)
    seen.applies_orders()
    changes(seen, 3, dying=False)
    seen.applies_orders(1)
    assert [report.lost for report in seen.agents.values()] == [(3,), (), (3,)]
    assert (starting(seen), seen.world_id.n) == ([3], 2)
    comes_back(seen)
    assert (seen.phase, seen.world_id) == ("Running", WorldId(1, 0, 2))
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [()] * 3


@pytest.mark.parametrize("lost", [(), (-1,), (6, 999)])
def test_numbers_that_are_no_ranks_are_lost_by_nobody(lost: tuple[int, ...]):
    seen = film()
    seen.reports(1, lost=lost)
    comes_back(seen)
    assert seen.phase == "Running"
