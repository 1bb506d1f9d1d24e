"""A lost pod gets a successor, saved first and made later; the old pod is fenced, never waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.builders import (
    Change,
    Scene,
    a_job,
    a_request,
    a_running_job,
    deleted,
    ended,
    evicted,
    force_deleted,
    held,
    on_a_lost_node,
    reporting,
    seconds,
    silent,
    unreachable,
    without_coordinator_pod,
    written,
)
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.status import SlotStatus
from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.objects.actions import CreatePod, CreateService, DeletePod, PointService
from ropeteam.core.seen.observation import ContainerSeen, HeldSlot, PodSeen, Role, ServiceSeen
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import Cause

forming = reporting(phase=WorldPhase.FORMING)


def slot(decision: Decision, number: int) -> SlotStatus:
    return decision.status.slots[number]


def names(decision: Decision) -> list[str]:
    return [str(action).split(" (")[0] for action in decision.actions]


def test_an_eviction_replaces_one_pod_and_is_free() -> None:
    seen = a_running_job(workers=4, recovery={"maxFailures": 0}).after(evicted(slot=2))
    decision = decide(seen)
    assert [each.incarnation for each in decision.status.slots] == [1, 1, 2, 1]
    assert decision.status.failures.charged == 0
    assert decision.actions == (), "save the intent first; the pods change in the next round"
    assert decision.why == "slot 2: Evicted, incarnation 2"


def test_the_successor_is_made_and_the_old_pod_deleted_in_the_next_round() -> None:
    seen = a_running_job().after(evicted(slot=2))
    assert names(decide(seen.after(written))) == [
        "ensure the agent's Secret",
        "create Pod mnist-2-2",
        "delete Pod mnist-2-1",
    ]


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        (force_deleted(1), Cause.POD_DELETED),
        (deleted(1, grace=-6), Cause.POD_DELETED),
        (ended(1, code=137, exit_reason="OOMKilled"), Cause.OUT_OF_MEMORY),
        (ended(1, code=143), Cause.POD_FAILED),
        (ended(1, code=137, reason="NodeLost"), Cause.NODE_LOST),
        (on_a_lost_node(1), Cause.NODE_LOST),
    ],
)
def test_a_lost_pod_has_a_cause(loss: Change, cause: Cause) -> None:
    decision = decide(a_running_job(workers=2).after(loss))
    assert slot(decision, 1).incarnation == 2
    assert [each.cause for each in decision.status.incidents] == [cause]
    assert decision.status.incidents[0].charged is cause.charged


@pytest.mark.parametrize("over", [forming, silent(1), seconds(76)])
def test_a_leaving_pod_is_replaced_when_nothing_can_be_saved_any_more(over: Change) -> None:
    assert slot(decide(a_running_job().after(deleted(1), over)), 1).incarnation == 2


def test_a_node_that_is_not_ready_is_no_loss_while_its_agent_reports() -> None:
    seen = a_running_job()
    lost = tuple(pod.model_copy(update={"node_lost": pod.slot == 1}) for pod in seen.pods)
    assert slot(decide(seen.but(pods=lost)), 1).incarnation == 1


@pytest.mark.parametrize("unknown", [unreachable, reporting(phase=WorldPhase.WAITING)])
def test_a_node_that_is_not_ready_is_no_loss_while_nobody_knows(unknown: Change) -> None:
    assert slot(decide(a_running_job().after(on_a_lost_node(1), unknown)), 1).incarnation == 1


def test_a_node_that_died_with_the_coordinator_and_all_workers_is_a_loss_once_agents_had_time_to_report() -> (
    None
):
    waiting = reporting(phase=WorldPhase.WAITING, why="waiting for the agents to report what they run")
    seen = a_running_job(workers=2, recovery={"lostSeconds": 5}).after(
        on_a_lost_node(0), on_a_lost_node(1), waiting
    )
    early, late = (decide(seen.but(reachable_seconds=after)) for after in (14.9, 15.0))
    assert [each.incarnation for each in early.status.slots] == [1, 1]
    (running,) = [each for each in early.status.conditions if each.type == "Running"]
    assert (running.status, running.reason) == ("True", "CoordinatorRestarted")
    assert running.message.endswith("Until then it is unknown whether training continues.")
    assert [each.incarnation for each in late.status.slots] == [2, 2]
    assert {each.cause for each in late.status.incidents} == {Cause.NODE_LOST}


def test_the_coordinators_request_replaces_a_silent_pod_once() -> None:
    seen = a_running_job().after(reporting(replacement_requests=(a_request(3),)), forming, silent(3))
    decision = decide(seen)
    assert slot(decision, 3).incarnation == 2
    assert decision.status.incidents == (), "the world's incident is the coordinator's to tell"
    assert slot(decide(seen.after(written)), 3).incarnation == 2, "a stale wish"


def test_a_request_may_come_again_for_the_successor() -> None:
    seen = a_running_job(workers=1).after(evicted(0), written)
    successor = seen.pods[-1].model_copy(update={"name": "mnist-0-2", "uid": "u2", "incarnation": 2})
    fresh = successor.model_copy(update={"phase": "Running", "container": ContainerSeen(running=True)})
    seen = seen.but(pods=(*seen.pods, fresh)).after(
        written, reporting(replacement_requests=(a_request(0, incarnation=2),))
    )
    assert slot(decide(seen), 0).incarnation == 3


def test_a_request_may_name_to_avoid_the_node() -> None:
    seen = a_running_job().after(
        reporting(replacement_requests=(a_request(3, cause=Cause.ERROR, avoid_node=True),))
    )
    decision = decide(seen)
    assert (slot(decision, 3).avoid_node, decision.status.avoided_nodes) == ("node-3", ("node-3",))


def test_a_terminated_container_proves_that_the_old_pod_writes_no_more() -> None:
    assert slot(decide(a_running_job().after(evicted(2))), 2).previous_pod_fenced


def test_an_object_that_merely_vanished_is_no_proof() -> None:
    seen = a_running_job().after(force_deleted(2))
    seen = seen.after(written)
    assert not seen.status.slots[2].previous_pod_fenced
    assert not slot(decide(seen.after(seconds(129))), 2).previous_pod_fenced
    assert slot(decide(seen.after(seconds(130))), 2).previous_pod_fenced, (
        "fenceSeconds and a margin have passed"
    )


@pytest.mark.parametrize(("wall", "own"), [(100_000, 129), (10, 100_000)])
def test_a_step_of_the_wall_clock_and_another_machines_end_no_fence(wall: float, own: float) -> None:
    seen = a_running_job().after(force_deleted(2))
    seen = seen.after(written)
    seen = seen.after(seconds(0)).but(now=seen.now + timedelta(seconds=wall), held_slots=held(seen, own))
    assert not slot(decide(seen), 2).previous_pod_fenced
    ticks = decide(seen).requeue_after_seconds
    assert ticks is not None


def test_a_wall_clock_that_is_set_back_holds_no_fence_up() -> None:
    seen = a_running_job().after(force_deleted(2), written)
    back = seen.but(now=seen.now - timedelta(hours=1))
    assert not slot(decide(back.but(held_slots=held(seen, 129))), 2).previous_pod_fenced
    assert slot(decide(back.but(held_slots=held(seen, 130))), 2).previous_pod_fenced, "by our own clock"


def test_the_fence_is_counted_from_when_the_coordinator_knows_of_the_new_pod() -> None:
    """Until then it keeps the former one alive, whatever status says."""
    seen = a_running_job().after(force_deleted(2))
    seen = seen.after(written, seconds(1000)).but(held_slots=())
    assert not slot(decide(seen), 2).previous_pod_fenced
    other = HeldSlot(slot=2, incarnation=1, seconds=1000)
    assert not slot(decide(seen.but(held_slots=(other,))), 2).previous_pod_fenced, "it knew that before"


def test_the_proof_may_come_later() -> None:
    seen = a_running_job().after(on_a_lost_node(2))
    seen = seen.after(written)
    assert not seen.status.slots[2].previous_pod_fenced
    assert slot(decide(seen.after(ended(2))), 2).previous_pod_fenced


def test_of_two_old_pods_only_time_is_proof() -> None:
    seen = a_running_job().after(force_deleted(2), written)
    second = PodSeen(
        name="mnist-2-2",
        uid="uid-new",
        role=Role.WORKER,
        slot=2,
        incarnation=2,
        node="node-9",
        phase="Failed",
        container=ContainerSeen(exit_code=1),
    )
    decision = decide(seen.but(pods=(*seen.pods, second)))
    assert (slot(decision, 2).incarnation, slot(decision, 2).previous_pod_fenced) == (3, False)
    assert slot(decision, 2).previous_pod_uid == ""


def test_a_coordinator_that_is_gone_gets_the_next_term() -> None:
    seen = a_running_job().after(without_coordinator_pod)
    decision = decide(seen)
    assert (decision.status.coordinator.term, decision.actions, decision.desired) == (2, (), None)
    assert decision.status.state == "Running", "training goes on meanwhile"
    again = decide(seen.after(written))
    assert names(again) == ["point Service mnist to term 2", "create Pod mnist-coordinator-2"]
    assert isinstance(again.actions[0], PointService)


def test_workers_are_made_only_when_their_coordinator_is_known_by_uid() -> None:
    """Else one that vanished unseen would be made again under the same term, beside its world."""
    seen = a_running_job(workers=1).after(without_coordinator_pod, force_deleted(0), written)
    assert names(decide(seen)) == ["point Service mnist to term 2", "create Pod mnist-coordinator-2"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "has ended (Evicted)"),
        ({"phase": "Succeeded"}, "has ended (Succeeded)"),
        ({"deleting": True}, "is being deleted"),
        ({"node_lost": True, "node": "node-7"}, "node node-7 is lost"),
        ({"uid": "another"}, "is gone"),
    ],
)
def test_ways_to_lose_a_coordinator(fields: dict[str, object], expected: str) -> None:
    decision = decide(coordinator_with(a_running_job().after(unreachable), **fields))
    assert decision.status.coordinator.term == 2
    assert expected in decision.why


def coordinator_with(seen: Scene, **fields: object) -> Scene:
    pods = (pod.model_copy(update=fields) if pod.role is Role.COORDINATOR else pod for pod in seen.pods)
    return seen.but(pods=tuple(pods))


def test_a_coordinator_that_answers_from_a_sick_node_or_restarts_stays() -> None:
    seen = a_running_job()
    crashed = ContainerSeen(exit_code=1, restarts=3)
    assert decide(coordinator_with(seen, node_lost=True)).status.coordinator.term == 1
    assert decide(coordinator_with(seen, container=crashed)).status.coordinator.term == 1


def test_an_answer_of_another_term_or_job_is_no_answer() -> None:
    seen = a_running_job()
    for stale in (reporting(term=0, replace_all=True), reporting(job_uid="other", replace_all=True)):
        assert decide(seen.after(stale)).status.attempt == 1


def test_a_coordinator_that_its_kubelet_restarts_without_effect_gets_another_pod() -> None:
    seen = a_running_job().after(unreachable, written, seconds(130))
    for restarts, term in ((0, 1), (1, 1), (2, 2), (9, 2)):
        tried = coordinator_with(seen, container=ContainerSeen(running=True, restarts=restarts))
        assert decide(tried).status.coordinator.term == term
    tried = coordinator_with(seen, container=ContainerSeen(running=True, restarts=2))
    assert decide(tried.after(seconds(-10))).status.coordinator.term == 1, (
        "not before its workers must have ended"
    )


def test_coordinators_lost_in_a_row_are_made_ever_slower() -> None:
    seen = a_running_job().after(without_coordinator_pod)
    coordinator = seen.status.coordinator.model_copy(update={"consecutive_failures": 3})
    seen = seen.but(status=seen.status.model_copy(update={"coordinator": coordinator}))
    seen = seen.after(written)
    assert names(decide(seen)) == ["point Service mnist to term 2"]
    assert decide(seen.after(seconds(3.9))).requeue_after_seconds == pytest.approx(0.1)
    assert "create Pod mnist-coordinator-2" in names(decide(seen.after(seconds(4))))


def test_pods_lost_in_a_row_are_made_ever_slower() -> None:
    seen = a_running_job(workers=1)
    slots = (seen.status.slots[0].model_copy(update={"consecutive_failures": 2}),)
    seen = seen.but(status=seen.status.model_copy(update={"slots": slots})).after(forming, ended(0))
    seen = seen.after(written)
    assert seen.status.slots[0].consecutive_failures == 3
    assert names(decide(seen)) == ["delete Pod mnist-0-1"]
    assert "create Pod mnist-0-2" in names(decide(seen.after(seconds(2))))


def test_a_world_that_runs_forgives_a_slot_its_lost_pods() -> None:
    seen = a_running_job(workers=1)
    slots = (seen.status.slots[0].model_copy(update={"consecutive_failures": 2}),)
    decision = decide(seen.but(status=seen.status.model_copy(update={"slots": slots})))
    assert slot(decision, 0).consecutive_failures == 0


def test_pods_that_never_train_fail_the_job_after_a_few_tries_at_growing_distance() -> None:
    cluster = FakeCluster(a_job(workers=1))
    cluster.exit = ContainerSeen(exit_code=128, exit_reason="StartError", exit_message='"python3": not found')
    cluster.play(until=lambda seen: seen.status.finished, rounds=40)
    status = cluster.observe().status
    assert (status.state, status.reason) == ("Failed", "RepeatedError")
    assert cluster.made == ["mnist-coordinator-1", "mnist-0-1", "mnist-0-2", "mnist-0-3"]
    assert '"python3": not found' in cluster.decisions[-1].why
    assert {each.id for each in status.failures.charges} == {"pod-0-1", "pod-0-2", "pod-0-3"}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (
            {
                "init": ContainerSeen(
                    name="fetch", exit_code=1, exit_reason="Error", exit_message="no space left"
                )
            },
            "init container fetch exited with code 1 (Error): no space left",
        ),
        ({"reason": "UnexpectedAdmissionError", "message": "no GPU."}, "UnexpectedAdmissionError no GPU."),
    ],
)
def test_a_pod_may_end_before_its_trainer_begins(end: dict[str, Any], expected: str) -> None:
    never = ended(0, container=ContainerSeen(), **end)
    decision = decide(a_running_job(workers=1).after(forming, never))
    assert decision.status.incidents[0].cause == "PodFailed"
    assert expected in decision.status.incidents[0].message
    assert slot(decision, 0).previous_pod_fenced is ("init" in end)


def test_two_starts_of_the_gang_without_a_step_open_a_new_attempt() -> None:
    decision = decide(a_running_job(workers=2).after(forming, reporting(replace_all=True)))
    status = decision.status
    assert (status.attempt, status.coordinator.term) == (2, 2)
    assert [each.incarnation for each in status.slots] == [2, 2]
    assert decision.actions == ()


def test_a_replacement_is_configured_with_what_the_script_uses_and_a_new_attempt_begins_without() -> None:
    seen = a_running_job(workers=2).after(reporting(feature_level=2), written, evicted(1), written)
    (pod,) = [action.manifest for action in decide(seen).actions if isinstance(action, CreatePod)]
    env = pod["spec"]["containers"][0]["env"]
    (value,) = [each["value"] for each in env if each["name"] == config.CONFIG]
    assert codec.decode(config.WorkerConfig, value).feature_level == 2
    assert decide(seen.after(forming, reporting(replace_all=True))).status.feature_level == 0, (
        "with another script?"
    )


def test_a_service_with_another_address_means_new_pods_for_all() -> None:
    seen = a_running_job(workers=2)
    gone = seen.but(service=None)
    made = decide(gone).actions[0]
    assert isinstance(made, CreateService)
    assert made.manifest["spec"]["clusterIP"] == "10.0.0.1", "ask for the old address"
    other = ServiceSeen(name="mnist", uid="uid-s", cluster_ip="10.0.0.9", term=1)
    status = decide(seen.but(service=other)).status
    assert (status.attempt, status.coordinator.address) == (2, "10.0.0.9")


def test_an_old_coordinator_goes_when_no_old_worker_needs_its_leave() -> None:
    seen = a_running_job(workers=1).after(reporting(replace_all=True), forming)
    seen = seen.after(written)
    assert [action.name for action in decide(seen).actions if isinstance(action, DeletePod)] == ["mnist-0-1"]
    left = tuple(pod.model_copy(update={"deleting": pod.role is Role.WORKER}) for pod in seen.pods)
    assert not [action for action in decide(seen.but(pods=left)).actions if isinstance(action, DeletePod)]
    gone = seen.but(pods=left).after(force_deleted(0))
    assert "delete Pod mnist-coordinator-1" in names(decide(gone))


def test_pods_of_others_and_pods_from_the_future_are_left_alone() -> None:
    seen = a_running_job(workers=1)
    foreign = PodSeen(name="my-copy", uid="u1", role=Role.WORKER, slot=0, incarnation=1)
    guest = PodSeen(name="my-coordinator", uid="u2", role=Role.COORDINATOR, term=1)
    ahead = PodSeen(name="mnist-0-7", uid="u3", role=Role.WORKER, slot=0, incarnation=7)
    newer = PodSeen(name="mnist-7-7", uid="u4", role=Role.WORKER, slot=7, incarnation=7)
    leader = PodSeen(name="mnist-coordinator-9", uid="u5", role=Role.COORDINATOR, term=9)
    assert decide(seen.but(pods=(*seen.pods, foreign, guest, ahead, newer, leader))).actions == ()


def test_a_pod_of_a_slot_that_is_no_more_is_deleted() -> None:
    extra = PodSeen(name="mnist-5-1", uid="u1", role=Role.WORKER, slot=5, incarnation=1)
    seen = a_running_job(workers=1)
    assert names(decide(seen.but(pods=(*seen.pods, extra)))) == ["delete Pod mnist-5-1"]


def test_a_pod_that_is_not_seen_yet_is_made_again_under_the_same_name() -> None:
    seen = a_running_job(workers=1)
    unseen = seen.status.slots[0].model_copy(update={"pod_uid": ""})
    status = seen.status.model_copy(update={"slots": (unseen,)})
    seen = seen.but(status=status, report=None).after(force_deleted(0))
    assert decide(seen.after(written)).actions == (), "the coordinator, which was not asked yet, may know it"
    _, action = decide(seen.but(report_error="refused").after(written)).actions
    assert isinstance(action, CreatePod)
    assert action.manifest["metadata"]["name"] == "mnist-0-1"


def test_a_term_is_above_all_that_have_claimed_the_checkpoints() -> None:
    """Status may be from before a restore of etcd: then its term was used already."""
    decision = decide(a_running_job().after(reporting(newer_term=5)))
    assert decision.status.coordinator.term == 6
    assert "status is older than the coordinator of term 5" in decision.why
