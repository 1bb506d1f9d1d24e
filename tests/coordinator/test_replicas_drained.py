"""Under sync Exact: drains and terminating pods, also while ranks are lost."""

from __future__ import annotations

import pytest
from tests.coordinator.replicas import (
    SLOTS,
    dies,
    film,
    joined,
    last_save,
    reaches,
    saves,
    trains,
    without_plan,
)

from ropeteam_trainer.contract.messages import Problem, RankPhase
from ropeteam_trainer.contract.world import Cause, FailReason


@pytest.mark.parametrize("last", [(0,), (1, 0), SLOTS])
def test_a_terminating_pod_of_the_leading_rank_drains_the_whole_world(last: tuple[int, ...]):
    """The agent there commits."""
    seen = film()
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
