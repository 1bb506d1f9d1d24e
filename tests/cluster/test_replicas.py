"""Recovery in the step on a real cluster: whatever dies under sync Exact, no step is lost, and losses are
those of one process that nothing has disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.kube.site import ROOT, Object, Site
from lab.waiting import wait_until
from tests.cluster.test_core import last_cause
from tests.cluster.test_faults import DRAIN, FOREVER, LEASE_SECONDS, has_lost_no_step

SCRIPT = "train_exact.py"
WORKERS, PAUSE = 3, 0.2
STRATEGY: dict[str, Any] = {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}


def exact(site: Site, name: str, workers: int = WORKERS, **strategy: Any) -> Object:
    command = ["python", f"/shared/scripts/{SCRIPT}", f"/shared/{name}", str(FOREVER), str(PAUSE)]
    spec = {
        "checkpoint": site.checkpoints(name),
        "recovery": {"maxFailures": 20},
        "strategy": {**STRATEGY, **strategy},
    }
    return site.job(name, command, workers=workers, **spec)


class Job:
    """A job whose ranks log their steps."""

    def __init__(self, site: Site, made: Object) -> None:
        self.site, self.name, self.workers = site, made["metadata"]["name"], made["spec"]["workers"]
        site.apply(made)

    @classmethod
    def running(cls, site: Site, name: str, workers: int = WORKERS, **strategy: Any) -> Job:
        """An exact() one, of which all ranks make steps."""
        job = cls(site, exact(site, name, workers, **strategy))
        job.make_steps()
        return job

    def events(self, rank: int, kind: str) -> list[dict[str, Any]]:
        path = self.site.shared / self.name / f"rank-{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event["kind"] == kind]

    def starts(self) -> list[int]:
        """How often each rank was started."""
        return [len(self.events(rank, "start")) for rank in range(self.workers)]

    def last_step(self, rank: int) -> int:
        return max((int(event["step"]) for event in self.events(rank, "step")), default=0)

    def make_steps(self, *ranks: int) -> None:
        """Wait until these ranks have made some steps more than any has now. None: all."""
        among = ranks or range(self.workers)
        newest = max(map(self.last_step, among)) + 3
        wait_until(f"step {newest}", lambda: all(self.last_step(rank) >= newest for rank in among), 120)

    def await_new(self, *ranks: int, since: list[int]) -> None:
        """Wait until these ranks, and no others, were started once more, and all ranks make steps."""
        expected = [count + (rank in ranks) for rank, count in enumerate(since)]
        wait_until(f"new ranks {ranks}", lambda: self.starts() == expected, 120)
        self.make_steps()
        wait_until("no step lost", partial(has_lost_no_step, self.site, self.name), 60)
        assert self.starts() == expected

    def losses(self) -> dict[int, set[str]]:
        """All losses of each step."""
        found: dict[int, set[str]] = {}
        for rank in range(self.workers):
            for event in self.events(rank, "step"):
                found.setdefault(int(event["step"]), set()).add(event["loss"])
        return found

    def evict(self, pod: str) -> None:
        meta = {"name": pod, "namespace": "default"}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        self.site.raw("create", f"/api/v1/namespaces/default/pods/{pod}/eviction", eviction)


def check_losses(job: Job, folder: Path) -> None:
    """All are those of one process that nothing has disturbed."""
    found = job.losses()
    script = ROOT / "lab" / "scripts" / SCRIPT
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder), str(max(found)), "0"]
    subprocess.run(command, check=True, env=environment)
    lines = map(json.loads, (folder / "rank-0.jsonl").read_text().splitlines())
    undisturbed = {line["step"]: {line["loss"]} for line in lines if line["kind"] == "step"}
    assert found == undisturbed


def test_ranks_and_pods_that_die_in_turn_cost_no_step(site: Site, name: str, tmp_path: Path) -> None:
    """A rank is killed, a pod deleted by force, one evicted, and that of rank 0 evicted."""
    job = Job.running(site, name)
    uids, starts = site.uids(name), job.starts()
    site.kill_rank(name, 1)
    job.await_new(1, since=starts)
    assert last_cause(site, name) == "Signal"
    assert site.uids(name) == uids, "pods stay"

    starts = job.starts()
    site.lab.kubectl("delete", "pod", f"{name}-2-1", "--wait=false", "--grace-period=0", "--force")
    job.await_new(2, since=starts)

    starts, job_pods = job.starts(), site.uids(name)
    job.evict(f"{name}-1-1")
    job.await_new(1, since=starts)
    assert {*site.uids(name).items()} >= {(pod, uid) for pod, uid in job_pods.items() if "-1-1" not in pod}

    job.evict(f"{name}-0-1")
    wait_until("a replacement", lambda: f"{name}-0-2" in site.uids(name), 60)
    job.make_steps()
    wait_until("no step lost", partial(has_lost_no_step, site, name), 60)
    check_losses(job, tmp_path)


@pytest.mark.nodes
@pytest.mark.parametrize("fault", ["off", "cut off"])
def test_others_train_on_without_a_node(site: Site, name: str, fault: str, tmp_path: Path) -> None:
    """A cable that is cut ends no connection: the coordinator alone knows. What lives behind it does no harm
    when it is back."""
    job = Job.running(site, name)
    coordinator = site.pods(name, "coordinator")[0]["spec"]["nodeName"]
    slot = next(slot for slot in (2, 1) if f"node-{site.node_of(name, slot)}" != coordinator)
    node = site.lab.node(site.node_of(name, slot))
    others = [rank for rank in range(WORKERS) if site.node_of(name, rank) != node.number]
    starts = job.starts()
    node.power_off() if fault == "off" else node.disconnect()
    try:
        left_at = job.last_step(slot)
        job.make_steps(*others)
        assert job.last_step(slot) == left_at
        lost = [rank for rank in range(WORKERS) if rank not in others]
        job.await_new(*lost, since=starts)
    finally:
        node.power_on(len(site.lab.nodes)) if fault == "off" else node.heal()
        wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 90)
    wait_until("the old pod is gone", lambda: f"{name}-{slot}-1" not in site.uids(name), 180)
    job.make_steps()
    assert len(site.status(name)["incidents"]) == 1
    check_losses(job, tmp_path)


@pytest.mark.nodes
def test_a_drained_node_costs_no_step(site: Site, name: str, tmp_path: Path) -> None:
    job = Job.running(site, name)
    node = site.lab.node(site.node_of(name, 1))
    try:
        site.lab.kubectl("drain", node.name, *DRAIN)
        wait_until("another node", lambda: site.is_elsewhere(name, 1, node.number), 60)
        job.make_steps()
        wait_until("no step lost", partial(has_lost_no_step, site, name), 60)
    finally:
        site.lab.kubectl("uncordon", node.name)
    check_losses(job, tmp_path)


@pytest.mark.nodes
def test_a_rank_is_replaced_without_operator_and_api_server(site: Site, name: str, tmp_path: Path) -> None:
    job = Job.running(site, name)
    uids, starts = site.uids(name), job.starts()
    site.lab.control.stop("kube-apiserver")
    try:
        time.sleep(LEASE_SECONDS)  # no operator leads any more
        site.kill_process(name, 1)
        wait_until("a new rank", lambda: job.starts()[1] == starts[1] + 1, 60)
        job.make_steps()
    finally:
        site.lab.control.start_apiserver()
        wait_until("the API server", site.lab.control.is_ready, 60)
    wait_until("the incident", lambda: last_cause(site, name) == "Signal", 60)
    wait_until("no step lost", partial(has_lost_no_step, site, name), 60)
    assert site.uids(name) == uids
    check_losses(job, tmp_path)


def begun_without_slot_1_or_2(site: Site, made: Object) -> tuple[Job, int]:
    """A job of three pods of which two find nodes, that of slot 0 among them, and the slot of the other one.
    Which of them do, the scheduler decides."""
    name = made["metadata"]["name"]
    for _ in range(8):
        job = Job(site, made)

        def missing() -> list[int]:
            return [slot for slot in range(WORKERS) if site.node_of(name, slot) == 0]

        wait_until("three pods", lambda: len(site.pods(name)) == WORKERS, 60)
        wait_until("two pods with nodes", lambda: len(missing()) == 1, 60)
        if missing() != [0]:
            return job, missing()[0]
        site.delete(name)
    raise AssertionError("slot 0 never found a node")


@pytest.mark.nodes
def test_a_job_begins_with_the_nodes_that_are_there_and_another_joins(
    site: Site, name: str, tmp_path: Path
) -> None:
    """Each of its three pods needs a node of its own, and there are two."""
    made = exact(site, name)
    made["spec"]["elastic"] = {"minWorkers": 2, "waitSeconds": 3}
    labels = {"ropeteam.dev/job": name, "ropeteam.dev/role": "worker"}
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    made["spec"]["template"]["spec"]["affinity"] = affinity
    away = [node.name for node in site.lab.nodes[2:]]
    try:
        site.lab.kubectl("cordon", *away)
        job, missing = begun_without_slot_1_or_2(site, made)
        job.make_steps(0, 3 - missing)
        wait_until("the notice", lambda: site.condition(name, "Degraded").get("status") == "True", 60)
        assert site.condition(name, "Degraded")["reason"] == "WorkersAbsent"
        assert job.starts() == [int(slot != missing) for slot in range(WORKERS)]
    finally:
        site.lab.kubectl("uncordon", *away)
    job.make_steps()
    wait_until("no notice", lambda: site.condition(name, "Degraded").get("status") == "False", 60)
    assert job.starts() == [1, 1, 1]
    assert not site.status(name).get("incidents")
    check_losses(job, tmp_path)


def test_a_replica_of_two_pods_is_lost_as_a_whole(site: Site, name: str) -> None:
    """Losses are those of a replica that trains alone."""
    undisturbed = Job.running(site, f"{name}-alone", 2, parallelism={"shard": 2})
    wait_until("its steps", lambda: undisturbed.last_step(0) >= 60, 120)
    expected = undisturbed.losses()
    site.delete(undisturbed.name)

    job = Job.running(site, name, 4, parallelism={"shard": 2})
    uids, starts = site.uids(name), job.starts()
    site.kill_rank(name, 1)
    job.await_new(0, 1, since=starts)
    assert site.uids(name) == uids, "pods stay"
    starts = job.starts()
    site.lab.kubectl("delete", "pod", f"{name}-3-1", "--wait=false", "--grace-period=0", "--force")
    job.await_new(2, 3, since=starts)
    found = {step: losses for step, losses in job.losses().items() if step in expected}
    assert max(found) > 20
    assert found == {step: expected[step] for step in found}
