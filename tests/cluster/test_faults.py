"""Faults of a job on a real cluster: it continues, or reports why not."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psutil
import pytest
from lab.kube.site import SYSTEM, Object, Site
from lab.waiting import NotYet, wait_until
from tests.cluster.test_core import (
    UNCHANGED,
    last_cause,
    step,
    tiny,
    wait_for_new_checkpoint,
)

FOREVER = 100_000
PATCH_CRD = ("patch", "crd", "trainingjobs.ropeteam.dev", "--type=json", "-p")
LEASE_SECONDS = 15
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", "--force")
GREEDY = """
import ropeteam_trainer
job = ropeteam_trainer.init()
job.report(loss=0.0)
hoard = []
while True:
    hoard.append(bytearray(10**7))
"""

GREEDY_IN_SHM = """
import ropeteam_trainer
job = ropeteam_trainer.init()
job.report(loss=0.0)
with open("/dev/shm/hoard", "ab") as hoard:
    while True:
        hoard.write(bytes(10**7))
"""


def running(site: Site, name: str, **spec: Any) -> dict[str, str]:
    """A job that trains and has saved. The UIDs of its pods."""
    site.apply(tiny(site, name, steps=FOREVER, **spec))
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)
    return site.uids(name)


def coordinators_node(site: Site, name: str) -> int:
    return int(site.pods(name, "coordinator")[0]["spec"]["nodeName"].rpartition("-")[2])


def slot_apart_from_coordinator(site: Site, name: str) -> int:
    return next(slot for slot in (0, 1) if site.node_of(name, slot) != coordinators_node(site, name))


def plans(site: Site, coordinator: Object, since: datetime) -> list[str]:
    """Worlds that this coordinator has planned, by its log on its node's disk."""
    pod = coordinator["metadata"]
    folder = site.lab.folder / coordinator["spec"]["nodeName"] / "podlogs"
    logs = (folder / f"{pod['namespace']}_{pod['name']}_{pod['uid']}").glob("*/*.log")
    lines = [line for log in logs for line in log.read_text().splitlines()]
    return [
        line
        for line in lines
        if "decision phase=Running" in line and datetime.fromisoformat(line.split()[0]) > since
    ]


def goes_on(site: Site, name: str) -> None:
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)


def has_lost_no_step(site: Site, name: str) -> bool:
    """The job's last incident is over, and cost no step."""
    return bool((site.status(name).get("incidents") or [{}])[-1].get("stepsLost") == 0)


# ---- processes, containers, pods


@pytest.mark.nodes
def test_a_container_that_is_killed_is_a_pod_replaced(site: Site, name: str) -> None:
    uids = running(site, name)
    agent = site.agent(name, 1)
    os.kill(agent, signal.SIGKILL)
    wait_until("a replacement", lambda: f"{name}-1-2" in site.uids(name), 60)
    goes_on(site, name)
    assert site.uids(name)[f"{name}-0-1"] == uids[f"{name}-0-1"]


def test_an_evicted_pod_saves_and_its_replacement_goes_on_from_there(site: Site, name: str) -> None:
    running(site, name)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": f"{name}-1-1", "namespace": "default"},
    }
    site.raw("create", f"/api/v1/namespaces/default/pods/{name}-1-1/eviction", eviction)
    wait_until("a replacement", lambda: f"{name}-1-2" in site.uids(name), 60)
    wait_until("no step lost", partial(has_lost_no_step, site, name), 60)
    goes_on(site, name)


@pytest.mark.parametrize("where", ["rank", "shared memory"])
def test_what_is_out_of_memory_is_named(site: Site, name: str, where: str) -> None:
    """In shared memory it outlives the rank: whatever runs in the container is killed."""
    script = GREEDY if where == "rank" else GREEDY_IN_SHM
    job = site.job(name, ["python", "-c", script], resources={"limits": {"memory": "600Mi"}})
    job["spec"]["recovery"] = {"maxFailures": 0}
    site.apply(job)
    site.wait(name, "Failed")
    assert last_cause(site, name) == "OutOfMemory"


@pytest.mark.nodes
def test_a_full_disk_stops_no_training_and_is_reported(site: Site, name: str) -> None:
    job = tiny(site, name, steps=FOREVER, workers=1)
    job["spec"]["checkpoint"]["volume"] = {"emptyDir": {"medium": "Memory", "sizeLimit": "4Ki"}}
    site.apply(job)
    site.wait(name, "Running")

    def is_reported() -> bool:
        return "No space left on device" in site.lab.kubectl("logs", f"{name}-0-1", check=False)

    wait_until("words about the disk", is_reported, 60)
    before = site.progress(name)
    wait_until("training goes on", lambda: site.progress(name) > before + 100, 90)
    assert not site.status(name).get("incidents")
    assert step(site, name) == 0


# ---- nodes


@pytest.mark.nodes
def test_a_kubelet_that_stops_stops_no_training(site: Site, name: str) -> None:
    uids = running(site, name)
    node = site.lab.node(site.node_of(name, slot_apart_from_coordinator(site, name)))
    node.stop("kubelet")
    try:
        wait_for_new_checkpoint(site, name)
        wait_for_new_checkpoint(site, name)
        assert site.uids(name) == uids
    finally:
        node.start("kubelet")
        wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 90)


@pytest.mark.nodes
def test_an_isolated_node_neither_joins_nor_commits(site: Site, name: str) -> None:
    running(site, name)
    slot = slot_apart_from_coordinator(site, name)
    node = site.lab.node(site.node_of(name, slot))
    node.disconnect()
    try:
        wait_until("a replacement", lambda: f"{name}-{slot}-2" in site.uids(name), 90)
        wait_until("another node", lambda: site.is_elsewhere(name, slot, node.number), 60)
        goes_on(site, name)
    finally:
        node.heal()
    wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 90)
    wait_until("the old pod is gone", lambda: f"{name}-{slot}-1" not in site.uids(name), 180)
    incidents = len(site.status(name)["incidents"])
    wait_for_new_checkpoint(site, name)
    assert len(site.status(name)["incidents"]) == incidents, "the old pod disturbed nobody"


@pytest.mark.nodes
def test_an_isolated_coordinator_plans_nothing(site: Site, name: str) -> None:
    running(site, name)
    node = site.lab.node(coordinators_node(site, name))
    isolated, process = site.pods(name, "coordinator")[0], site.coordinator(name)
    node.disconnect()
    since = datetime.now(UTC)
    try:
        wait_until("another coordinator", lambda: site.status(name)["coordinator"]["term"] > 1, 180)
        wait_until("a world of its own", lambda: plans(site, site.pods(name, "coordinator")[-1], since), 120)
        wait_for_new_checkpoint(site, name)
        assert psutil.pid_exists(process), "the old one lives"
        assert plans(site, isolated, datetime.min.replace(tzinfo=UTC)) != []
        assert plans(site, isolated, since) == []
    finally:
        node.heal()
    wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 90)
    wait_until("the old one is gone", lambda: not psutil.pid_exists(process), 180)
    incidents = len(site.status(name).get("incidents") or [])
    wait_for_new_checkpoint(site, name)
    assert site.ended_worlds(name) == incidents, "the old one disturbed nobody"


@pytest.mark.nodes
def test_a_script_with_files_of_its_own_waits_until_the_old_pod_cannot_write(site: Site, name: str) -> None:
    fence = {"fenceSeconds": 40}
    site.apply(site.job(name, [*UNCHANGED, f"/shared/{name}"], recovery=fence))
    site.wait(name, "Running")
    wait_until("a save", lambda: site.has_just_saved(name), 60)
    slot = slot_apart_from_coordinator(site, name)
    node = site.lab.node(site.node_of(name, slot))
    node.power_off()
    try:
        message = f"proof that the previous pod of slot {slot} has ended"
        wait_until("what is waited for is told", lambda: message in str(site.status(name)["conditions"]), 90)
        assert site.node_of(name, slot) != node.number
        site.wait(name, "Running")
        replaced = datetime.fromisoformat(site.status(name)["slots"][slot]["replacedAt"])
        trains = datetime.fromisoformat(site.condition(name, "Running")["lastTransitionTime"])
        assert trains - replaced >= timedelta(seconds=fence["fenceSeconds"])
        wait_until("a save", lambda: site.has_just_saved(name), 60)
    finally:
        node.power_on(len(site.lab.nodes))
        wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 90)


@pytest.mark.nodes
def test_the_coordinators_node_is_lost(site: Site, name: str) -> None:
    running(site, name)
    node = site.lab.node(coordinators_node(site, name))
    node.power_off()
    try:
        wait_until("another coordinator", lambda: site.status(name)["coordinator"]["term"] > 1, 180)
        goes_on(site, name)
    finally:
        node.power_on(len(site.lab.nodes))
        wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 90)


@pytest.mark.nodes
def test_a_drained_node_loses_no_step(site: Site, name: str) -> None:
    running(site, name)
    slot = slot_apart_from_coordinator(site, name)
    node = site.lab.node(site.node_of(name, slot))
    try:
        site.lab.kubectl("drain", node.name, *DRAIN)
        wait_until("another node", lambda: site.is_elsewhere(name, slot, node.number), 60)
        wait_until("no step lost", partial(has_lost_no_step, site, name), 60)
        goes_on(site, name)
    finally:
        site.lab.kubectl("uncordon", node.name)


# ---- the control plane, ours and theirs


def test_a_deleted_coordinator_is_replaced_and_the_world_goes_on(site: Site, name: str) -> None:
    uids = running(site, name)
    pod = site.pods(name, "coordinator")[0]["metadata"]["name"]
    site.lab.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    wait_until("its next term", lambda: site.status(name)["coordinator"]["term"] == 2, 60)
    goes_on(site, name)
    assert site.uids(name) == uids


@pytest.mark.nodes
def test_a_coordinator_that_is_killed_adopts_the_world(site: Site, name: str) -> None:
    uids = running(site, name)
    ended_worlds = site.ended_worlds(name)
    os.kill(site.coordinator(name), signal.SIGKILL)
    wait_until("its container runs again", lambda: site.restarts(name, "coordinator") == 1, 60)
    goes_on(site, name)
    assert (site.uids(name), site.ended_worlds(name)) == (uids, ended_worlds)


@pytest.mark.nodes
def test_a_frozen_leader_that_thaws_writes_nothing(site: Site, name: str) -> None:
    running(site, name)
    leader = wait_until("a leader", site.leader)
    process = site.operator(leader)
    os.kill(process, signal.SIGSTOP)
    frozen_at = datetime.now(UTC)
    try:
        wait_until("another leader", lambda: site.leader() not in ("", leader), 60)
        site.kill_rank(name, 0)
        wait_until("the incident", lambda: last_cause(site, name) == "Signal", 60)
    finally:
        os.kill(process, signal.SIGCONT)
    goes_on(site, name)
    assert len(site.pods(name)) == 2
    assert site.writes_of(leader, frozen_at + timedelta(seconds=LEASE_SECONDS)) == []


@pytest.mark.nodes
def test_training_goes_on_without_an_api_server(site: Site, name: str) -> None:
    uids = running(site, name)
    before = step(site, name)
    site.lab.control.stop("kube-apiserver")
    try:
        site.kill_process(name, 1)
        time.sleep(60)
    finally:
        site.lab.control.start_apiserver()
        wait_until("the API server", site.lab.control.is_ready, 60)
    wait_until("steps were made meanwhile", lambda: step(site, name) > before + 200, 60)
    wait_until("the incident", lambda: last_cause(site, name) == "Signal", 60)
    goes_on(site, name)
    assert site.uids(name) == uids


@pytest.mark.nodes
def test_a_restart_of_etcd_is_nothing(site: Site, name: str) -> None:
    uids = running(site, name)
    site.lab.control.stop("etcd")
    site.lab.control.start_etcd()
    goes_on(site, name)
    assert site.uids(name) == uids


@pytest.mark.nodes
def test_without_dns_training_goes_on(site: Site, name: str) -> None:
    site.lab.control.stop("coredns")
    try:
        uids = running(site, name)
        site.kill_rank(name, 1)
        wait_until("the incident", lambda: last_cause(site, name) == "Signal", 60)
        goes_on(site, name)
        assert site.uids(name) == uids
    finally:
        site.lab.control.start_dns()


def test_a_definition_that_is_upgraded_disturbs_no_job(site: Site, name: str) -> None:
    uids = running(site, name)
    # A patch of one field: applying the whole of it would own it, and Helm could not upgrade it any more.
    field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later"
    value = {"type": "string", "description": "A field of the next version."}
    site.lab.kubectl(*PATCH_CRD, json.dumps([{"op": "add", "path": field, "value": value}]))
    try:
        patch = '{"spec": {"later": "yes"}}'
        command = ("patch", "trainingjob", name, "--type=merge", "-p", patch)
        wait_until("the new field is taken", lambda: "patched" in site.lab.kubectl(*command, check=False), 30)
        site.kill_rank(name, 0)
        wait_until("the incident", lambda: last_cause(site, name) == "Signal", 60)
        goes_on(site, name)
        assert site.uids(name) == uids
    finally:
        site.lab.kubectl(*PATCH_CRD, json.dumps([{"op": "remove", "path": field}]))


# ---- what cannot work says so


@pytest.mark.nodes
@pytest.mark.parametrize(
    ("change", "condition", "message"),
    [
        ({"image": "localhost/nobody:has-it"}, "Running", "nobody:has-it"),
        ({"image": "localhost/pause:lab"}, "Running", "python3"),
        ({"resources": {"limits": {"cpu": "1000"}}}, "Running", "Insufficient cpu"),
    ],
    ids=["no image", "no Python", "no room"],
)
def test_a_job_reports_what_it_waits_for(
    site: Site, name: str, change: dict[str, Any], condition: str, message: str
) -> None:
    site.apply(tiny(site, name, **change))

    def is_reported() -> bool:
        return message in str(site.status(name).get("conditions", ""))

    try:
        wait_until(f"{message!r} in a condition", is_reported, 60)
    except NotYet as error:
        raise NotYet(f"{error}\n{site.explain(name)}") from None
    assert site.condition(name, condition).get("status") != "True"


@pytest.mark.nodes
def test_a_namespace_that_is_deleted_takes_its_jobs_along(site: Site, name: str) -> None:
    site.lab.kubectl("create", "namespace", name)
    job = tiny(site, name, steps=FOREVER)
    job["metadata"]["namespace"] = name
    site.apply(job)
    wait_until("its pods", lambda: len(site.items("pods", name)) == 3, 60)
    site.lab.kubectl("delete", "namespace", name, "--timeout=120s")
    assert site.get("namespace", name) is None
    assert len(site.items("pods", SYSTEM)) >= 2


def test_a_name_that_is_taken_is_reported(site: Site, name: str) -> None:
    meta = {"name": name, "namespace": "default"}
    site.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": 80}]}})
    site.apply(tiny(site, name, steps=30, pause=0.0))

    def is_reported() -> bool:
        events = [each for each in site.items("events") if each["involvedObject"]["name"] == name]
        return any(each["reason"] == "ActionFailed" and name in each["message"] for each in events)

    wait_until("an event", is_reported, 60)
    assert site.condition(name, "Running").get("status") != "True"
    site.lab.kubectl("delete", "service", name)
    site.wait(name, "Complete")
