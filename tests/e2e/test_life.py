"""A job's life: suspend, resume, restart, deadline, TTL, deletion; and nothing left behind."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from lab.local.cluster import JOBS, PODS, Cluster, Refused
from lab.local.jobs import ticking
from lab.local.steps import wait_steps
from lab.waiting import wait_until


def test_a_job_completes_and_its_running_pods_go(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path, "10"))
    done = cluster.wait_condition(name, "Complete")
    assert cluster.condition(name, "Finished")["reason"] == "Succeeded", done
    wait_until("coordinator gone", lambda: not cluster.pods(name, "coordinator"))
    assert {pod["status"]["phase"] for pod in cluster.pods(name)} == {"Succeeded"}


def test_suspend_deletes_the_pods_and_resume_brings_new_ones(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path, recovery={"drainSeconds": 2}))
    wait_steps(tmp_path)
    before = cluster.pod_uids(name)
    cluster.patch(name, {"suspend": True})
    cluster.wait_condition(name, "Suspended")
    wait_until("pods gone", lambda: not cluster.pods(name, None))
    cluster.patch(name, {"suspend": False})
    wait_steps(tmp_path, world_number=2)
    assert not before & cluster.pod_uids(name)
    assert cluster.status(name).get("failures", {}).get("charged", 0) == 0


def test_restarted_at_restarts_all_pods_once(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path, recovery={"drainSeconds": 2}))
    wait_steps(tmp_path)
    before = cluster.pod_uids(name)
    cluster.patch(name, {"restartedAt": datetime.now(UTC).isoformat().replace("+00:00", "Z")})
    wait_steps(tmp_path, world_number=2)
    after = cluster.pod_uids(name)
    assert not before & after
    wait_steps(tmp_path, world_number=2, count=100)
    assert cluster.pod_uids(name) == after, "once"


def test_the_deadline_fails_the_job(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path, activeDeadlineSeconds=3600))
    wait_steps(tmp_path)
    cluster.patch(name, {"activeDeadlineSeconds": 3})
    failed = cluster.wait_condition(name, "Failed")
    assert failed["reason"] == "DeadlineExceeded"
    wait_until("the coordinator gone", lambda: not cluster.pods(name, "coordinator"))
    assert {pod["status"]["phase"] for pod in cluster.pods(name)} == {"Failed"}, "they ended by themselves"
    assert cluster.leftovers(cluster.uid(name)) == []


def test_ttl_deletes_the_finished_job_and_all_that_is_its(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path, "5", ttlSecondsAfterFinished=1))
    wait_until("job gone", lambda: cluster.job(name) is None)
    nothing_left(cluster, name)


def test_a_job_deleted_in_mid_run_leaves_nothing_behind(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    uid, pods = cluster.uid(name), cluster.pod_uids(name)
    assert cluster.leftovers(uid), "the probe sees the living"
    memory = [page for pod in pods for page in (cluster.home / "t" / pod[:8]).rglob("page-*")]
    assert len(memory) == 2, "what a rank shares with its agent"
    cluster.delete(name)
    nothing_left(cluster, name)
    wait_until("processes gone", lambda: not cluster.leftovers(uid))
    living = {pod["metadata"]["uid"] for pod in cluster.call("GET", PODS)["items"]}
    assert {path.name for path in (cluster.home / "pods").iterdir()} <= living, (
        "folders, logs and secrets went"
    )
    assert {path.name for path in (cluster.home / "t").iterdir()} <= {uid[:8] for uid in living}, (
        "sockets too"
    )
    assert not [page for page in memory if page.exists()], "shared memory too"


def nothing_left(cluster: Cluster, name: str) -> None:
    def left() -> list[str]:
        kinds = ("pods", "services", "secrets")
        paths = [f"/api/v1/namespaces/default/{kind}?labelSelector=ropeteam.dev/job={name}" for kind in kinds]
        return [item["metadata"]["name"] for path in paths for item in cluster.call("GET", path)["items"]]

    wait_until(f"pods, services and secrets of {name} gone", lambda: not left())


def test_an_impossible_job_is_refused_with_the_field(cluster: Cluster, name: str, tmp_path: Path):
    with pytest.raises(Refused) as refused:
        cluster.call("POST", JOBS, ticking(name, tmp_path, workers=0))
    assert refused.value.code == 422
    assert "spec.workers" in refused.value.text
