"""Pods in which no rank can start: the job's fault ends it, a pod's fault requests another pod."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import agent, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.config import ExitAction, ExitCodeRule
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import Cause, FailReason, ProcessExit

STALE = Problem(
    FailReason.CHECKPOINT_NOT_WRITABLE, "/data cannot be written: Stale file handle", transient=True
)
DENIED = Problem(FailReason.CHECKPOINT_NOT_WRITABLE, "/data cannot be written: Permission denied")
SLOW = Problem(FailReason.INTERPRETER_WITHOUT_TORCH, "python3 cannot be started: timed out", transient=True)
NO_FILE = Problem(FailReason.COMMAND_NOT_FOUND, "train.py is not a file in /work")


def replaced(film: Timeline, incarnation: int, problem: Problem | None, slot: int = 1) -> None:
    """The operator has made another pod, in which its agent finds this."""
    film.desires_slot(slot, incarnation=incarnation, pod_uid=f"pod-{slot}-{incarnation}")
    film.agents[slot] = agent(slot, incarnation, problem=problem)
    film.silent.discard(slot)
    film.reports(slot)
    film.applies_orders()


@pytest.mark.parametrize("problem", [STALE, DENIED, SLOW, NO_FILE], ids=lambda each: each.message)
def test_one_bad_node_does_not_end_a_job_that_has_trained(problem: Problem) -> None:
    film = Timeline(workers=4, feature_level=3).up(step=1_000_000)
    film.falls_silent(1)
    film.later(6)
    replaced(film, 2, problem)
    assert (film.phase, film.report.failure) == ("Forming", None)
    (request,) = film.report.replacement_requests
    assert (request.slot, request.incarnation, request.avoid_node) == (1, 2, True)
    assert problem.message in request.message
    assert problem.message in film.report.why
    replaced(film, 3, None)
    assert (film.phase, film.report.replacement_requests) == ("Running", ())


def test_a_pod_that_becomes_unstartable_in_a_world_that_begins_is_replaced_for_free() -> None:
    """A rank's folder cannot be claimed, and the other ranks wait for it."""
    film = Timeline(feature_level=2).up(step=3)
    film.exits(1, ProcessExit(1, None, fingerprint="E"))
    film.applies_orders()
    film.reports(0, problem=STALE)
    assert [(request.slot, request.cause) for request in film.report.replacement_requests] == [
        (0, Cause.STORAGE_UNAVAILABLE)
    ]
    replaced(film, 2, None, slot=0)
    film.later(61)
    film.applies_orders()
    assert (film.phase, film.report.replacement_requests, film.report.failure) == ("Running", (), None)
    assert not film.incident.charged


def test_a_pod_that_becomes_unstartable_ends_no_job_after_a_restart_of_the_coordinator() -> None:
    film = Timeline(feature_level=2).up(step=3)
    film.reboots()
    film.desires()
    film.reports(1, problem=DENIED)
    film.later(6)
    assert film.report.failure is None
    assert film.report.replacement_requests[0].cause is Cause.STORAGE_UNAVAILABLE


@pytest.mark.parametrize("problem", [DENIED, NO_FILE], ids=lambda each: each.message)
def test_what_any_pod_would_have_ends_a_job_that_never_ran(problem: Problem) -> None:
    film = Timeline()
    film.desires()
    film.reports(0, problem=problem)
    assert (film.phase, film.report.failure) == ("Failed", problem)


@pytest.mark.parametrize("problem", [STALE, SLOW], ids=lambda each: each.message)
def test_a_transient_problem_requests_another_pod_at_a_first_start_too(problem: Problem) -> None:
    film = Timeline()
    film.desires()
    film.reports(0, problem=problem)
    assert [request.slot for request in film.report.replacement_requests] == [0]
    assert film.report.failure is None


def test_other_pods_are_requested_after_pauses_that_double() -> None:
    film = Timeline(feature_level=2).up(step=3)
    replaced(film, 2, STALE)
    for incarnation, pause in enumerate((15, 30, 60, 120, 240, 300, 300), start=3):
        assert [request.incarnation for request in film.report.replacement_requests] == [incarnation - 1]
        replaced(film, incarnation, STALE)
        film.later(pause - 1)
        assert film.report.replacement_requests == ()
        film.later(2)


def test_from_the_third_unstartable_pod_in_a_row_on_the_job_is_stalled_with_a_reason() -> None:
    film = Timeline(feature_level=2).up(step=3)
    for incarnation in (2, 3):
        replaced(film, incarnation, STALE)
        assert film.report.stalled is None
    replaced(film, 4, STALE)
    stalled = film.report.stalled
    assert stalled is not None
    assert stalled.reason is FailReason.CHECKPOINT_NOT_WRITABLE
    assert stalled.message.startswith(
        "3 pods in a row of slot 1 could not start a rank, the last on node node-1: "
    )
    assert STALE.message in stalled.message
    film.agents[1] = agent(1, 4, problem=STALE, node="")
    film.reports(1)
    replaced(film, 5, agent(1, 5, node="").problem)
    assert (film.report.stalled, film.phase) == (None, "Running")


def test_while_a_slot_has_no_pod_its_count_goes_on() -> None:
    film = Timeline(feature_level=2).up(step=3)
    for incarnation in (2, 3):
        replaced(film, incarnation, STALE)
    film.desires_slot(1, incarnation=4, pod_uid="")
    assert film.report.failure is None
    film.agents[1] = agent(1, 4, problem=STALE, node="")
    film.desires_slot(1, pod_uid="pod-1-4")
    film.reports(1)
    assert film.report.stalled is not None
    assert "each in another pod" in film.report.stalled.message


def test_a_job_that_ends_is_not_stalled() -> None:
    film = Timeline(feature_level=2).up(step=3)
    for incarnation in (2, 3, 4):
        replaced(film, incarnation, STALE)
    film.reports(0, problem=Problem(FailReason.CHECKPOINT_NOT_FOUND, "all are torn"))
    assert (film.phase, film.report.stalled) == ("Failed", None)


# ---- checkpoints that cannot be read


def unreadable(storage: str) -> ProcessExit:
    return ProcessExit(1, None, fingerprint="f", message="OSError: Stale file handle", storage=storage)


def test_a_node_that_cannot_read_checkpoints_is_left_for_another_at_no_charge() -> None:
    film = Timeline(feature_level=2, no_progress_limit=2).up()
    film.exits(0, unreadable("elsewhere"))
    film.exits(1, unreadable("here"))
    film.applies_orders()
    assert (film.incident.cause, film.incident.charged) == (Cause.STORAGE_UNAVAILABLE, False)
    assert (film.incident.slot, film.incident.node) == (1, "node-1")
    (request,) = film.report.replacement_requests
    assert (request.slot, request.avoid_node) == (1, True)
    stalled = film.report.stalled
    assert stalled is not None
    assert stalled.reason is FailReason.CHECKPOINT_UNAVAILABLE
    assert "on node node-1, rank 1 could not read its checkpoint: OSError: Stale" in stalled.message
    film.replaces(1)
    film.later(2)
    film.applies_orders()
    film.reaches(3)
    assert (film.phase, film.report.stalled) == ("Running", None)


def test_a_volume_that_is_away_for_every_pod_never_ends_the_job() -> None:
    film = Timeline(
        feature_level=2, no_progress_limit=2, exit_codes=(ExitCodeRule((1,), ExitAction.FAIL),)
    ).up()
    for slot in range(2):
        film.reports(slot, node="")
    for _ in range(12):
        for slot in range(2):
            film.exits(slot, unreadable("everywhere"))
        film.applies_orders()
        assert film.report.failure is None
        assert film.incident.cause is Cause.STORAGE_UNAVAILABLE
        assert film.report.stalled is not None
        film.later(61)
        film.applies_orders()
        assert film.phase == "Running"
    assert film.report.replace_all, "new pods have new mounts"
    assert "in slot 0, " in (film.report.stalled.message if film.report.stalled else "")


def test_a_volume_that_hangs_is_reported_with_its_start_and_training_continues() -> None:
    film = Timeline(feature_level=3).up(step=3)
    film.reports(0, pending_disk_request="the manifest of step 3")
    film.later(90)
    stalled = film.report.stalled
    assert stalled
    assert (stalled.reason, film.phase) == (FailReason.CHECKPOINT_UNAVAILABLE, "Running")
    assert "had not answered slot 0 for a minute at 1970-01-01 00:16:40 UTC" in stalled.message
    assert "pending: the manifest of step 3" in stalled.message
    film.reports(0, pending_disk_request="")
    assert film.report.stalled is None


MISSING = replace(
    raised("ModuleNotFoundError: No module named 'x' (train.py:1)"),
    error_class="builtins.ModuleNotFoundError",
)


def test_a_script_that_cannot_run_in_any_pod_is_not_tried_again():
    film = Timeline().up()
    film.exits(0, MISSING)
    film.applies_orders()
    assert film.state.failure is not None
    assert film.state.failure.reason is FailReason.SCRIPT_INVALID
    assert "Correct the script" in film.state.failure.message


@pytest.mark.parametrize(
    "how",
    [
        raised(),
        replace(MISSING, message="ImportError: libcuda.so.1: cannot open shared object file (train.py:1)"),
    ],
)
def test_what_may_be_the_pods_fault_is_tried_again(how: ProcessExit):
    film = Timeline().up()
    film.exits(0, how)
    film.applies_orders()
    assert film.state.failure is None


def test_in_a_job_that_has_run_a_missing_module_may_be_the_pods_fault():
    film = Timeline().up(step=3)
    film.exits(0, MISSING)
    film.applies_orders()
    assert film.state.failure is None
    film.later(5)
    film.applies_orders()
    film.exits(0, MISSING)
    film.applies_orders()
    assert film.state.failure is None, "of the second world nothing is known"
