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
    starting,
    trains,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Problem, RankPhase, Shard
from ropeteam_trainer.contract.world import Cause, FailReason, ShardFile, WorldId

# ---- checkpoints


def lineage(seen: Timeline) -> list[tuple[int, str]]:
    return [(ref.step, str(ref.world_id)) for ref in seen.report.lineage]


def saves(seen: Timeline, step: int, *slots: int) -> None:
    """As the timeline's, but only by ranks that live, and under the name of the leading rank's world."""
    for slot in slots or SLOTS:
        before = seen.agents[slot].shards
        living = {rank.rank for rank in seen.agents[slot].ranks if not rank.exit}
        seen.saves(step, slot)
        world_id = seen.state.world.plan.started_in(0)
        new = (s for s in seen.agents[slot].shards if s not in before and s.rank in living)
        seen.reports(slot, shards=(*before, *(replace(shard, world_id=world_id) for shard in new)))


def test_a_checkpoint_that_some_have_not_written_is_not_committed_while_these_are_lost():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    trains(seen, 12)
    saves(seen, 12, 0, 2)
    assert (seen.phase, seen.state.grant) == ("Forming", None)
    seen.applies_orders()
    assert lineage(seen) == [(8, "1.0.1")]


def saves_for_all(seen: Timeline, step: int, rank: int) -> None:
    slot = rank // 2
    files = ShardFile("state.pt", 1, "00"), ShardFile(f"rank-{rank}.pt", 1, "00")
    shard = Shard(rank, seen.state.world.plan.started_in(0), step, files, whole=True)
    seen.reports(slot, shards=(*seen.agents[slot].shards, shard))


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


def test_nothing_is_committed_while_the_pod_of_rank_0_is_lost():
    """The agent there has the claim."""
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


# ---- drains, new attempts


def test_a_terminating_pod_is_left_behind():
    seen = film()
    seen.reports(1, terminating=True)
    seen.later(0.9)
    assert seen.phase == "Running", "others may terminate, too"
    seen.later(0.2)
    assert (without_plan(seen), seen.sent_orders(0).lost) == ([1], (2, 3))
    assert not any(seen.sent_orders(slot).pause for slot in SLOTS)
    seen.applies_orders()
    assert seen.sent_orders(1).leave
    trains(seen, 14)
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.preserved) == ((2, 3), (0, 2))
    assert (seen.incident.cause, seen.incident.charged) == (Cause.POD_DELETED, False)
    assert seen.incident.steps_lost == 0


@pytest.mark.parametrize("last", [SLOTS, (0, 2)])
def test_when_all_pods_whose_ranks_can_continue_terminate_the_world_is_drained(last: tuple[int, ...]):
    """The ranks of slot 1 have made no step."""
    seen = film()
    if 1 not in last:
        for rank in (2, 3):
            changes(seen, rank, steps_here=0)
    for slot in last:
        seen.reports(slot, terminating=True)
    seen.later(1.1)
    assert seen.phase == "Draining"
    assert all(seen.sent_orders(slot).pause == seen.world_id for slot in SLOTS)
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [()] * 3
    for slot in SLOTS:
        seen.ranks(slot, RankPhase.PAUSED, 11)
    assert seen.sent_orders(0).stop_at == 12
    saves(seen, 12)
    for slot in SLOTS:
        seen.ranks(slot, RankPhase.DRAINED, 12)
    seen.applies_orders()
    assert all(seen.sent_orders(slot).leave for slot in last)
    assert [rank.phase for slot in SLOTS for rank in seen.agents[slot].ranks] == [RankPhase.EXITED] * 6
    for slot in last:
        seen.replaces(slot)
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.restore[0].step) == ((), (), 12)
    assert (seen.incident.cause, seen.incident.charged) == (Cause.POD_DELETED, False)


def test_a_rank_that_dies_in_a_drain_ends_all():
    seen = film()
    seen.desires(drain=True)
    assert seen.phase == "Draining"
    dies(seen, 5)
    assert without_plan(seen) == [*SLOTS]


def test_a_pod_that_terminates_while_a_rank_is_lost_is_preserved_no_longer():
    seen = film()
    dies(seen, 3, dying=True)
    seen.reports(2, terminating=True)
    assert without_plan(seen) == [2]
    assert seen.sent_orders(0).lost == (3, 4, 5)
    seen.applies_orders()
    assert seen.sent_orders(2).leave


def last_save(seen: Timeline, *slots: int) -> None:
    """The ranks of these slots, which continue without others, save before they end: the rest of a drain."""
    assert all(seen.sent_orders(slot).pause == seen.world_id for slot in slots)
    assert seen.sent_orders(slots[0]).stop_at is None
    for slot in slots:
        reaches(seen, slot, RankPhase.PAUSED, 11)
    assert {seen.sent_orders(slot).stop_at for slot in slots} == {13}, "a lost rank may have saved step 12"
    for slot in slots[1:]:
        reaches(seen, slot, RankPhase.DRAINED, 13)
    assert set(without_plan(seen)).isdisjoint(slots)
    saves_for_all(seen, 13, 0)
    reaches(seen, slots[0], RankPhase.DRAINED, 13)
    assert set(without_plan(seen)).isdisjoint(slots), "the manifest is not written yet"
    seen.applies_orders(slots[0])
    assert lineage(seen)[0] == (13, "1.0.1")
    assert {*without_plan(seen)} >= {*slots}


def reaches(seen: Timeline, slot: int, phase: RankPhase, step: int) -> None:
    ranks = seen.agents[slot].ranks
    seen.reports(
        slot, ranks=tuple(rank if rank.exit else replace(rank, phase=phase, step=step) for rank in ranks)
    )


def test_ranks_save_before_they_end_for_a_drain_while_others_are_lost():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.desires(drain=True)
    assert seen.phase == "Forming"
    last_save(seen, 0, 2)
    seen.applies_orders()
    seen.later(6)
    assert seen.phase == "Drained"
    seen.desires(drain=False)
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.restore[0].step) == ((), (), 13)


def test_ranks_save_before_they_end_if_the_pods_of_all_that_are_left_terminate():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.reports(2, terminating=True)
    assert without_plan(seen) == [2], "slot 0 continues"
    seen.reports(0, terminating=True)
    last_save(seen, 0)


def test_a_last_save_is_awaited_for_drain_seconds_at_most():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.desires(drain=True)
    seen.later(seen.config.timeouts.drain - 0.1)
    assert without_plan(seen) == []
    seen.later(0.2)
    assert without_plan(seen) == [0, 2]


def test_a_rank_that_dies_before_the_last_save_is_lost_for_the_others():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.desires(drain=True)
    dies(seen, 5)
    assert seen.sent_orders(0).lost == (2, 3, 5)
    last_save(seen, 0, 2)


def test_a_job_that_fails_awaits_no_last_save():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    seen.desires(drain=True)
    seen.desires(failure=Problem(FailReason.DEADLINE_EXCEEDED, "late"))
    assert (seen.phase, without_plan(seen)) == ("Failed", [0, 2])
    assert not seen.state.world.preserved, "their ends are awaited"


def test_nobody_waits_for_a_save_that_cannot_be_committed():
    """The agent that has the claim is gone."""
    seen = film()
    seen.falls_silent(0)
    seen.later(6)
    assert without_plan(seen) == []
    seen.desires(drain=True)
    assert without_plan(seen) == [1, 2]


@pytest.mark.parametrize("replacement", [{"attempt": 2}])
def test_what_ends_the_whole_job_keeps_nobody(replacement: dict[str, int]):
    seen = film()
    dies(seen, 3, dying=True)
    assert without_plan(seen) == []
    seen.desires(**replacement)
    assert without_plan(seen) == [*SLOTS]
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [()] * 3


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
