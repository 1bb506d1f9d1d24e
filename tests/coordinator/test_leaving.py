"""Leaving loses no step: a drain stops all ranks at one step, saves there, and only then ends the world."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import CLEAN, SIGKILL
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Problem, RankPhase
from ropeteam_trainer.contract.world import Cause, FailReason, ProcessExit, WorldId

TERMINATED = ProcessExit(143, None, killed=True)


def drain_to(film: Timeline, step: int) -> None:
    """All ranks continue to `step`, save there and stop."""
    film.saves(step)
    for slot in sorted(film.agents):
        film.ranks(slot, RankPhase.DRAINED, step)


def test_a_suspended_job_saves_at_a_common_step_then_stops_and_stays():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    assert film.phase == "Draining"
    assert film.sent_orders(0).pause == film.world_id
    assert film.sent_orders(0).stop_at is None
    film.applies_orders(0)
    film.ranks(1, RankPhase.PAUSED, 7)
    assert film.sent_orders(0).stop_at == 8, "rank 0 may already be in step 8"
    assert film.report.why == "the job is to be drained; world 1.0.1 waits for step 8 to be saved"
    film.ranks(0, RankPhase.DRAINED, 8)
    film.saves(8, 0)
    film.ranks(1, RankPhase.DRAINED, 8)
    assert film.phase == "Draining", "rank 1 has not written its shard yet"
    film.saves(8, 1)
    assert film.sent_orders(0).grant is not None
    film.applies_orders()
    assert film.phase == "Drained"
    assert film.lineage == [(8, "digest-8")]
    assert film.sent_orders(0).plan is None
    assert film.sent_orders(0).host_store is None
    assert film.report.incidents == ()


def receives_pause(film: Timeline, slot: int, received: bool | None, step: int) -> None:
    """The agent of the slot has applied the pause; its ranks train, and have received it or not."""
    ranks = (replace(rank, pause_received=received, step=step) for rank in film.agents[slot].ranks)
    film.reports(slot, ranks=tuple(ranks))


def test_the_step_to_stop_at_is_open_until_all_ranks_have_received_the_pause():
    """Else a rank passes it, and waits in the next step for the others, which wait for its shard."""
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.ranks(1, RankPhase.PAUSED, 7)
    assert film.sent_orders(1).stop_at is None, "the agent of slot 0 has not applied the pause"
    receives_pause(film, 0, False, 7)
    film.later(30)
    assert film.sent_orders(1).stop_at is None, "rank 0 will not wait at its next report"
    receives_pause(film, 0, True, 9)
    assert film.sent_orders(1).stop_at == 10, "rank 0 was in step 10, or will be"


def test_a_worker_of_servers_that_has_not_received_the_pause_is_waited_for():
    film = Timeline(workers=2, servers=1, feature_level=3).up(step=7)
    film.desires(drain=True)
    film.ranks(1, RankPhase.PAUSED, 7)
    receives_pause(film, 0, False, 7)
    film.later(30)
    assert film.sent_orders(1).stop_at is None
    receives_pause(film, 0, True, 9)
    assert film.sent_orders(1).stop_at == 10, "it may wait, through the server, for the paused one"


def test_a_rank_of_an_earlier_release_has_a_second_to_receive_the_pause():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.ranks(1, RankPhase.PAUSED, 7)
    receives_pause(film, 0, None, 7)
    film.later(0.9)
    assert film.sent_orders(1).stop_at is None
    film.later(0.2)
    assert film.sent_orders(1).stop_at == 8


def test_a_late_agent_is_waited_for_whatever_the_release_of_its_ranks():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.now += 3
    film.ranks(1, RankPhase.PAUSED, 7)
    film.reports(0, applied=False)
    assert film.sent_orders(1).stop_at is None
    receives_pause(film, 0, None, 8)
    assert film.sent_orders(1).stop_at == 9


def test_a_drained_job_resumes_on_request():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.ranks(0, RankPhase.PAUSED, 7)
    drain_to(film, 8)
    film.applies_orders()
    assert film.phase == "Drained"
    film.desires(drain=False)
    film.applies_orders()
    assert film.phase == "Running"
    plan = film.sent_orders(0).plan
    assert plan is not None
    assert [(ref.step, ref.digest) for ref in plan.restore] == [(8, "digest-8")]


def test_a_terminating_pod_costs_no_step():
    film = Timeline(feature_level=2).up(step=7)
    film.reports(1, terminating=True)
    assert film.phase == "Running", "others may be leaving as well"
    assert film.report.why == (
        "world 1.0.1 runs; terminating: the pod of slot 1; waiting for others that terminate too"
    )
    assert not film.sent_orders(1).leave
    film.later(1)
    assert film.phase == "Draining"
    film.ranks(0, RankPhase.PAUSED, 7)
    drain_to(film, 8)
    film.applies_orders(0)
    assert film.phase == "Stopping"
    assert not film.sent_orders(1).leave, "its ranks live still"
    film.applies_orders(1)
    assert film.sent_orders(1).leave
    assert film.phase == "Forming"
    assert film.report.why == "waiting for another pod in slot 1, because this one is terminating"
    assert (film.incident.cause, film.incident.slot, film.incident.step) == (Cause.POD_DELETED, 1, 8)
    film.replaces(1)
    film.applies_orders()
    film.reaches(9, base=8)
    assert (film.phase, film.incident.steps_lost, film.incident.charged) == ("Running", 0, False)


def test_pods_that_leave_within_a_second_are_one_incident():
    film = Timeline(workers=3, feature_level=2).up(step=7)
    film.reports(1, terminating=True)
    film.later(0.5)
    film.reports(2, terminating=True)
    film.later(0.5)
    assert film.report.why.startswith("terminating: the pods of slots 1, 2; world 1.0.1 waits for its ranks")
    film.ranks(0, RankPhase.PAUSED, 7)
    drain_to(film, 8)
    film.applies_orders()
    assert [incident.message for incident in film.report.incidents] == [
        "the pods of slots 1, 2 were terminating (deleted or evicted, or a node is drained)"
    ]


def test_a_pod_that_is_being_deleted_drains_as_after_sigterm():
    film = Timeline(feature_level=2).up(step=7)
    film.desires_slot(1, terminating=True)
    film.later(1)
    assert film.phase == "Draining"
    film.ranks(0, RankPhase.PAUSED, 7)
    drain_to(film, 8)
    film.applies_orders()
    assert film.phase == "Forming"
    assert film.sent_orders(1).refused == "the pod of slot 1 is being deleted"


def test_a_script_that_saves_by_itself_gets_sigterm():
    film = Timeline(feature_level=1).up(step=7)
    film.desires(drain=True)
    assert film.sent_orders(0).terminate
    assert "SIGTERM" in film.report.why
    film.exits(0, TERMINATED)
    film.exits(1, ProcessExit(0, None, killed=True))
    film.applies_orders()
    assert film.phase == "Drained", "an exit 0 after SIGTERM is not completion"
    assert film.report.incidents == ()


def test_a_lost_agent_is_a_fault_even_while_ranks_are_terminated():
    film = Timeline(feature_level=1).up(step=7)
    film.desires(drain=True)
    film.falls_silent(1)
    film.later(6)
    assert film.incident.cause is Cause.AGENT_LOST
    film.applies_orders()
    assert film.phase == "Forming", "its ranks may write on"


@pytest.mark.parametrize("saved", [(), (0,)])
def test_a_drain_ends_after_drain_seconds_whatever_happens(saved: tuple[int, ...]):
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    if saved:
        film.saves(8, *saved)
    film.later(59)
    assert film.phase == "Draining"
    film.later(2)
    assert film.phase == "Stopping"
    film.applies_orders()
    assert film.phase == "Drained"


def test_a_drain_without_checkpoints_does_not_wait_for_any():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.ranks(0, RankPhase.PAUSED, 7)
    for slot in (0, 1):
        film.ranks(slot, RankPhase.DRAINED, 8)
    film.applies_orders()
    assert film.phase == "Drained"


def test_a_drain_of_a_world_without_a_step_ends_it_at_once():
    film = Timeline(feature_level=2).up()
    film.desires(drain=True)
    film.applies_orders()
    assert film.phase == "Drained"


def test_a_drain_waits_for_a_step_that_is_not_reported_yet():
    film = Timeline(feature_level=2).up()
    film.desires(drain=True)
    film.applies_orders(0)
    film.reports(1, applied=False)
    assert film.phase == "Draining", "the agent of slot 1 may know of steps"
    film.reaches(4)
    film.ranks(1, RankPhase.PAUSED, 4)
    drain_to(film, 5)
    film.applies_orders()
    assert film.lineage == [(5, "digest-5")]


def test_ranks_that_were_done_before_the_drain_leave_nothing_to_commit():
    film = Timeline(feature_level=2).up(step=7)
    film.exits(0, CLEAN)
    film.desires(drain=True)
    film.ranks(1, RankPhase.PAUSED, 7)
    assert film.sent_orders(1).stop_at == 8, "the agent of slot 0 may have left"
    film.ranks(1, RankPhase.DRAINED, 8)
    film.saves(8, 1)
    film.applies_orders()
    assert film.phase == "Drained"


def test_a_job_that_completes_while_it_drains_is_complete():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.exits(0, CLEAN)
    film.exits(1, CLEAN)
    film.applies_orders()
    assert film.phase == "Complete"


def test_a_rank_that_fails_while_all_drain_is_a_fault():
    film = Timeline(feature_level=2).up(step=7)
    film.desires(drain=True)
    film.exits(1, SIGKILL)
    assert film.incident.cause is Cause.SIGNAL
    film.applies_orders()
    assert film.phase == "Drained"


def test_a_rank_that_fails_while_a_pod_leaves_is_a_consequence():
    film = Timeline(feature_level=2).up(step=7)
    film.reports(1, terminating=True)
    film.exits(1, SIGKILL)
    assert (film.incident.cause, film.incident.slot) == (Cause.POD_DELETED, 1)


def test_leaving_while_a_world_forms():
    film = Timeline()
    film.desires()
    film.reports(0)
    film.reports(1, terminating=True)
    assert film.sent_orders(1).leave
    film.applies_orders(0)
    assert film.phase == "Forming"
    film.replaces(1)
    assert film.phase == "Running"


def test_the_store_is_not_requested_from_a_terminating_pod():
    film = Timeline()
    film.desires()
    film.reports(0, terminating=True)
    assert film.sent_orders(0).host_store is None
    assert film.sent_orders(0).leave


def test_a_pod_whose_ranks_are_done_may_leave_while_others_go_on():
    film = Timeline(feature_level=2).up(step=7)
    film.exits(1, CLEAN)
    film.reports(1, terminating=True)
    assert film.sent_orders(1).leave
    film.later(2)
    assert film.phase == "Running"
    film.reports(0, terminating=True)
    assert not film.sent_orders(0).leave


def test_drain_while_a_world_forms_and_while_one_is_stopped():
    film = Timeline()
    film.desires(drain=True)
    film.reports(0)
    assert film.phase == "Drained"
    film.desires(drain=False)
    film.reports(1)
    film.applies_orders()
    film.reaches(3)
    film.exits(1, SIGKILL)
    film.desires(drain=True)
    assert film.phase == "Stopping"
    film.applies_orders()
    assert film.phase == "Drained"
    assert film.world_id == WorldId(1, 0, 1), "no other world was formed"


@pytest.mark.parametrize(("feature_level", "phase"), [(0, "Forming"), (1, "Forming"), (2, "Drained")])
def test_unreported_ranks_have_not_ended_where_they_write_by_themselves(feature_level: int, phase: str):
    film = Timeline(feature_level=feature_level).up(step=3)
    film.falls_silent(1)
    film.later(6)
    film.desires(drain=True)
    film.applies_orders()
    assert film.phase == phase
    film.silent.clear()
    film.applies_orders()
    assert film.phase == "Drained"


def test_an_agent_that_reported_its_ranks_ended_is_not_waited_for_when_its_pod_is_gone():
    film = Timeline(feature_level=1).up(step=3)
    film.exits(1, SIGKILL)
    film.applies_orders(1)
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2", previous_pod_fenced=False)
    film.desires(drain=True)
    film.applies_orders(0)
    assert film.phase == "Drained"


def test_drained_waits_for_ranks_of_whoever_comes_back():
    film = Timeline(feature_level=2).up(step=3)
    film.falls_silent(1)
    film.later(6)
    film.desires(drain=True)
    film.applies_orders()
    assert film.phase == "Drained"
    film.silent.clear()
    film.reports(1)
    assert film.sent_orders(1).plan is None
    film.desires(drain=False)
    assert film.phase == "Forming"
    film.applies_orders()
    assert film.phase == "Running"


def test_forming_shows_that_the_job_is_to_be_drained():
    film = Timeline(feature_level=2).up(step=3)
    film.exits(1, SIGKILL)
    film.falls_silent(0)
    film.later(6)
    film.desires(drain=True)
    film.silent.clear()
    assert film.phase == "Drained", "a lost agent is not waited for"


def test_a_job_that_fails_while_it_is_drained():
    film = Timeline()
    film.desires(drain=True)
    film.reports(0)
    film.reports(1, problem=Problem(FailReason.INVALID_SPEC, "x"))
    assert film.phase == "Failed"


def test_a_leave_that_ends_the_wait_in_time_is_committed_once():
    film = Timeline(feature_level=2).up(step=7)
    film.saves(7)
    film.applies_orders()
    film.reports(0, terminating=True)
    film.later(1)
    film.ranks(1, RankPhase.PAUSED, 7)
    drain_to(film, 8)
    film.applies_orders()
    assert film.lineage == [(8, "digest-8"), (7, "digest-7")]
