"""Consequences of incidents: backoff, the failure budget, repeated errors, other pods, all other pods."""

from __future__ import annotations

import pytest
from lab.coordinator.reports import CLEAN, GPU_FULL, SIGKILL, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause, FailReason, ProcessExit

SEGFAULT = ProcessExit(None, 11, fingerprint="signal 11")


def strike(film: Timeline, how: ProcessExit, slot: int = 1, step: int = 0, base: int = 0) -> None:
    """One world comes to `step` (0: it makes none), is ended by `how`, and the gang starts again."""
    if step:
        film.reaches(step, base)
    film.exits(slot, how)
    recover(film)


def recover(film: Timeline) -> None:
    film.applies_orders()
    film.later(61 if film.phase == "Forming" else 0)
    film.applies_orders()


def lose(film: Timeline, slot: int) -> None:
    """The pod of a slot is lost and replaced."""
    film.falls_silent(slot)
    film.later(6)
    film.replaces(slot, film.agents[slot].incarnation + 1)
    recover(film)


def test_a_world_that_made_a_step_starts_again_without_a_pause():
    film = Timeline().up(step=3)
    film.exits(1, SIGKILL)
    film.applies_orders()
    assert film.phase == "Running"


@pytest.mark.parametrize(("worlds", "pause"), [(1, 1), (2, 2), (3, 4), (7, 60), (9, 60)])
def test_worlds_without_a_step_are_started_ever_more_slowly(worlds: int, pause: int):
    film = Timeline().up()
    for number in range(worlds):
        if number:
            film.later(61)
            film.applies_orders()
        film.exits(number % 2, SIGKILL)
        film.applies_orders()
    assert film.phase == "Forming"
    assert (
        film.report.why
        == "waiting for a backoff before the next start, because no step of the last world was observed"
    )
    film.later(pause - 0.01)
    assert film.phase == "Forming"
    film.later(0.01)
    assert film.phase == "Running"


def test_the_budget_is_spent_by_charged_incidents_only():
    film = Timeline()
    film.desired = film.desired.__class__(**{**film.desired.__dict__, "allowance": 1})
    film.up(step=3)
    strike(film, SIGKILL)
    assert film.phase == "Running"
    lose(film, 1)
    assert film.phase == "Running", "a lost agent is free"
    strike(film, SIGKILL, step=3)
    assert film.phase == "Failed"
    failure = film.report.failure
    assert failure is not None
    assert failure.reason is FailReason.BUDGET_SPENT


def test_what_the_operator_has_accounted_for_is_not_counted_twice():
    film = Timeline().up(step=3)
    strike(film, SIGKILL, step=3)
    film.desires(allowance=0, charged_incidents=("1.0.1",))
    assert film.phase == "Running"
    film.reaches(4)
    film.exits(1, SIGKILL)
    film.applies_orders()
    assert film.phase == "Failed", "and what it has not accounted for is subtracted"


def test_an_incident_that_the_operator_knew_first_is_counted_once():
    film = Timeline()
    film.desires(allowance=0, charged_incidents=("1.0.1",))
    film.up(step=3)
    strike(film, SIGKILL)
    assert film.phase == "Running"


def test_no_limit_is_no_limit():
    film = Timeline()
    film.desires(allowance=-1)
    film.up(step=3)
    for step in range(4, 20):
        strike(film, SIGKILL, step=step, base=3)
    assert film.phase == "Running"
    assert len(film.report.incidents) == 10, "the last ten are told"


@pytest.mark.parametrize("how", [raised(), GPU_FULL])
def test_the_same_error_three_times_without_a_new_step_ends_the_job(how: ProcessExit):
    film = Timeline().up(step=5)
    strike(film, how, step=5)
    strike(film, how, step=5)
    assert film.phase == "Running"
    strike(film, how, step=5)
    assert film.phase == "Failed"
    failure = film.report.failure
    assert failure is not None
    assert failure.reason is FailReason.REPEATED_ERROR
    assert how.message in failure.message
    assert all(incident.charged for incident in film.report.incidents)


@pytest.mark.parametrize("how", [SEGFAULT, ProcessExit(3, None), ProcessExit(None, 11)])
def test_a_repeated_crash_without_a_fingerprint_of_its_own(how: ProcessExit):
    film = Timeline(no_progress_limit=2).up(step=5)
    strike(film, how, step=5)
    strike(film, how, step=5)
    assert film.phase == "Failed"


def test_a_new_highest_step_between_two_errors_begins_the_count_anew():
    film = Timeline().up(step=5)
    for step in (5, 5, 6, 6, 7):
        strike(film, raised(), step=step)
    assert film.phase == "Running"


def test_other_errors_between_begin_the_count_anew_but_free_incidents_do_not():
    film = Timeline().up(step=5)
    strike(film, raised("A"), step=5)
    strike(film, raised("B"), step=5)
    strike(film, raised("A"), step=5)
    lose(film, 1)
    strike(film, raised("A"), step=5)
    assert film.phase == "Running"
    strike(film, raised("A"), step=5)
    assert film.phase == "Failed"


def test_being_killed_from_outside_is_never_a_repeated_error():
    film = Timeline().up(step=5)
    for _ in range(5):
        strike(film, SIGKILL, step=5)
    assert film.phase == "Running"


def test_two_worlds_without_progress_that_ended_in_one_pod_request_another_pod():
    film = Timeline(workers=3).up()
    strike(film, SEGFAULT, slot=2)
    assert not film.report.replacement_requests
    strike(film, SEGFAULT, slot=2)
    (request,) = film.report.replacement_requests
    assert (request.slot, request.incarnation, request.cause, request.avoid_node) == (
        2,
        1,
        Cause.SIGNAL,
        True,
    )
    assert request.message.startswith(
        "ranks in slot 2 failed in 2 worlds in a row without a new step; last: rank 2 was killed"
    )
    film.replaces(2)
    assert film.report.replacement_requests == ()


@pytest.mark.parametrize("how", [raised(), GPU_FULL])
def test_the_scripts_own_error_again_is_not_mended_by_another_pod(how: ProcessExit):
    film = Timeline(workers=3).up()
    strike(film, how, slot=2)
    strike(film, how, slot=2)
    assert not film.report.replacement_requests
    strike(film, raised("another"), slot=2)
    assert [request.slot for request in film.report.replacement_requests] == [2], (
        "other errors each time: the pod may be sick"
    )


def test_faults_in_different_pods_blame_none_of_them():
    film = Timeline(workers=3).up()
    strike(film, SEGFAULT, slot=2)
    strike(film, raised(), slot=1)
    assert film.report.replacement_requests == ()


def test_two_starts_in_a_row_without_a_step_request_all_pods():
    film = Timeline().up()
    strike(film, SEGFAULT, slot=0)
    assert not film.report.replace_all
    strike(film, raised(), slot=1)
    assert film.report.replace_all
    film.desires(attempt=2)
    assert not film.report.replace_all


def test_pods_that_terminate_in_starts_are_no_failed_starts():
    film = Timeline(workers=3, feature_level=2).up()
    for slot in (1, 2, 0):
        film.reports(slot, terminating=True)
        film.later(1.1)
        film.applies_orders()
        assert "backoff" not in film.report.why
        film.replaces(slot)
        film.applies_orders()
        assert film.phase == "Running"
    assert len(film.report.incidents) == 3
    assert not film.report.replace_all


def test_an_evicted_world_that_made_steps_begins_the_count_of_failed_starts_anew():
    film = Timeline(feature_level=2).up()
    strike(film, SEGFAULT, slot=0)
    film.reaches(100)
    film.reports(1, terminating=True)
    film.later(1.1)
    for slot in (0, 1):
        film.ranks(slot, RankPhase.DRAINED, 101)
    film.replaces(1)
    recover(film)
    assert film.phase == "Running"
    strike(film, raised(), slot=1)
    assert not film.report.replace_all


def test_the_scripts_own_error_is_not_mended_by_other_pods():
    film = Timeline().up()
    strike(film, raised(), slot=0)
    strike(film, raised(), slot=1)
    assert not film.report.replace_all
    assert film.phase == "Running"


def test_pods_replaced_by_a_new_attempt_are_no_incident():
    film = Timeline().up(step=3)
    film.desires(attempt=2, generation=2)
    for slot in (0, 1):
        film.replaces(slot)
    film.applies_orders()
    assert film.phase == "Running"
    assert film.report.incidents == ()
    plan = film.sent_orders(0).plan
    assert plan is not None
    assert plan.attempt == 2


@pytest.mark.parametrize("how", [raised(), GPU_FULL])
def test_progress_of_a_script_that_reports_no_steps_is_assumed_after_a_while(how: ProcessExit):
    film = Timeline(feature_level=0).up()
    film.later(1.5)
    film.exits(1, SIGKILL)
    film.applies_orders()
    assert film.phase == "Running", "struck from outside after running for a second"
    film.later(30)
    film.exits(1, how)
    film.applies_orders()
    assert film.phase == "Forming", "an exception may take as long as the imports to show"
    film.later(1)
    film.applies_orders()
    film.later(61)
    film.exits(1, how)
    film.applies_orders()
    assert film.phase == "Running"
    assert film.incident.recovery_milliseconds.first_step is None, "nobody saw a step"


def test_steps_lost_are_counted_for_every_fault_on_the_way():
    film = Timeline(feature_level=2).up(step=20)
    film.exits(1, SIGKILL)
    film.applies_orders()
    film.exits(0, SIGKILL)
    recover(film)
    film.reaches(11, base=10)
    assert [incident.steps_lost for incident in film.report.incidents] == [10, 0]


def test_a_job_that_has_ended_requests_nothing():
    film = Timeline().up()
    strike(film, SEGFAULT)
    strike(film, SEGFAULT)
    film.exits(0, CLEAN)
    film.exits(1, CLEAN)
    assert film.report.replacement_requests == ()
    assert not film.report.replace_all
