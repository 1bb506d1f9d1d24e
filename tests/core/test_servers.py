"""Parameter servers: pods beside the workers, in the slots after theirs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import a_job, a_running_job
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rules import validate as rules
from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import DeletePod
from ropeteam.core.objects.workerpod import worker_pod
from ropeteam.core.seen.observation import Role
from ropeteam.core.seen.view import build_view
from ropeteam_trainer.contract import codec, config

GPU = {"limits": {"cpu": "4", "nvidia.com/gpu": "2", "example.com/npu": 1}, "requests": {"memory": "1Gi"}}
SMALL = {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}, "claims": [{"name": "gpu"}]}


def served(servers: int = 2, **more: Any) -> dict[str, Any]:
    return {"sync": {"type": "ParameterServer", "parameterServer": {"servers": servers, **more}}}


def pods(workers: int = 3, strategy: Any = None, **spec: Any) -> dict[int, dict[str, Any]]:
    """Pods of a new job, by slot."""
    cluster = FakeCluster(a_job(workers=workers, strategy=strategy or served(), **spec))
    for _ in range(6):
        cluster.round()
        cluster.kubelets()
    seen = cluster.observe()
    made = (worker_pod(seen, TrainingJobSpec.model_validate(seen.spec), slot) for slot in seen.status.slots)
    assert len(cluster.made) == len(seen.status.slots) + 1, "and a coordinator"
    return {int(each["metadata"]["labels"]["ropeteam.dev/slot"]): each for each in made}


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in pod["spec"]["containers"] if each["name"] == "trainer")


def settings(pod: dict[str, Any]) -> config.WorkerConfig:
    value = next(each["value"] for each in trainer(pod)["env"] if each["name"] == config.CONFIG)
    return codec.decode(config.WorkerConfig, value)


def test_servers_have_the_slots_after_those_of_the_workers() -> None:
    made = pods()
    roles = [made[slot]["metadata"]["labels"]["ropeteam.dev/role"] for slot in sorted(made)]
    assert roles == ["worker"] * 3 + ["server"] * 2
    assert made[4]["metadata"]["name"] == "mnist-4-1"
    assert trainer(made[4])["command"] == trainer(made[0])["command"]


def test_both_sides_are_configured_with_how_many_there_are() -> None:
    parsed = settings(pods(processesPerWorker=2)[4])
    assert (parsed.workers, parsed.servers, parsed.processes) == (3, 2, 2)
    assert (parsed.slots, parsed.processes_of(2), parsed.processes_of(3)) == (5, 2, 1)


def test_without_servers_nothing_changes() -> None:
    made = pods(strategy={"sync": {"type": "Ring", "parameterServer": {"servers": 7}}})
    assert sorted(made) == [0, 1, 2]
    assert settings(made[0]).servers == 0


def test_a_server_requests_no_device() -> None:
    made = pods(gpusPerWorker=2, resources=GPU)
    assert trainer(made[0])["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert trainer(made[3])["resources"] == {"limits": {"cpu": "4"}, "requests": {"memory": "1Gi"}}


def test_a_server_may_have_resources_of_its_own() -> None:
    made = pods(gpusPerWorker=2, resources=GPU, strategy=served(resources=SMALL))
    assert trainer(made[3])["resources"] == {"limits": {"cpu": "2"}}
    assert trainer(made[0])["resources"]["limits"]["cpu"] == "4"
    assert settings(made[0]).strategy is not None


@pytest.mark.parametrize(
    ("fields", "volume"), [({}, {"medium": "Memory"}), ({"sharedMemory": "2Gi"}, {"sizeLimit": "2Gi"})]
)
def test_a_server_keeps_its_state_in_memory(fields: dict[str, str], volume: dict[str, str]) -> None:
    pod = pods(3, None, **fields)[4]
    mount = next(each for each in trainer(pod)["volumeMounts"] if each["mountPath"] == "/dev/shm")
    (found,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    assert found["emptyDir"] == {"medium": "Memory"} | volume


def test_a_server_reads_no_data() -> None:
    worker, server = (pods(3, None, shardCache="2Gi")[slot] for slot in (0, 3))
    names = [{each["name"] for each in pod["spec"]["volumes"]} for pod in (worker, server)]
    assert names[0] - names[1] == {"ropeteam-shard-cache"}


def test_all_pods_are_waited_for_and_counted() -> None:
    cluster = FakeCluster(a_job(workers=3, strategy=served()))
    for _ in range(12):
        cluster.round()
        cluster.kubelets()
    seen = cluster.observe()
    assert seen.status.workers.desired == 5
    assert build_view(seen).workers.keys() == {0, 1, 2, 3, 4}


def test_a_strategy_is_validated_by_the_ranks_of_the_workers() -> None:
    fits = a_job(workers=2, strategy=served(backupWorkers=1))
    assert decide(fits).status.state != "Invalid"
    bad = a_job(workers=2, strategy=served(backupWorkers=2))
    assert decide(bad).status.state == "Invalid"


@pytest.mark.parametrize(("servers", "fits"), [(1000, True), (1001, False)])
def test_servers_count_among_the_ranks_of_a_job(servers: int, fits: bool) -> None:
    spec = {"workers": 1798, "processesPerWorker": 4, "command": ["x"], "image": "i"}
    messages = rules.validate(spec | {"strategy": served(servers)})
    assert (not messages) == fits, messages


def test_a_server_that_was_replaced_is_deleted() -> None:
    seen = a_running_job(3)
    old = seen.worker(2).model_copy(update={"role": Role.SERVER})
    slots = [
        s.model_copy(update={"incarnation": 2, "pod_uid": ""}) if s.slot == 2 else s
        for s in seen.status.slots
    ]
    status = seen.status.model_copy(update={"slots": tuple(slots)})
    pods = tuple(old if pod.uid == old.uid else pod for pod in seen.pods)
    saved = decide(seen.but(pods=pods, status=status)).status
    decision = decide(seen.but(pods=pods, status=saved))
    assert DeletePod(old.name, old.uid) in decision.actions
