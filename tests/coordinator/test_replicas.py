"""Under sync Exact the ranks that are left continue without the lost ones, and others join them."""

from __future__ import annotations

from typing import Any

import pytest
from lab.coordinator.reports import CLEAN, raised
from tests.coordinator.replicas import (
    RANKS,
    SLOTS,
    changes,
    dies,
    film,
    joined,
    joining,
    plan_of,
    restores,
    starting,
    trains,
    without_plan,
)

from ropeteam_trainer.contract.config import ExitAction, ExitCodeRule
from ropeteam_trainer.contract.desired import Stage
from ropeteam_trainer.contract.messages import GroupReport, Hang, Problem, RankPhase
from ropeteam_trainer.contract.world import Cause, FailReason, ProcessExit, WorldId
from ropeteam_trainer.coordinator.membership import step as membership

HUNG = ProcessExit(None, 9, hung=True, fingerprint="hang")
LATE = ProcessExit(None, 9, late_start=True, fingerprint="late start")


# ---- who lives on


@pytest.mark.parametrize("rank", RANKS)
def test_when_a_rank_dies_all_others_continue_and_one_rank_joins_them(rank):
    seen = film()
    old = plan_of(seen)
    dies(seen, rank)
    assert [plan_of(seen, slot) for slot in SLOTS] == [old] * 3, (
        "also in its own pod: another rank lives there"
    )
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [(rank,)] * 3
    assert seen.report.why.endswith("; the ranks of 3 slots continue")
    plan = joined(seen)
    assert (plan.started, plan.preserved, starting(seen)) == ((rank,), SLOTS, [rank])
    assert (plan.world_id.n, plan.origin) == (2, old.world_id)
    assert {plan.started_in(slot) for slot in SLOTS} == {old.world_id}
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [()] * 3, "of the new world none is lost"


def test_when_a_pod_is_lost_the_ranks_of_the_other_pods_continue():
    seen = film()
    old = seen.world_id
    seen.falls_silent(1)
    seen.later(6)
    assert seen.phase == "Forming"
    assert [seen.sent_orders(slot).lost for slot in (0, 2)] == [(2, 3)] * 2
    assert seen.report.why.startswith("waiting for the agent of slot 1, which stopped reporting")
    assert seen.report.why.endswith("; the ranks of 2 slots continue")
    trains(seen, 12)
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.preserved, starting(seen)) == ((2, 3), (0, 2), [2, 3])
    assert (plan.started_in(1), plan.member(1).incarnation, plan.origin) == (plan.world_id, 2, old)
    assert (seen.incident.cause, seen.incident.charged) == (Cause.AGENT_LOST, False)
    assert (seen.incident.step, seen.incident.steps_lost) == (10, 0), "steps made since are none of its"


def test_several_ranks_of_several_pods_are_lost_at_once():
    seen = film()
    dies(seen, 0, 3, 4)
    assert [seen.sent_orders(slot).lost for slot in SLOTS] == [(0, 3, 4)] * 3
    assert joined(seen).started == (0, 3, 4)
    assert starting(seen) == [0, 3, 4]
    assert len(seen.report.incidents) == 1, "what fails during one recovery is one incident"


def test_a_pod_whose_ranks_have_all_died_begins_a_new_start():
    seen = film()
    dies(seen, 2, 3)
    assert without_plan(seen) == [1]
    assert seen.sent_orders(1).lost == (), "it has no ranks that could continue"
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.started_in(1)) == ((2, 3), (0, 2), plan.world_id)


def test_when_all_ranks_are_lost_the_job_resumes_from_its_checkpoint():
    seen = film()
    dies(seen, *RANKS)
    assert without_plan(seen) == [*SLOTS]
    assert "continue" not in seen.report.why
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.origin) == ((), (), None)
    assert (plan.restore[0].step, starting(seen)) == (8, [*RANKS])
    assert seen.incident.steps_lost is None, "not known before the checkpoint is restored"
    restores(seen, 8)
    assert (seen.incident.step, seen.incident.steps_lost) == (10, 2)


@pytest.mark.parametrize("unable", [{"regroups": False}, {"steps_here": 0}])
def test_ranks_that_cannot_continue_without_others_end_with_them(unable: dict[str, Any]):
    seen = film()
    for rank in RANKS:
        changes(seen, rank, **unable)
    dies(seen, 3)
    assert without_plan(seen) == [*SLOTS]
    assert (joined(seen).started, starting(seen)) == ((), [*RANKS])


def test_a_rank_that_cannot_continue_is_lost_with_the_one_that_died():
    seen = film()
    changes(seen, 5, regroups=False)
    dies(seen, 3)
    assert seen.sent_orders(2).lost == (3, 5)
    seen.applies_orders(2)
    assert seen.agents[2].ranks[1].phase is RankPhase.EXITED
    assert (joined(seen).started, starting(seen)) == ((3, 5), [3, 5])
    assert seen.incident.rank == 3


def test_a_rank_that_hangs_is_replaced_alone():
    seen = film()
    dies(seen, 3, how=HUNG)
    assert (joined(seen).started, starting(seen)) == ((3,), [3])
    assert (seen.incident.cause, seen.incident.rank, seen.incident.charged) == (Cause.HANG, 3, True)


# ---- while ranks are missing


def test_a_rank_that_fails_while_another_pod_is_awaited_is_lost_as_well_for_all():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    before = seen.state
    dies(seen, 5)
    assert membership.affected_slots(before, seen.state) & seen.state.all_slots == seen.state.all_slots
    assert [seen.sent_orders(slot).lost for slot in (0, 2)] == [(2, 3, 5)] * 2
    dies(seen, 4)
    assert without_plan(seen) == [2], "none of its ranks is left"
    assert seen.sent_orders(0).lost == (2, 3, 4, 5)
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.preserved) == ((2, 3, 4, 5), (0,))


def test_a_rank_that_was_lost_once_stays_so_until_the_next_plan():
    """Orders to continue without it were sent before its first step was reported."""
    seen = film()
    changes(seen, 2, steps_here=0)
    seen.falls_silent(0)
    seen.later(6)
    assert seen.sent_orders(2).lost == (0, 1, 2)
    changes(seen, 2, steps_here=1)
    assert seen.sent_orders(2).lost == (0, 1, 2)
    assert without_plan(seen) == []
    dies(seen, 3)
    assert without_plan(seen) == [1], "the one that is left is lost, whatever it reports"
    seen.replaces(0)
    assert joined(seen).preserved == (2,)


def test_when_the_last_ranks_are_lost_before_any_joined_the_steps_since_are_lost_too():
    seen = film()
    seen.falls_silent(1)
    seen.later(6)
    assert (seen.incident.final, seen.incident.step) == (True, 10)
    trains(seen, 14)
    dies(seen, 0, 1, 4, 5)
    seen.replaces(1)
    plan = joined(seen)
    assert (plan.started, plan.origin, seen.incident.step) == ((), None, 14)
    restores(seen, 8)
    assert (seen.incident.steps_lost, len(seen.report.incidents)) == (6, 1)


def test_no_step_is_lost_by_those_who_continue():
    seen = film()
    dies(seen, 3, dying=True)
    trains(seen, 12)
    changes(seen, 3, dying=False)
    joined(seen)
    assert (seen.incident.step, seen.incident.steps_lost) == (12, 0)
    assert seen.incident.recovery_milliseconds.first_step is None
    trains(seen, 13)
    assert seen.incident.recovery_milliseconds.first_step is not None
    assert seen.report.stage is Stage.TRAINING


def test_ranks_that_end_while_another_is_lost_begin_again_from_the_checkpoint():
    """The last step is saved by all ranks together, or not at all."""
    seen = film()
    dies(seen, 3)
    dies(seen, 0, 1, 2, 4, 5, how=CLEAN)
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.restore[0].step) == ((), (), 8)


# ---- a rank that is dying


def test_the_incident_is_settled_and_a_rank_joins_once_the_lost_one_is_dead():
    seen = film()
    dies(seen, 3, how=ProcessExit(1, None), dying=True)
    seen.applies_orders()
    assert (seen.phase, seen.incident.final, seen.incident.message) == ("Stopping", False, "rank 3 exited 1")
    assert "ending the ranks of world 1.0.1" in seen.report.why
    changes(seen, 3, exit=raised())
    assert seen.incident.message == "rank 3 exited 1: ValueError: bad lr (train.py:31)", (
        "its agent knows more"
    )
    assert not seen.incident.final
    changes(seen, 3, dying=False)
    assert (seen.phase, seen.incident.final) == ("Running", True)
    assert plan_of(seen).started == (3,)


def test_the_next_plan_waits_for_a_lost_rank_that_still_lives():
    seen = film()
    changes(seen, 5, regroups=False)
    dies(seen, 3)
    seen.applies_orders(0, 1)
    assert (seen.phase, seen.incident.final) == ("Stopping", False)
    seen.applies_orders(2)
    assert (seen.phase, seen.incident.final) == ("Running", True)


def test_the_pod_of_a_lost_rank_that_does_not_end_is_to_be_replaced():
    seen = film()
    dies(seen, 3, dying=True)
    seen.later(59)
    assert "have not ended" not in seen.report.why
    seen.later(2)
    assert "those of slots 1 have not ended for 60 s: other pods are requested" in seen.report.why
    assert [request.slot for request in seen.report.replacement_requests] == [1]


# ---- a rank that joins fails again


def test_a_joining_rank_that_is_killed_is_started_again():
    seen = joining()
    dies(seen, 3)
    assert seen.sent_orders(0).lost == (3,)
    plan = joined(seen)
    assert (plan.world_id.n, plan.started, plan.preserved, plan.origin) == (3, (3,), SLOTS, WorldId(1, 0, 1))
    assert [incident.id for incident in seen.report.incidents] == ["1.0.1", "1.0.2"]
    assert [incident.steps_lost for incident in seen.report.incidents] == [0, 0]


@pytest.mark.parametrize("how", [raised(), HUNG, LATE])
def test_a_joining_rank_that_fails_by_itself_ends_all(how: ProcessExit):
    """The script may need all ranks to begin with it."""
    seen = joining()
    dies(seen, 3, how=how)
    assert without_plan(seen) == [*SLOTS]
    plan = joined(seen)
    assert (plan.started, plan.preserved, plan.origin, plan.restore[0].step) == ((), (), None, 8)


def test_a_joining_rank_that_holds_up_the_others_ends_all_if_one_of_these_is_killed_first():
    seen = joining()
    changes(seen, 3, hang=Hang("train.py:9 (main)"))
    changes(seen, 5, hang=Hang(waits=True))
    dies(seen, 5, how=HUNG)
    assert seen.incident.rank == 3
    assert without_plan(seen) == [*SLOTS]


@pytest.mark.parametrize("rank", [3, 5])
def test_once_a_rank_has_joined_its_errors_end_nobody_else(rank: int):
    seen = joining()
    if rank == 3:
        trains(seen, 11)
    dies(seen, rank, how=raised())
    assert without_plan(seen) == []
    assert rank in joined(seen).started


def test_a_rank_that_dies_before_its_agent_knows_the_newest_plan_is_seen():
    seen = film()
    dies(seen, 3)
    seen.applies_orders(0)
    assert seen.phase == "Running"
    assert seen.agents[2].plan != plan_of(seen)
    dies(seen, 4)
    assert seen.incident.rank == 4
    assert seen.sent_orders(0).lost == (3, 4), "rank 3 has not been started yet: it cannot continue"
    plan = joined(seen)
    assert (plan.world_id.n, plan.started, plan.preserved) == (3, (3, 4), SLOTS)


def test_what_is_reported_of_a_rank_that_the_plan_starts_again_is_of_its_predecessor():
    seen = film()
    dies(seen, 3, how=raised())
    seen.applies_orders(0)
    assert (seen.phase, seen.agents[1].plan != plan_of(seen)) == ("Running", True)
    seen.reports(1)
    assert seen.phase == "Running", "that it has died is known"
    assert len(seen.report.incidents) == 1


def test_a_pod_in_which_a_joining_rank_dies_again_and_again_is_replaced():
    seen = film()
    for _ in range(3):
        dies(seen, 3)
        joined(seen)
    assert [request.slot for request in seen.report.replacement_requests] == [1]
    assert not seen.report.replace_all


# ---- budget


def test_a_rank_that_fails_by_its_own_error_is_charged_as_ever():
    seen = film()
    seen.desires(allowance=0)
    dies(seen, 3, how=raised())
    assert (seen.incident.cause, seen.incident.charged) == (Cause.ERROR, True)
    seen.applies_orders()
    assert seen.phase == "Failed"
    assert seen.report.failure.reason.value == "FailureBudgetSpent"
    assert without_plan(seen) == [*SLOTS]


def test_the_same_error_without_a_new_step_fails_the_job():
    seen = film(no_progress_limit=2)
    dies(seen, 3, how=raised())
    assert joined(seen).started == (3,)
    dies(seen, 3, how=raised())
    seen.applies_orders()
    assert (seen.phase, seen.report.failure.reason.value) == ("Failed", "RepeatedError")


def test_a_final_exit_code_ends_all():
    seen = film(exit_codes=(ExitCodeRule((3,), ExitAction.FAIL),))
    dies(seen, 3, how=ProcessExit(3, None))
    assert seen.phase == "Failed"
    assert without_plan(seen) == [*SLOTS]
    assert seen.sent_orders(0).lost == ()
    assert not seen.incident.final, "the others still live"
    seen.applies_orders()
    assert seen.incident.final


def test_a_job_that_fails_while_a_rank_is_lost_ends_the_others_too():
    seen = film()
    dies(seen, 3, dying=True)
    seen.desires(failure=Problem(FailReason.DEADLINE_EXCEEDED, "late"))
    assert seen.phase == "Failed"
    changes(seen, 3, dying=False)
    assert without_plan(seen) == [*SLOTS]
    assert not seen.incident.final, "the others still live"
    seen.applies_orders()
    assert seen.incident.final


# ---- process groups


def test_of_ranks_that_join_others_no_process_group_is_expected():
    seen = joining()
    assert seen.report.stage is Stage.FIRST_STEP
    seen.reports(1, groups=(GroupReport("b", 1, "train.py", (3,), (0,)),))
    assert seen.report.notice is None
    seen.later(700)
    assert (seen.report.notice, seen.report.failure) == (None, None)
