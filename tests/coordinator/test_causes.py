"""One incident per world, and its cause is the root, not the consequence that was seen first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import CLEAN, GPU_FULL, KILLED, SIGKILL, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.config import ExitAction, ExitCodeRule
from ropeteam_trainer.contract.messages import Problem, RankPhase
from ropeteam_trainer.contract.world import Cause, FailReason, ProcessExit

RESET = raised("RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:1234")
HUNG = ProcessExit(None, 9, hung=True, fingerprint="hang")
LATE, OOM = ProcessExit(None, 9, late_start=True), ProcessExit(None, 9, oom=True)
NCCL_ABORT = ProcessExit(None, 6, last_lines=("[E] ProcessGroupNCCL.cpp: watchdog caught", "Aborted"))


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (SIGKILL, Cause.SIGNAL),
        (ProcessExit(None, 11), Cause.SIGNAL),
        (raised(), Cause.ERROR),
        (ProcessExit(3, None), Cause.ERROR),
        (HUNG, Cause.HANG),
        (LATE, Cause.START_TIMEOUT),
        (OOM, Cause.OUT_OF_MEMORY),
        (replace(GPU_FULL, error_class="torch.cuda.OutOfMemoryError"), Cause.OUT_OF_MEMORY),
        (RESET, Cause.ERROR),
    ],
)
def test_how_a_rank_ended_names_the_cause(how: ProcessExit, cause: Cause):
    film = Timeline().up(step=3)
    film.exits(1, how)
    assert (film.incident.cause, film.incident.rank, film.incident.node) == (cause, 1, "node-1")
    assert film.incident.exit == how
    assert film.incident.message.startswith("rank 1 ")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (raised(), "rank 1 exited 1: ValueError: bad lr (train.py:31)"),
        (ProcessExit(2, None), "rank 1 exited 2"),
        (ProcessExit(2, None, last_lines=("", "no /x", " ")), "rank 1 exited 2; its last line: no /x"),
        (ProcessExit(None, 9, last_lines=("step 3",)), "rank 1 was killed by SIGKILL"),
        (ProcessExit(None, 40), "rank 1 was killed by signal 40"),
        (HUNG, "rank 1 made no progress and was killed"),
        (OOM, "rank 1 ran out of memory and was killed"),
        (GPU_FULL, f"rank 1 exited 1: {GPU_FULL.message}"),
    ],
)
def test_an_incident_has_its_reason(how: ProcessExit, message: str):
    film = Timeline().up(step=3)
    film.exits(1, how)
    assert film.incident.message == message


@pytest.mark.parametrize(
    ("first", "then", "cause", "slot"),
    [
        (RESET, SIGKILL, Cause.SIGNAL, 1),
        (NCCL_ABORT, raised(), Cause.ERROR, 1),
        (RESET, raised(), Cause.ERROR, 1),
        (SIGKILL, HUNG, Cause.HANG, 1),
        (raised(), KILLED, Cause.ERROR, 0),
        (SIGKILL, KILLED, Cause.SIGNAL, 0),
        (SIGKILL, SIGKILL, Cause.SIGNAL, 0),
        (raised(), RESET, Cause.ERROR, 0),
        (OOM, HUNG, Cause.OUT_OF_MEMORY, 0),
        (RESET, GPU_FULL, Cause.OUT_OF_MEMORY, 1),
        (GPU_FULL, SIGKILL, Cause.SIGNAL, 1),
    ],
)
def test_the_root_cause_wins_and_the_first_among_equals(
    first: ProcessExit, then: ProcessExit, cause: Cause, slot: int
):
    film = Timeline(workers=3).up(step=3)
    film.exits(0, first)
    film.exits(1, then)
    assert (film.incident.cause, film.incident.slot, film.incident.rank) == (cause, slot, slot)
    assert len(film.report.incidents) == 1
    film.applies_orders()
    assert (film.incident.cause, film.incident.slot, film.incident.final) == (cause, slot, True)


def test_a_lost_agent_outweighs_the_errors_of_its_peers():
    film = Timeline(workers=3).up(step=3)
    film.falls_silent(2)
    film.later(1)
    film.exits(0, RESET)
    film.exits(1, RESET)
    assert film.phase == "Stopping", "slot 2 has its lease still"
    film.later(5)
    assert film.incident.cause is Cause.AGENT_LOST
    assert (film.incident.slot, film.incident.charged) == (2, False)
    assert film.phase == "Forming", "a lost agent is not waited for"
    assert film.report.why == (
        "waiting for the agent of slot 2, which stopped reporting; another pod is requested"
    )
    assert [request.incarnation for request in film.report.replacement_requests] == [1]


def test_an_agent_that_spoke_after_the_fault_did_not_cause_it():
    film = Timeline(workers=3).up(step=3)
    film.exits(0, SIGKILL)
    film.now += 0.5
    film.reports(2, applied=False)
    film.falls_silent(2)
    film.later(7)
    assert film.incident.cause is Cause.SIGNAL


def test_a_silent_agent_is_a_fault_of_its_own():
    film = Timeline().up(step=3)
    film.falls_silent(1)
    film.later(5)
    assert film.phase == "Running"
    film.later(1)
    assert film.incident.cause is Cause.AGENT_LOST
    assert film.incident.message == "the agent of slot 1 has not reported for more than 5 s"


def test_a_lost_agent_that_returns_must_end_its_ranks_first():
    film = Timeline().up(step=3)
    film.falls_silent(1)
    film.later(6)
    film.applies_orders()
    assert film.phase == "Forming"
    film.silent.clear()
    film.reports(1)
    assert film.report.why == "waiting for the ranks of slot 1 to end"
    assert film.report.replacement_requests == (), "it is back: no other pod is needed"
    film.applies_orders()
    assert film.phase == "Running"


def test_an_agent_that_forgot_its_ranks_ends_the_world():
    film = Timeline().up(step=3)
    film.reports(1, plan=None, ranks=(), stopped=True)
    assert film.incident.message == (
        "the agent of slot 1 was restarted: it reports again, but without its ranks"
    )


def test_a_rank_that_nobody_saw_end():
    film = Timeline().up(step=3)
    film.ranks(1, RankPhase.EXITED, 3)
    assert (film.incident.cause, film.incident.exit) == (Cause.UNKNOWN, None)


def test_ranks_that_their_agent_fenced():
    film = Timeline().up(step=3)
    film.exits(1, KILLED)
    assert (film.incident.cause, film.incident.charged) == (Cause.AGENT_LOST, False)


def test_a_second_fault_of_the_same_world_is_the_same_incident_and_the_next_world_has_its_own():
    film = Timeline(workers=3).up(step=3)
    film.exits(0, SIGKILL)
    film.exits(1, SIGKILL)
    film.exits(2, SIGKILL)
    film.applies_orders()
    assert [incident.id for incident in film.report.incidents] == ["1.0.1"]
    film.exits(1, SIGKILL)
    film.applies_orders()
    assert [incident.id for incident in film.report.incidents] == ["1.0.1", "1.0.2"]


def test_an_exit_code_that_is_final_fails_the_job_at_once():
    film = Timeline(exit_codes=(ExitCodeRule((2, 42), ExitAction.FAIL),)).up(step=3)
    film.exits(1, ProcessExit(42, None))
    assert film.phase == "Failed"
    assert film.sent_orders(0).plan is None
    failure = film.report.failure
    assert failure is not None
    assert failure.reason is FailReason.EXIT_CODE
    assert failure.message == "rank 1 exited 42, which spec.recovery.exitCodes defines as final"
    film.applies_orders()
    assert film.incident.final
    assert film.report.why.startswith("failed: ExitCodeRule: rank 1 exited 42")


def failed_by_a_rule() -> Timeline:
    film = Timeline(exit_codes=(ExitCodeRule((42,), ExitAction.FAIL),)).up(step=3)
    film.exits(1, ProcessExit(42, None))
    film.applies_orders()
    return film


def test_agents_of_a_failed_job_exit_once_its_status_has_the_reason():
    film = failed_by_a_rule()
    assert film.sent_orders(0).failed == ""
    film.desires(failure=film.report.failure)
    assert film.sent_orders(0).failed.startswith("ExitCodeRule: rank 1 exited 42")
    assert film.sent_orders(1).failed == film.sent_orders(0).failed


def test_agents_of_a_failed_job_exit_though_the_operator_is_away():
    film = failed_by_a_rule()
    fence = film.config.timeouts.fence
    film.later(fence - 1)
    assert film.sent_orders(0).failed == ""
    film.later(1)
    assert film.sent_orders(0).failed != ""
    assert film.report.failure is not None, "an operator that comes back reads why"


@pytest.mark.parametrize("boots", [0, 1])
def test_what_the_operator_fails_ends_the_world_and_then_the_agents(boots: int):
    film = Timeline().up(step=3)
    if boots:
        film.reboots()
        film.reports(0)
    film.desires(failure=Problem(FailReason.DEADLINE_EXCEEDED, "an hour is over"))
    assert film.sent_orders(0).plan is None
    film.applies_orders()
    assert film.phase == "Failed"
    assert film.sent_orders(0).failed == "DeadlineExceeded: an hour is over"


def test_a_final_exit_code_that_shows_while_others_are_stopped():
    film = Timeline(workers=3, exit_codes=(ExitCodeRule((2,), ExitAction.FAIL),)).up(step=3)
    film.exits(0, RESET)
    film.exits(1, ProcessExit(2, None))
    assert film.phase == "Failed"


def test_a_final_code_of_a_rank_that_we_killed_means_nothing():
    film = Timeline(exit_codes=(ExitCodeRule((2,), ExitAction.FAIL),)).up(step=3)
    film.exits(1, SIGKILL)
    film.exits(0, ProcessExit(2, None, killed=True))
    film.applies_orders()
    assert film.phase == "Running"


def test_an_exit_code_that_is_free_is_not_charged():
    film = Timeline(exit_codes=(ExitCodeRule((75,), ExitAction.RETRY_FREE),)).up(step=3)
    film.exits(1, ProcessExit(75, None))
    film.applies_orders()
    assert (film.incident.cause, film.incident.charged) == (Cause.RETRIED_FREE, False)
    assert film.phase == "Running"


def test_a_problem_that_no_restart_mends_fails_the_job_at_once():
    film = Timeline()
    film.desires()
    film.reports(0, problem=Problem(FailReason.COMMAND_NOT_FOUND, "no such file: trian.py"))
    assert film.phase == "Failed"
    assert film.report.failure == film.agents[0].problem
    assert film.report.replacement_requests == ()


@pytest.mark.parametrize("boot", [0, 1])
def test_a_problem_ends_a_running_world_and_a_waiting_coordinator(boot: int):
    film = Timeline().up(step=3)
    if boot:
        film.reboots()
        film.desires()
    film.reports(1, problem=Problem(FailReason.CHECKPOINT_NOT_FOUND, "/checkpoints"))
    assert film.phase == "Failed"
    assert film.report.incidents == ()


def test_a_signal_after_the_end_is_done_once_a_sibling_ended_well():
    aborted = ProcessExit(None, 6, reached_end=True)
    film = Timeline().up(step=3)
    film.exits(0, aborted)
    assert film.phase == "Running", "undecided: rank 1 still runs"
    film.exits(1, CLEAN)
    assert film.phase == "Completing"


def test_a_signal_after_the_end_is_a_fault_if_no_sibling_ended_well():
    aborted = ProcessExit(None, 6, reached_end=True)
    film = Timeline().up(step=3)
    film.exits(0, aborted)
    film.exits(1, aborted)
    assert film.incident.cause is Cause.SIGNAL


def test_a_kill_before_the_end_is_a_fault_even_if_a_sibling_ended_well():
    film = Timeline().up(step=3)
    film.exits(0, CLEAN)
    film.exits(1, SIGKILL)
    assert film.incident.cause is Cause.SIGNAL


def test_faults_after_all_are_done_change_nothing():
    film = Timeline().up(step=3)
    film.exits(0, CLEAN)
    film.exits(1, CLEAN)
    film.falls_silent(0)
    film.reports(1, problem=Problem(FailReason.INVALID_SPEC, "too late"), terminating=True)
    film.applies_orders()
    film.later(7)
    assert film.phase == "Complete"
    assert film.report.incidents == ()
    assert film.sent_orders(1).release


def test_a_pod_lost_after_its_ranks_were_done_is_no_fault():
    film = Timeline().up(step=3)
    film.exits(0, CLEAN)
    film.falls_silent(0)
    film.later(7)
    assert film.phase == "Running"
    film.exits(1, CLEAN)
    film.applies_orders()
    assert film.phase == "Complete"


def test_a_replacement_that_comes_when_all_is_complete_is_released_too():
    film = Timeline().up(step=3)
    film.exits(0, CLEAN)
    film.desires_slot(0, incarnation=2, pod_uid="pod-0-2")
    film.exits(1, CLEAN)
    film.applies_orders(1)
    assert film.phase == "Complete", "a pod that was replaced cannot acknowledge"
    film.replaces(0)
    assert film.sent_orders(0).release


def test_the_step_at_the_fault_counts_late_reports():
    film = Timeline().up(step=3)
    film.exits(0, SIGKILL)
    dead = tuple(replace(rank, phase=RankPhase.EXITED, step=4, exit=KILLED) for rank in film.agents[1].ranks)
    film.reports(1, ranks=dead, stopped=True)
    assert film.incident.step == 4


def test_a_dying_rank_ends_the_world_and_is_waited_for():
    film = Timeline().up(step=3)
    dying = tuple(replace(rank, phase=RankPhase.EXITED, exit=SIGKILL) for rank in film.agents[0].ranks)
    film.reports(0, ranks=dying, stopped=False)
    assert film.phase == "Stopping"
    film.exits(1, KILLED)
    assert film.phase == "Stopping", "rank 0 is not gone yet"
    more = replace(SIGKILL, last_lines=("Segmentation fault in f",))
    film.exits(0, more)
    assert film.phase != "Stopping"
    assert (film.incident.cause, film.incident.rank, film.incident.exit) == (Cause.SIGNAL, 0, more)


def test_a_rank_that_had_ended_well_went_before_one_that_missed_it():
    film = Timeline(processes=2).up(step=3)
    one, other = film.agents[0].ranks
    well = replace(other, phase=RankPhase.EXITED, exit=CLEAN)
    film.reports(0, ranks=(one, well))
    film.exits(1, RESET)
    assert (film.incident.rank, film.incident.slot) == (1, 0)
    assert film.incident.message.startswith(
        "rank 1 had ended with exit code 0, then rank 2 exited 1: Runtime"
    )


def test_the_rank_that_a_launcher_names_is_the_one_that_failed():
    film = Timeline(processes=2).up(step=3)
    film.exits(1, replace(raised(), rank=3))
    assert (film.incident.rank, film.incident.message[:6]) == (3, "rank 3")
