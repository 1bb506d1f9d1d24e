"""Suspend, resume, restart: a checkpoint first, then the workers, the coordinator last; then new names."""

from __future__ import annotations

from tests.builders import (
    Scene,
    a_job,
    a_running_job,
    an_incident,
    edited,
    reporting,
    seconds,
    unreachable,
    written,
)
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.conditions import ConditionType
from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import DeletePod
from ropeteam.core.seen.observation import Role
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import Cause

drained = reporting(phase=WorldPhase.DRAINED)


def suspended(workers: int = 2) -> FakeCluster:
    cluster = FakeCluster(a_job(workers))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    cluster.scene = cluster.scene.after(edited(suspend=True))
    cluster.play(until=lambda seen: seen.status.state == "Suspended")
    return cluster


def without_running_workers(scene: Scene) -> Scene:
    return scene.but(pods=tuple(pod for pod in scene.pods if pod.role is Role.COORDINATOR))


def deleted_by(scene: Scene) -> list[str]:
    return [action.name for action in decide(scene).actions if isinstance(action, DeletePod)]


def test_a_job_that_is_created_suspended_makes_nothing() -> None:
    seen = a_job(suspend=True).after(written)
    assert (seen.status.state, seen.status.attempt, decide(seen).actions) == ("Suspended", 0, ())


def test_the_request_to_drain_is_saved_before_it_is_sent() -> None:
    seen = a_running_job().after(edited(suspend=True))
    decision = decide(seen)
    assert (decision.status.state, decision.status.drain_start_time) == ("Suspending", seen.now)
    assert decision.status.reason == "Suspending", "not why it is not suspended"
    assert decision.actions == ()
    assert decision.desired is not None
    assert decision.desired.drain


def test_a_drain_during_a_recovery_is_the_reason_that_is_shown() -> None:
    hang = an_incident(Cause.HANG)
    recovering = a_running_job().after(reporting(phase=WorldPhase.FORMING, incidents=(hang,)), written)
    assert recovering.status.reason == "Hang", "or the test shows nothing"
    status = decide(recovering.after(edited(suspend=True))).status
    assert (status.reason, status.holds(ConditionType.RECOVERING)) == ("Suspending", False)


def test_workers_stay_until_all_ranks_have_saved_and_stopped() -> None:
    seen = a_running_job(workers=2).after(edited(suspend=True), written)
    assert deleted_by(seen) == []
    assert deleted_by(seen.after(drained, written)) == ["mnist-0-1", "mnist-1-1"]


def test_patience_has_an_end() -> None:
    seen = a_running_job(workers=2).after(edited(suspend=True), written, unreachable, written)
    assert decide(seen.after(seconds(60), written)).requeue_after_seconds == 1
    assert deleted_by(seen.after(seconds(69), written)) == []
    assert deleted_by(seen.after(seconds(70), written)) == ["mnist-0-1", "mnist-1-1"]


def test_a_pod_that_no_node_has_taken_is_not_named_to_the_coordinator() -> None:
    """The coordinator would wait for what lives there to end."""
    seen = a_running_job(workers=2)
    waiting = tuple(pod.model_copy(update={"node": ""}) if pod.slot == 1 else pod for pod in seen.pods)
    desired = decide(seen.but(pods=waiting)).desired
    assert desired
    assert [desired.slots[slot].pod_uid != "" for slot in ("0", "1")] == [True, False]


def test_the_coordinator_goes_last() -> None:
    seen = a_running_job(workers=2).after(edited(suspend=True), written, drained, written)
    leaving = tuple(pod.model_copy(update={"deleting": pod.role is Role.WORKER}) for pod in seen.pods)
    assert deleted_by(seen.but(pods=leaving)) == []
    assert deleted_by(seen.after(without_running_workers, written)) == ["mnist-coordinator-1"]


def test_a_pod_on_a_lost_node_holds_nothing_up() -> None:
    seen = a_running_job(workers=1).after(edited(suspend=True), written, drained, written)
    pods = tuple(pod.model_copy(update={"node_lost": True, "deleting": True}) for pod in seen.pods)
    assert seen.but(pods=pods).after(written).status.state == "Suspended"


def test_a_suspended_job_has_no_pods_and_shows_what_to_do() -> None:
    cluster = suspended()
    cluster.kubelets()
    assert cluster.observe().pods == ()
    condition = cluster.observe().status.condition(ConditionType.SUSPENDED)
    assert condition is not None
    assert (condition.status, "spec.suspend" in condition.message) == ("True", True)
    assert cluster.settle().requeue_after_seconds is None


def test_resuming_opens_an_attempt_with_new_names_and_a_new_start_time() -> None:
    cluster = suspended()
    first_start = cluster.observe().status.start_time
    cluster.pass_time(3600)
    cluster.scene = cluster.scene.after(edited(suspend=False))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    status = cluster.observe().status
    assert (status.attempt, status.coordinator.term) == (2, 2)
    assert cluster.made[-3:] == ["mnist-coordinator-2", "mnist-0-2", "mnist-1-2"]
    assert first_start is not None
    assert status.start_time is not None
    assert status.start_time > first_start
    assert all(slot.previous_pod_fenced for slot in status.slots), "all ranks had stopped"
    assert not status.holds(ConditionType.SUSPENDED)


def test_after_a_stop_that_nobody_confirmed_the_fence_counts_from_when_the_next_coordinator_knows() -> None:
    seen = a_running_job(workers=1).after(edited(suspend=True), written, unreachable, seconds(70), written)
    seen = seen.but(pods=()).after(written)
    assert seen.status.state == "Suspended"
    early = seen.after(seconds(5), edited(suspend=False), written)
    late = seen.after(seconds(600), edited(suspend=False), written)
    assert (early.status.slots[0].previous_pod_fenced, late.status.slots[0].previous_pod_fenced) == (
        False,
        False,
    )
    assert not decide(late.after(seconds(129))).status.slots[0].previous_pod_fenced
    assert decide(late.after(seconds(130))).status.slots[0].previous_pod_fenced


def test_a_drain_that_has_begun_is_finished_even_if_the_user_changes_their_mind() -> None:
    seen = a_running_job(workers=1).after(edited(suspend=True), written, edited(suspend=False), written)
    assert (seen.status.attempt, seen.status.state) == (1, "Restarting")
    assert seen.after(drained, written).status.attempt == 2


def test_restarted_at_drains_and_makes_all_pods_anew_once() -> None:
    cluster = FakeCluster(a_running_job(workers=1))
    cluster.scene = cluster.scene.after(edited(restartedAt="2026-11-20T12:00:00Z"))
    cluster.play(until=lambda seen: seen.status.attempt == 2)
    cluster.play(until=lambda seen: seen.status.state == "Running")
    assert cluster.made == ["mnist-coordinator-2", "mnist-0-2"]
    assert cluster.settle().status.attempt == 2


def test_that_all_ranks_have_ended_proves_nothing_of_a_previous_pod_that_may_still_write() -> None:
    """A coordinator that waits for its proof has no world, and is drained at once."""
    seen = a_running_job(workers=2).after(edited(restartedAt="2026-11-20T12:00:00Z"), written)
    slots = tuple(
        slot.model_copy(update={"previous_pod_fenced": slot.slot != 0}) for slot in seen.status.slots
    )
    seen = seen.but(status=seen.status.model_copy(update={"slots": slots})).after(drained, written)
    assert seen.status.attempt == 2
    assert [slot.previous_pod_fenced for slot in seen.status.slots] == [False, True]


def test_a_previous_pod_that_may_still_write_is_waited_for_although_its_slot_is_gone() -> None:
    cluster = suspended(workers=2)
    slots = tuple(
        slot.model_copy(update={"previous_pod_fenced": slot.slot != 1}) for slot in cluster.scene.status.slots
    )
    seen = cluster.scene.but(status=cluster.scene.status.model_copy(update={"slots": slots}))
    seen = seen.after(edited(workers=1, suspend=False), written)
    assert [(slot.slot, slot.previous_pod_fenced) for slot in seen.status.slots] == [(0, False)]


def test_restarted_at_requests_nothing_of_a_job_that_was_not_started() -> None:
    seen = a_job(restartedAt="2026-11-20T12:00:00Z").after(written)
    assert (seen.status.attempt, seen.status.drain_start_time) == (1, None)


def test_a_gang_of_which_nothing_runs_needs_no_drain() -> None:
    seen = a_job(workers=1).after(written, edited(suspend=True), written, written)
    assert seen.status.state == "Suspended"


def test_more_workers_after_a_suspension_get_numbers_above_all_that_were_used() -> None:
    cluster = suspended(workers=1)
    cluster.scene = cluster.scene.after(edited(workers=2, suspend=False))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    assert cluster.made[-2:] == ["mnist-0-2", "mnist-1-2"]
