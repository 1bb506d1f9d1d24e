"""Under sync Exact: checkpoints, drains and a restarted coordinator while ranks are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import KILLED, SIGKILL
from tests.coordinator.replicas import (
    RANKS,
    SLOTS,
    dies,
    film,
    joined,
    starting,
    trains,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause, WorldId

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


def test_nothing_is_committed_while_a_rank_is_lost():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    trains(seen, 12)
    saves(seen, 12, 0, 2)
    assert (seen.phase, seen.state.grant) == ("Forming", None)
    seen.applies_orders()
    assert lineage(seen) == [(8, "1.0.1")]


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


def test_a_terminating_pod_drains_the_whole_world():
    seen = film()
    seen.reports(1, terminating=True)
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
    assert seen.sent_orders(1).leave
    assert [rank.phase for slot in SLOTS for rank in seen.agents[slot].ranks] == [RankPhase.EXITED] * 6
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.restore[0].step) == ((), (), 12)
    assert (seen.incident.cause, seen.incident.charged) == (Cause.POD_DELETED, False)


def test_a_rank_that_dies_in_a_drain_ends_all():
    seen = film()
    seen.reports(1, terminating=True)
    seen.later(1.1)
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


@pytest.mark.parametrize("replacement", [{"drain": True}, {"attempt": 2}])
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
