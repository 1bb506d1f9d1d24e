"""Requests of a job that no controller serves are named: queues, schedulers, gates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.builders import NOON, Change, Scene, a_job, a_running_job, seconds, written
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.core.deadlines import requeue_after
from ropeteam.core.decide import decide
from ropeteam.core.seen.observation import ContainerSeen, Role
from ropeteam.core.seen.view import build_view

QUEUE = "kueue.x-k8s.io/queue-name"


def labelled(**labels: str) -> Change:
    """Labels of the TrainingJob."""
    return lambda seen: seen.but(metadata=seen.metadata.model_copy(update={"labels": labels}))


def pods(**fields: Any) -> Change:
    """All worker pods look like this."""

    def change(seen: Scene) -> Scene:
        changed = (pod.model_copy(update=fields) if pod.role is Role.WORKER else pod for pod in seen.pods)
        return seen.but(pods=tuple(changed))

    return change


def waiting(**fields: Any) -> Change:
    return pods(node="", phase="Pending", container=ContainerSeen(), created=NOON, **fields)


def starting(*changes: Change, **spec: Any) -> Scene:
    """The pods were created, and no world was ever formed."""
    cluster = FakeCluster(a_job(2, **spec))
    cluster.play(until=lambda seen: sum(pod.role is Role.WORKER for pod in seen.pods) == 2)
    seen = cluster.observe().but(now=NOON)
    return seen.after(*changes)


def condition(seen: Scene, kind: ConditionType) -> Condition:
    found = decide(seen).status.condition(kind)
    assert found is not None
    return found


def degraded_of(seen: Scene) -> tuple[str, str]:
    """Of the condition Degraded: reason and message, if it holds."""
    found = decide(seen).status.condition(ConditionType.DEGRADED)
    return (found.reason, found.message) if found and found.holds else ("", "")


def template(**parts: Any) -> dict[str, Any]:
    return {"template": parts}


def test_a_queue_that_the_job_names_is_shown_to_have_no_effect_before_any_pod_is_made() -> None:
    seen = a_job().after(labelled(**{QUEUE: "team-a"}))
    reason, message = degraded_of(seen)
    assert reason == "QueueNameIgnored"
    assert message.startswith(f"Label {QUEUE} of this TrainingJob (queue team-a) has no effect")
    assert "Remove the label; or put it into spec.template.metadata.labels" in message
    assert degraded_of(a_job()) == ("", "")


def test_a_suspended_job_shows_how_to_resume_and_that_no_queue_does_it() -> None:
    seen = a_job(suspend=True)
    command = """kubectl patch tj mnist -n lab --type merge -p '{"spec":{"suspend":false}}'"""
    assert condition(seen, ConditionType.SUSPENDED).message.endswith(f"to resume: {command}")
    queued = condition(seen.after(labelled(**{QUEUE: "team-a"})), ConditionType.SUSPENDED).message
    assert command in queued
    assert "Queue team-a" in queued
    assert "does not resume it" in queued


def test_a_queue_for_pods_is_served_where_kueue_has_taken_them() -> None:
    seen = a_running_job(**template(metadata={"labels": {QUEUE: "team-a"}}))
    reason, message = degraded_of(seen)
    assert reason == "QueueNameIgnored"
    assert "Kueue's label kueue.x-k8s.io/managed" in message
    assert "integration `pod` for namespace lab" in message
    assert degraded_of(seen.after(pods(queued=True))) == ("", "")
    assert degraded_of(seen.but(pods=())) == ("", ""), "without pods nothing is known"


@pytest.mark.parametrize(
    ("key", "reader"),
    [
        ("scheduling.k8s.io/group-name", "Volcano"),
        ("volcano.sh/queue-name", "Volcano"),
        ("pod-group.scheduling.sigs.k8s.io", "the coscheduling plugin"),
        ("scheduling.x-k8s.io/pod-group", "the coscheduling plugin"),
        ("kai.scheduler/queue", "KAI Scheduler"),
        ("yunikorn.apache.org/task-groups", "YuniKorn"),
    ],
)
@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_labels_for_another_scheduler_are_named_where_pods_are_for_the_default_one(
    part: str, key: str, reader: str
) -> None:
    seen = a_running_job(**template(metadata={part: {key: "a"}}))
    reason, message = degraded_of(seen)
    assert reason == "GangSchedulingIgnored"
    assert f"without effect: {key} (read by {reader})" in message
    assert "spec.template.spec.schedulerName" in message
    assert degraded_of(seen.after(pods(scheduler="default-scheduler")))[0] == reason
    assert degraded_of(seen.after(pods(scheduler="volcano"))) == ("", "")
    assert degraded_of(a_running_job().after(labelled(**{key: "a"})))[1] == message


def test_other_labels_request_nothing() -> None:
    texts = {"labels": {"team": "a", "kueue.x-k8s.io/priority-class": "p"}, "annotations": ["no map"]}
    assert degraded_of(a_running_job(**template(metadata=texts))) == ("", "")


@pytest.mark.parametrize("field", ["schedulingGroup", "workloadRef"])
def test_a_group_that_the_api_server_does_not_know_is_named(field: str) -> None:
    seen = a_running_job(**template(spec={field: {"name": "g"}}))
    reason, message = degraded_of(seen)
    assert reason == "GangSchedulingIgnored"
    assert message.startswith(f"spec.template.spec.{field} has no effect")
    assert degraded_of(seen.after(pods(grouped=True))) == ("", "")


def test_several_are_all_named() -> None:
    seen = a_running_job(**template(metadata={"labels": {"volcano.sh/queue-name": "a"}}))
    reason, message = degraded_of(seen.after(labelled(**{QUEUE: "team-a"})))
    assert reason == "QueueNameIgnored"
    assert QUEUE in message
    assert "volcano.sh/queue-name (read by Volcano)" in message


BLOCKED = "Scheduling is blocked due to non-empty scheduling gates"


@pytest.mark.parametrize(
    ("gates", "kueue", "others"),
    [
        (("kueue.x-k8s.io/admission",), True, ""),
        (("example.com/quota",), False, "example.com/quota"),
        (("example.com/quota", "kueue.x-k8s.io/admission"), True, "example.com/quota"),
    ],
)
def test_gates_are_named_with_who_removes_them(gates: tuple[str, ...], kueue: bool, others: str) -> None:
    seen = starting(waiting(gates=gates, scheduled="False", scheduled_message=BLOCKED))
    running = condition(seen, ConditionType.RUNNING)
    assert running.reason == "SchedulingGated"
    assert running.message.startswith(f"2 of 2 workers have scheduling gates ({', '.join(gates)})")
    assert ("kubectl get workloads -n lab" in running.message) is kueue
    assert (f"the owner of {others} (" in running.message) is bool(others)
    assert condition(seen, ConditionType.STALLED).reason == "SchedulingGated"
    free = seen.after(pods(gates=(), scheduled_message="0/3 nodes are available."))
    assert condition(free, ConditionType.RUNNING).reason == "Unschedulable"


def test_a_scheduler_that_never_speaks_is_named_after_thirty_seconds() -> None:
    seen = starting(waiting(scheduler="volcano")).after(written)
    assert decide(seen).requeue_after_seconds is not None
    assert condition(seen.after(seconds(29)), ConditionType.RUNNING).reason != "SchedulerNotResponding"
    late = seen.after(seconds(30))
    stalled = condition(late, ConditionType.STALLED)
    assert (stalled.holds, stalled.reason) == (True, "SchedulerNotResponding")
    assert "no scheduler named volcano seems to run" in stalled.message
    assert "SchedulerNotResponding" in [each.reason for each in decide(late).announcements]


def test_the_operator_looks_again_when_a_scheduler_has_been_silent_for_so_long() -> None:
    seen = starting(waiting(scheduler="volcano"))
    assert requeue_after(build_view(seen), seen.status) == 30.0
    default = seen.after(pods(scheduler="default-scheduler"))
    assert requeue_after(build_view(default), seen.status) is None


@pytest.mark.parametrize(
    "spoken",
    [
        {"scheduler": "default-scheduler"},
        {"scheduler": ""},
        {"scheduled": "False", "scheduled_message": "0/3 nodes are available."},
        {"node": "node-1"},
        {"created": None},
        {"created": NOON + timedelta(seconds=1)},
    ],
)
def test_a_scheduler_that_has_spoken_or_may_just_start_is_not_blamed(spoken: dict[str, Any]) -> None:
    seen = starting(waiting(scheduler="volcano"), pods(**spoken)).after(seconds(30))
    assert condition(seen, ConditionType.RUNNING).reason != "SchedulerNotResponding"
