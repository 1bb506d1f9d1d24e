"""Pods, agents, the coordinator and the operator die: training continues, and status has the cause."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import ticking
from lab.local.steps import lines, wait_steps, worlds
from lab.waiting import wait_until


@pytest.mark.parametrize("grace", [None, 0], ids=["with grace", "without grace"])
def test_a_deleted_pod_is_replaced_and_free(cluster: Cluster, name: str, tmp_path: Path, grace: int | None):
    short = {"drainSeconds": 2, "fenceSeconds": 10}
    cluster.create(ticking(name, tmp_path, recovery=short))
    wait_steps(tmp_path)
    cluster.delete_pod(f"{name}-1-1", grace)
    wait_steps(tmp_path, world_number=2)
    names = {pod["metadata"]["name"] for pod in cluster.pods(name)}
    assert {f"{name}-0-1", f"{name}-1-2"} <= names
    settled = wait_until(
        "settled", lambda: [i for i in cluster.status(name).get("incidents", [])[-1:] if i.get("final")]
    )
    assert settled[0]["cause"] == "PodDeleted"
    assert cluster.status(name)["failures"]["charged"] == 0


def test_a_killed_agent_costs_its_pod_only(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path, recovery={"fenceSeconds": 10}))
    wait_steps(tmp_path)
    (victim,) = [pod for pod in cluster.pods(name) if pod["metadata"]["name"] == f"{name}-1-1"]
    rank = cluster.wait_rank(name, 1)
    os.kill(cluster.agent_pid(victim["metadata"]["uid"]), signal.SIGKILL)
    wait_until("its rank died with it", lambda: not Path(f"/proc/{rank}").exists())
    wait_steps(tmp_path, world_number=2)
    assert cluster.wait_rank(name, 1) != rank
    assert f"{name}-1-2" in {pod["metadata"]["name"] for pod in cluster.pods(name)}


def test_a_killed_coordinator_adopts_the_world(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    ranks = [cluster.wait_rank(name, rank) for rank in (0, 1)]
    before = cluster.coordinator_pid(name)
    os.kill(before, signal.SIGKILL)
    made = len(lines(tmp_path, 0))
    wait_until("steps without a coordinator", lambda: len(lines(tmp_path, 0)) > made + 20)

    def back() -> bool:
        (pod,) = cluster.pods(name, "coordinator")
        return bool(pod["status"]["containerStatuses"][0]["restartCount"] == 1 and _registered(cluster, name))

    wait_until("coordinator back with its agents", back)
    made = len(lines(tmp_path, 0))
    wait_until("steps after adoption", lambda: len(lines(tmp_path, 0)) > made + 50)
    assert [cluster.rank_pid(name, rank) for rank in (0, 1)] == ranks, "adopted, not replanned"
    assert len(worlds(tmp_path)) == 1
    assert cluster.status(name).get("incidents", []) == []


def test_a_coordinator_that_hangs_is_started_anew_by_its_kubelet(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    hung = cluster.coordinator_pid(name)
    os.kill(hung, signal.SIGSTOP)
    made = len(lines(tmp_path, 0))

    def anew() -> bool:
        (pod,) = cluster.pods(name, "coordinator")
        (container,) = pod["status"]["containerStatuses"]
        return bool(container["restartCount"] == 1 and _registered(cluster, name))

    wait_until("another container, which its agents found", anew, seconds=240)
    assert not Path(f"/proc/{hung}").exists()
    assert len(lines(tmp_path, 0)) > made, "its workers went on meanwhile"
    made = len(lines(tmp_path, 0))
    wait_until("steps after that", lambda: len(lines(tmp_path, 0)) > made + 20)
    assert len(worlds(tmp_path)) == 1, "adopted, not replanned"


def test_a_coordinator_that_does_not_keep_up_is_in_status_and_loses_no_worker(
    cluster: Cluster, name: str, tmp_path: Path
):
    cluster.create(ticking(name, tmp_path, recovery={"lostSeconds": 5, "startSeconds": 20}))
    wait_steps(tmp_path)
    cluster.wait_condition(name, "Running")
    slow = cluster.coordinator_pid(name)
    os.kill(slow, signal.SIGSTOP)
    time.sleep(8)
    os.kill(slow, signal.SIGCONT)
    wait_until(
        "its reason", lambda: cluster.condition(name, "Running").get("reason") == "CoordinatorOverloaded"
    )
    assert cluster.condition(name, "Running")["status"] == "True"
    assert cluster.status(name).get("incidents", []) == []
    assert len(worlds(tmp_path)) == 1


def _registered(cluster: Cluster, name: str) -> bool:
    status = cluster.status(name)
    return status["coordinator"].get("boot", 0) >= 1 and status["workers"]["ready"] == 2


def test_a_fault_while_the_coordinator_is_away_is_handled_when_it_is_back(
    cluster: Cluster, name: str, tmp_path: Path
):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    pods, victim = cluster.pod_uids(name), cluster.wait_rank(name, 0)
    os.kill(cluster.coordinator_pid(name), signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)
    wait_steps(tmp_path, world_number=2)
    assert cluster.pod_uids(name) == pods


def test_a_killed_operator_changes_nothing_but_comes_back(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    pods = cluster.pod_uids(name)
    os.kill(cluster.operator_pid(), signal.SIGKILL)
    os.kill(cluster.wait_rank(name, 0), signal.SIGKILL)
    wait_steps(tmp_path, world_number=2)
    wait_until("the incident in status", lambda: cluster.status(name).get("incidents"))
    assert cluster.pod_uids(name) == pods
