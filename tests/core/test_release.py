"""A gang that finds room for a part of itself does not hold it for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.builders import NOON, Scene, a_job, a_running_job, force_deleted
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.conditions import ConditionType
from ropeteam.core.objects.actions import DeletePod
from ropeteam.core.questions.release import released_at
from ropeteam.core.seen.observation import ContainerSeen, Role
from ropeteam.core.seen.view import build_view

UNSCHEDULABLE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def half_placed(cluster: FakeCluster) -> None:
    """Worker 1 finds no room; all other pods run."""
    pods = []
    for pod in cluster.scene.pods:
        waits = pod.role is Role.WORKER and pod.slot == 1 and not pod.deleting
        fields = {
            "node": "",
            "phase": "Pending",
            "scheduled_message": UNSCHEDULABLE,
            "container": ContainerSeen(),
        }
        pods.append(pod.model_copy(update=fields) if waits else pod)
    cluster.scene = cluster.scene.but(pods=tuple(pods))


def a_half_placed_job(**spec: Any) -> FakeCluster:
    cluster = FakeCluster(a_job(workers=2, recovery={"startSeconds": 100}, **spec))
    for _ in range(6):
        cluster.round()
        cluster.kubelets()
        half_placed(cluster)
    assert {pod.role for pod in cluster.observe().pods} == {Role.WORKER, Role.COORDINATOR}
    return cluster


def test_it_waits_for_the_rest_until_start_seconds() -> None:
    cluster = a_half_placed_job()
    decision = cluster.round()
    assert decision.status.backoff_end_time is None
    assert decision.status.condition(ConditionType.STALLED).reason == "Unschedulable"
    cluster.scene = cluster.scene.but(now=NOON + timedelta(seconds=99))
    assert cluster.round().status.backoff_end_time is None


def test_then_all_its_pods_go_uncharged_and_a_new_attempt_requests_them_again() -> None:
    cluster = a_half_placed_job()
    cluster.pass_time(151)
    released = cluster.round().status
    assert released.backoff_end_time is not None
    assert (released.state, released.failures.charged, released.incidents) == ("Pending", 0, ())
    running = released.condition(ConditionType.RUNNING)
    assert running is not None
    assert running.reason == "GangPartlySchedulable"
    assert UNSCHEDULABLE in running.message
    gone = [action for action in cluster.round().actions if isinstance(action, DeletePod)]
    assert len(gone) == 3
    assert cluster.round().status.attempt == 1, "the pods still end"
    cluster.scene = cluster.scene.but(pods=())
    assert cluster.round().status.attempt == 1, "it rests"
    cluster.pass_time(60)
    opened = cluster.round().status
    assert (opened.attempt, opened.backoff_end_time) == (2, None)
    assert all(slot.previous_pod_fenced for slot in opened.slots), "nobody has to be waited for"
    cluster.play(until=lambda seen: seen.status.state == "Running")


@pytest.mark.parametrize(("least", "shard", "is_released"), [(1, 1, False), (2, 1, True), (1, 2, True)])
def test_a_job_that_can_begin_with_those_that_have_a_place_keeps_them(
    least: int, shard: int, is_released: bool
) -> None:
    """With shard 2 they are a half of the only replica."""
    cluster = a_half_placed_job(
        elastic={"minWorkers": least, "waitSeconds": 1000},
        strategy={"sync": {"type": "Exact"}, "parallelism": {"shard": shard}},
        checkpoint={"volume": {"nfs": {"server": "nas", "path": "/"}}},
    )
    cluster.pass_time(151)
    assert (cluster.round().status.backoff_end_time is not None) == is_released


def test_a_pod_of_before_that_may_still_write_is_not_forgotten() -> None:
    cluster = a_half_placed_job()
    status = cluster.scene.status
    now = cluster.scene.now + timedelta(seconds=140)
    unfenced = status.slots[0].model_copy(update={"previous_pod_fenced": False, "replacement_time": now})
    slots = (unfenced, *status.slots[1:])
    cluster.scene = cluster.scene.but(status=status.model_copy(update={"slots": slots}))
    cluster.pass_time(151)
    assert cluster.round().status.backoff_end_time is not None
    cluster.scene = cluster.scene.but(pods=())
    cluster.pass_time(100)
    opened = cluster.round().status
    assert opened.attempt == 2
    assert not opened.slots[0].previous_pod_fenced


def test_a_job_without_any_place_just_waits() -> None:
    cluster = a_half_placed_job()
    pods = (
        pod.model_copy(update={"node": "", "scheduled_message": UNSCHEDULABLE, "container": ContainerSeen()})
        for pod in cluster.scene.pods
    )
    cluster.scene = cluster.scene.but(pods=tuple(pods))
    cluster.pass_time(1000)
    assert cluster.round().status.backoff_end_time is None


def test_a_job_that_has_run_keeps_its_places_while_a_replacement_waits() -> None:
    seen: Scene = a_running_job(workers=2, recovery={"startSeconds": 100}).after(force_deleted(1))
    cluster = FakeCluster(seen)
    for _ in range(4):
        cluster.round()
        cluster.kubelets()
        half_placed(cluster)
    cluster.pass_time(1000)
    assert cluster.round().status.backoff_end_time is None


def test_two_jobs_do_not_give_back_at_the_same_time() -> None:
    seen = a_half_placed_job().observe()
    other = seen.but(metadata=seen.metadata.model_copy(update={"uid": "another"}))
    one, two = (released_at(build_view(each), each.status) for each in (seen, other))
    assert one != two
    for moment in (one, two):
        assert timedelta(seconds=100) <= moment - NOON < timedelta(seconds=152)
