"""Conditions and events: what, where, and the next step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import (
    Scene,
    a_job,
    a_problem,
    a_running_job,
    an_incident,
    edited,
    evicted,
    reporting,
    seconds,
    unreachable,
    written,
)

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.core.decide import decide
from ropeteam.core.seen.observation import ContainerSeen, Observation, Role
from ropeteam_trainer.contract.desired import Stage, WorldPhase
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import Cause, FailReason

forming = reporting(phase=WorldPhase.FORMING, why="waits for slots 1 and 2")


def condition(seen: Scene, kind: ConditionType) -> Condition:
    found = decide(seen).status.condition(kind)
    assert found is not None
    return found


def starting(role: Role = Role.WORKER, checkpoint: Any = None, **fields: Any) -> Scene:
    """Just started; one pod looks like this."""
    seen = a_running_job(
        workers=2, gpusPerWorker=2, resources={"limits": {"memory": "8Gi"}}, checkpoint=checkpoint
    )
    status = seen.status.model_copy(update={"conditions": ()})
    target = next(pod for pod in seen.pods if pod.role is role)
    fresh = {"phase": "Pending", "node": "", "container": ContainerSeen(), **fields}
    pods = tuple(pod.model_copy(update=fresh) if pod is target else pod for pod in seen.pods)
    return seen.but(status=status, pods=pods, report=None)


def test_an_unschedulable_pod_is_explained_by_the_scheduler_and_by_what_the_job_wants() -> None:
    seen = starting(scheduled_message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    running = condition(seen, ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "Unschedulable")
    assert "0/3 nodes are available: 3 Insufficient nvidia.com/gpu." in running.message
    assert " This job requests 2 x (8Gi memory, 2 nvidia.com/gpu). Add or free" in running.message
    assert condition(seen, ConditionType.STALLED).reason == "Unschedulable"
    assert decide(seen).status.state == "Pending"


def test_a_job_that_requests_nothing_still_shows_how_much() -> None:
    seen = starting(scheduled_message="0/1 nodes are available.")
    seen = seen.but(spec={"workers": 2, "command": ["true"]})
    seen = seen.but(status=seen.status.model_copy(update={"pod_spec_hash": ""}))
    assert "This job requests 2 pods." in condition(seen, ConditionType.RUNNING).message


@pytest.mark.parametrize(
    ("role", "fields", "expected"),
    [
        (Role.WORKER, {"container": "ImagePullBackOff"}, "ImagePullFailed: Correct spec.image; if"),
        (Role.WORKER, {"init": "ErrImagePull"}, "ImagePullFailed: Correct its image in spec.template; if"),
        (Role.COORDINATOR, {"container": "ErrImagePull"}, "ImagePullFailed: Set the operator's image"),
        (Role.WORKER, {"container": "CreateContainerConfigError"}, "ContainerConfigError: Correct what"),
        (
            Role.COORDINATOR,
            {"container": "CrashLoopBackOff"},
            "CrashLoopBackOff: kubectl logs -n lab --previous mnist-coordinator-1",
        ),
    ],
)
def test_a_pod_that_cannot_start_shows_why(role: Role, fields: dict[str, str], expected: str) -> None:
    waiting = {name: ContainerSeen(waiting_reason=reason) for name, reason in fields.items()}
    seen = starting(role, node="node-0", **waiting)
    running, (reason, expected_message) = condition(seen, ConditionType.RUNNING), expected.split(": ")
    assert (running.reason, expected_message in running.message) == (reason, True), running.message
    assert condition(seen, ConditionType.STALLED).holds


SIGNED = {"volume": {"nfs": {"server": "s", "path": "/"}}, "signing": {"secretName": "keys"}}
MISSING = 'MountVolume.SetUp failed for volume "ropeteam-signing" : secret "keys" not found'


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_pods_that_wait_are_shown_to_want_the_secret_that_the_job_names(reason: str) -> None:
    """A failed mount is reported in events, not in the pod's status."""
    seen = starting(node="node-0", container=ContainerSeen(waiting_reason=reason), checkpoint=SIGNED)
    running = condition(seen, ConditionType.RUNNING)
    assert running.reason == "PodsStarting"
    assert "Secret keys (spec.checkpoint.signing.secretName)" in running.message
    assert running.message.endswith(": kubectl get secret -n lab keys")
    assert not condition(seen, ConditionType.STALLED).holds


def test_what_else_is_known_comes_before_what_pods_may_wait_for() -> None:
    container = ContainerSeen(waiting_reason="ContainerCreating")
    seen = starting(node="node-0", container=container, checkpoint=SIGNED)
    silent = seen.but(report=None, report_error="no route")
    assert condition(silent, ConditionType.RUNNING).reason == "CoordinatorUnreachable"


def test_a_secret_that_the_kubelet_names_as_missing_stalls_the_job() -> None:
    container = ContainerSeen(waiting_reason="ContainerCreating", waiting_message=MISSING)
    seen = starting(node="node-0", container=container, checkpoint=SIGNED)
    stalled = condition(seen, ConditionType.STALLED)
    assert (stalled.holds, stalled.reason) == (True, "SecretNotFound")
    assert stalled.message == (
        f"{MISSING}. Create it (kubectl create secret generic keys -n lab "
        "--from-literal=checkpoint-keys=$(openssl rand -hex 32); with a new key older checkpoints need "
        "spec.resume.trust Any), or correct spec.checkpoint.signing.secretName."
    )


@pytest.mark.parametrize("checkpoint", [None, {"volume": SIGNED["volume"]}])
def test_pods_of_other_jobs_just_start(checkpoint: Any) -> None:
    container = ContainerSeen(waiting_reason="ContainerCreating")
    seen = starting(node="node-0", container=container, checkpoint=checkpoint)
    assert condition(seen, ConditionType.RUNNING).message == "Pods are being created and started."


def test_the_kubelets_own_message_comes_first() -> None:
    container = ContainerSeen(waiting_reason="ErrImagePull", waiting_message="pull access denied for train:2")
    running = condition(starting(node="node-0", container=container), ConditionType.RUNNING)
    assert "pull access denied for train:2" in running.message


def test_a_world_that_is_being_formed_is_explained_by_the_coordinator() -> None:
    seen = a_running_job().after(forming)
    seen = seen.but(status=seen.status.model_copy(update={"conditions": ()}))
    running = condition(seen, ConditionType.RUNNING)
    assert (running.reason, running.message) == ("WorldForming", "waits for slots 1 and 2")
    assert decide(seen).status.state == "Starting"


def test_a_coordinator_out_of_reach_does_not_stop_a_running_job() -> None:
    seen = a_running_job().after(unreachable)
    running = condition(seen, ConditionType.RUNNING)
    assert (running.status, running.reason) == ("True", "CoordinatorUnreachable")
    assert decide(seen).status.coordinator_unreachable_start_time == seen.now
    later = seen.after(written, seconds(60))
    assert decide(later).status == later.status, "said once"
    back = later.but(report=a_running_job().report, report_error="")
    assert condition(back, ConditionType.RUNNING).reason == "WorldRunning"
    assert decide(back).status.coordinator_unreachable_start_time is None


def test_a_coordinator_of_an_earlier_release_is_named_with_what_to_do() -> None:
    seen = a_running_job()
    pods = (
        pod.model_copy(update={"contract": 2}) if pod.role is Role.COORDINATOR else pod for pod in seen.pods
    )
    seen = seen.but(pods=tuple(pods))
    running = condition(seen, ConditionType.RUNNING)
    assert (running.status, running.reason) == ("True", "CoordinatorOutdated")
    assert "of an earlier release (contract 2, this one has 3)" in running.message
    assert running.message.endswith(": kubectl delete pod -n lab mnist-coordinator-1")
    assert decide(seen).status.state == "Running"
    later = seen.after(written, seconds(60))
    assert decide(later).status == later.status, "said once"


def test_a_coordinator_that_does_not_keep_up_is_reported() -> None:
    seen = a_running_job().after(reporting(lag_seconds=3))
    running = condition(seen, ConditionType.RUNNING)
    assert (running.status, running.reason) == ("True", "CoordinatorOverloaded")
    assert "it was late by up to 3 s, and recovery from a fault takes as much longer" in running.message
    assert "pod mnist-coordinator-1 " in running.message
    assert decide(seen).status.state == "Running"
    later = seen.after(written, seconds(60))
    assert decide(later).status == later.status, "said once"


def test_a_job_whose_ranks_are_done_is_not_shown_as_training() -> None:
    why = "all ranks are done; waiting for the manifest of step 196 to be written"
    running = condition(
        a_running_job().after(reporting(phase=WorldPhase.COMPLETING, why=why)), ConditionType.RUNNING
    )
    assert (running.status, running.reason, running.message) == ("True", "WorldCompleting", why)


def test_status_never_shows_that_training_continues_without_knowing_it() -> None:
    seen = a_running_job().after(unreachable)
    seen = seen.but(status=decide(seen).status)
    message = condition(seen, ConditionType.RUNNING).message
    assert "since 2026-11-20 12:00:03 UTC" in message
    assert "Whether training continues is unknown: workers continue for 120 s after" in message
    assert condition(seen.after(seconds(129)), ConditionType.RUNNING).holds
    late = seen.after(seconds(130))
    running, stalled = condition(late, ConditionType.RUNNING), condition(late, ConditionType.STALLED)
    assert (running.holds, running.reason) == (False, "CoordinatorUnreachable")
    assert decide(late).status.state == "Recovering"
    assert "The workers' logs show whether ranks still run" in stalled.message
    assert stalled.message.endswith("kubectl delete pod -n lab mnist-coordinator-1")
    assert decide(late).status.coordinator.term == 1, "it may be the operator that is cut off"
    still = late.but(status=decide(late).status).after(seconds(600))
    assert decide(still).status == still.status, "said once"
    back = still.but(report=a_running_job().report, report_error="")
    assert condition(back, ConditionType.RUNNING).reason == "WorldRunning"


def test_a_coordinator_that_does_not_answer_yet_is_no_fault() -> None:
    seen = a_running_job().after(unreachable)
    seen = seen.but(status=seen.status.model_copy(update={"conditions": ()}))
    assert condition(seen, ConditionType.RUNNING).reason == "CoordinatorUnreachable"
    assert not condition(seen, ConditionType.STALLED).holds


def test_a_coordinator_that_never_answers_stalls_the_job_with_the_way_to_it() -> None:
    seen = a_running_job().after(unreachable)
    seen = seen.but(status=seen.status.model_copy(update={"conditions": ()})).after(written)
    assert not condition(seen.after(seconds(59)), ConditionType.STALLED).holds
    late = seen.after(seconds(60))
    stalled = condition(late, ConditionType.STALLED)
    assert (stalled.holds, stalled.reason) == (True, "CoordinatorUnreachable")
    for text in ("Service mnist, port 29402: 10.0.0.1: no answer", "NetworkPolicy of namespace lab",
                  "kubectl logs -n lab mnist-coordinator-1"):  # fmt: skip
        assert text in stalled.message
    assert condition(late, ConditionType.RUNNING).message == stalled.message


def test_while_a_coordinator_collects_reports_the_world_is_as_it_was() -> None:
    decision = decide(a_running_job().after(reporting(phase=WorldPhase.WAITING)))
    assert decision.status.state == "Running"


def test_a_job_recovers_until_its_world_runs_again() -> None:
    seen = a_running_job().after(forming, reporting(incidents=(an_incident(Cause.HANG),)), written)
    recovering = condition(seen, ConditionType.RECOVERING)
    assert (seen.status.state, recovering.reason, recovering.holds) == ("Recovering", "Hang", True)
    assert "bad lr" in recovering.message
    back = seen.after(reporting(phase=WorldPhase.RUNNING), written)
    assert (back.status.state, condition(back, ConditionType.RECOVERING).holds) == ("Running", False)


def test_a_job_runs_from_its_first_step() -> None:
    seen = a_running_job().after(forming)
    seen = seen.but(status=seen.status.model_copy(update={"conditions": ()})).after(written)
    for stage in (Stage.SCRIPT_STARTING, Stage.FIRST_STEP):
        seen = seen.after(reporting(phase=WorldPhase.RUNNING, stage=stage, why="rank 1 is missing"), written)
        running = condition(seen, ConditionType.RUNNING)
        assert (running.holds, running.reason, running.message) == (False, stage.value, "rank 1 is missing")
        assert (seen.status.state, seen.status.reason) == ("Starting", stage.value)
        assert decide(seen).requeue_after_seconds == 1, "the first step comes soon"
    trains = seen.after(reporting(stage=Stage.TRAINING), written)
    assert (trains.status.state, condition(trains, ConditionType.RUNNING).reason) == (
        "Running",
        "WorldRunning",
    )


def test_a_job_recovers_until_the_first_step_of_its_next_world() -> None:
    seen = a_running_job().after(reporting(stage=Stage.RESTORING, incidents=(an_incident(),)), written)
    assert seen.status.state == "Recovering"
    assert condition(seen, ConditionType.RUNNING).reason == "Restoring"
    assert seen.after(reporting(stage=Stage.TRAINING), written).status.state == "Running"


def test_a_coordinator_that_falls_silent_before_the_first_step_changes_nothing() -> None:
    starting = reporting(stage=Stage.FIRST_STEP, why="works on its first step")
    seen = a_running_job().after(starting, written)
    before = condition(seen, ConditionType.RUNNING)
    for change in (unreachable, reporting(phase=WorldPhase.WAITING, why=before.message, stage=Stage.UNKNOWN)):
        after = condition(seen.after(change), ConditionType.RUNNING)
        assert (after.holds, after.reason, after.message) == (False, before.reason, before.message)


def test_a_first_world_that_fails_before_it_was_seen_running_recovers_too() -> None:
    seen = a_running_job().after(forming, reporting(incidents=(an_incident(),)))
    seen = seen.but(status=seen.status.model_copy(update={"conditions": ()}))
    assert decide(seen).status.state == "Recovering"


def test_the_time_of_a_condition_moves_only_when_it_flips() -> None:
    seen = a_running_job().after(forming, written)
    since = condition(seen, ConditionType.RUNNING).last_transition_time
    later = seen.after(seconds(30), reporting(why="waits for slot 2"))
    assert condition(later, ConditionType.RUNNING).message == "waits for slot 2"
    assert condition(later, ConditionType.RUNNING).last_transition_time == since


def test_of_two_facts_of_one_type_the_last_one_wins() -> None:
    """Else the time of an invalid job's condition would move in each round: a hot loop of writes."""
    seen = a_job(workers=0).after(written)
    later = seen.after(seconds(1))
    assert decide(later).status == seen.status


def test_fields_that_shape_pods_are_frozen_while_pods_run() -> None:
    seen = a_running_job().after(edited(image="train:2"), evicted(0), written)
    accepted = condition(seen, ConditionType.ACCEPTED)
    assert (accepted.holds, accepted.reason) == (False, "ImmutableField")
    assert "spec.suspend" in accepted.message
    made = [str(action) for action in decide(seen).actions if "create" in str(action)]
    assert made == [], "a gang of two images is none"
    put_back = seen.after(edited(image="train:1"), written)
    assert [str(action) for action in decide(put_back).actions if "create" in str(action)] == [
        "create Pod mnist-0-2"
    ]


@pytest.mark.parametrize(
    "free",
    [
        {"activeDeadlineSeconds": 9999},
        {"cleanPodPolicy": "All"},
        {"recovery": {"maxFailures": 99}},
        {"resume": {"trust": "Any"}},  # as a rollback to a definition that drops it
    ],
)
def test_other_fields_may_change_at_any_time(free: dict[str, Any]) -> None:
    assert condition(a_running_job().after(edited(**free)), ConditionType.ACCEPTED).holds


def test_events_are_sent_for_what_changed_and_only_then() -> None:
    started = decide(a_job())
    assert [(each.type, each.reason) for each in started.announcements] == [("Normal", "Started")]
    seen = a_running_job().after(evicted(2))
    announcements = decide(seen).announcements
    assert [each.reason for each in announcements] == ["WorkerReplaced", "Evicted"]
    assert {each.type for each in announcements} == {"Warning"}
    assert announcements[1].message.startswith(
        "pod-2-1: slot 2: Pod mnist-2-1 was evicted (Evicted). The node was low"
    )
    assert decide(seen.after(written)).announcements == ()


def test_events_name_the_rank_and_the_end() -> None:
    seen = a_running_job().after(reporting(incidents=(an_incident(slot=1),), failure=a_problem()))
    announcements = [(each.type, each.reason, each.message) for each in decide(seen).announcements]
    assert announcements[0] == ("Warning", "Error", "1.0.1: slot 1, rank 1: ValueError: bad lr (train.py:31)")
    assert announcements[1] == ("Warning", "CommandNotFound", "no such file: trian.py")


def test_a_new_coordinator_is_announced() -> None:
    seen = a_running_job()
    workers = tuple(pod for pod in seen.pods if pod.role is Role.WORKER)
    announcements = decide(seen.but(pods=workers)).announcements
    assert [each.reason for each in announcements] == ["CoordinatorReplaced"]


def test_an_event_always_has_a_message() -> None:
    silent = reporting(phase=WorldPhase.FORMING, why="")
    seen = a_running_job(workers=1).after(silent, written, reporting(phase=WorldPhase.RUNNING))
    assert [each.message for each in decide(seen).announcements] == ["All workers train together."]


def test_a_scene_is_an_observation_that_can_be_written_to_a_file() -> None:
    seen = a_running_job()
    assert decide(Observation.model_validate_json(seen.model_dump_json())) == decide(seen)


def test_what_the_coordinator_tries_again_and_again_stalls_the_job_also_while_a_world_runs() -> None:
    problem = Problem(FailReason.CHECKPOINT_NOT_WRITABLE, "3 pods in a row of slot 1 could not start a rank")
    seen = a_running_job().after(reporting(stalled=problem), written)
    stalled = condition(seen, ConditionType.STALLED)
    assert (stalled.holds, stalled.reason, stalled.message) == (True, problem.reason.value, problem.message)
    better = seen.after(reporting(stalled=None), written)
    assert not condition(better, ConditionType.STALLED).holds
