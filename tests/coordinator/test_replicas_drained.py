"""Under sync Exact: drains and terminating pods, also while ranks are lost."""

from __future__ import annotations

from dataclasses import replace

from tests.coordinator.replicas import (
    SLOTS,
    dies,
    film,
    joined,
    lineage,
    saves,
    saves_for_all,
    trains,
    without_plan,
)
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Problem, RankPhase
from ropeteam_trainer.contract.world import Cause, FailReason


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


def test_ranks_save_before_they_end_for_a_drain_while_a_lost_one_is_dying():
    seen = film()
    dies(seen, 3, dying=True)
    seen.desires(drain=True)
    assert seen.phase == "Stopping"
    last_save(seen, *SLOTS)


def test_a_drain_stops_a_step_later_while_new_ranks_may_not_have_joined():
    seen = film()
    dies(seen, 3)
    joined(seen)
    trains(seen, 11)
    seen.desires(drain=True)
    for slot in SLOTS:
        reaches(seen, slot, RankPhase.PAUSED, 11)
    assert seen.sent_orders(0).stop_at == 13


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


def test_a_new_attempt_keeps_nobody():
    seen = film()
    dies(seen, 3, dying=True)
    assert without_plan(seen) == []
    seen.desires(attempt=2)
    assert without_plan(seen) == [*SLOTS]
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [()] * 3
