"""Manifests: the user's pod with our agent in it, a coordinator without rights, a Service for its term."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import UID, a_job, a_running_job, force_deleted, on_a_lost_node, written

from ropeteam.api.defaults import NO_PROXIES
from ropeteam.api.job import TrainingJobSpec
from ropeteam.core.decide import decide
from ropeteam.core.objects import manifests
from ropeteam.core.objects.actions import (
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeleteJob,
    DeletePod,
    DeleteService,
    EnsureAgent,
    PointService,
)
from ropeteam.core.objects.workerpod import dry_run_pod
from ropeteam.core.seen.view import build_view, with_changes
from ropeteam_trainer.contract import codec, config


def pod(workers: int = 2, **spec: Any) -> dict[str, Any]:
    """The pod that replaces slot 0's."""
    seen = a_running_job(workers, **spec).after(force_deleted(0), written)
    made = [action.manifest for action in decide(seen).actions if isinstance(action, CreatePod)]
    assert len(made) == 1
    return made[0]


def trainer(manifest: dict[str, Any]) -> dict[str, Any]:
    found = [each for each in manifest["spec"]["containers"] if each["name"] == "trainer"]
    assert len(found) == 1
    container: dict[str, Any] = found[0]
    return container


def env(container: dict[str, Any]) -> dict[str, Any]:
    names = [each["name"] for each in container["env"]]
    assert len(names) == len(set(names))
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def in_template(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **container}]}}


def mounting(volume: str, path: str) -> dict[str, Any]:
    template = in_template(volumeMounts=[{"name": volume, "mountPath": path}])
    template["spec"]["volumes"] = [{"name": volume, "emptyDir": {}}]
    return template


METRICS = {"name": "metrics", "containerPort": 29403, "protocol": "TCP"}
OTHER = {"name": "debug", "containerPort": 5678}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ([], [METRICS]),
        ([OTHER], [OTHER, METRICS]),
        ([{"name": "metrics", "containerPort": 9100}], [{"name": "metrics", "containerPort": 9100}]),
        ([{"containerPort": 29403}], [{"containerPort": 29403}]),
    ],
)
def test_the_port_of_the_agents_metrics_is_declared_beside_those_of_the_user(given: Any, made: Any) -> None:
    assert trainer(pod(template=in_template(ports=given)))["ports"] == made


@pytest.mark.parametrize("given", [[], [OTHER]])
def test_on_the_nodes_network_the_agents_port_is_not_claimed(given: Any) -> None:
    template = in_template(ports=given)
    template["spec"]["hostNetwork"] = True
    assert trainer(pod(template=template)).get("ports", []) == given


def test_names_labels_and_owner() -> None:
    metadata = pod()["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("mnist-0-2", "lab")
    assert metadata["labels"] == {
        "app.kubernetes.io/managed-by": "ropeteam",
        "ropeteam.dev/job": "mnist",
        "ropeteam.dev/job-uid": UID,
        "ropeteam.dev/role": "worker",
        "ropeteam.dev/slot": "0",
        "ropeteam.dev/incarnation": "2",
        "ropeteam.dev/attempt": "1",
    }
    owner = metadata["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", UID, True)


def test_the_agent_comes_before_the_users_command() -> None:
    container = trainer(pod(command=["python", "train.py"], args=["--lr", "1e-3"]))
    agent = ["python3", "-I", "/ropeteam/agent.pyz", "--"]
    assert container["command"] == [*agent, "python", "train.py", "--lr", "1e-3"]
    assert "args" not in container
    other = trainer(pod(agentPython="/opt/conda/bin/python3"))
    assert other["command"][0] == "/opt/conda/bin/python3"


def test_the_agent_reads_its_settings_and_identity() -> None:
    container = trainer(pod(workers=3, checkpoint={"volume": {"nfs": {}}, "path": "run", "keep": 5}))
    known = {name: value for name, value in env(container).items() if isinstance(value, str)}
    fields = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container["env"]
        if "valueFrom" in each
    }
    assert fields == {
        config.POD_UID: "metadata.uid",
        config.POD_IP: "status.podIP",
        config.NODE: "spec.nodeName",
    }
    worker = codec.decode(config.WorkerConfig, known[config.CONFIG])
    assert (known[config.SLOT], known[config.INCARNATION]) == ("0", "2")
    assert (worker.workers, worker.processes, worker.coordinator) == (3, 1, "10.0.0.1:29401")
    assert worker.checkpoint == config.CheckpointConfig(
        "/checkpoints/run", None, 300, 5, volume="/checkpoints"
    )


def folder(namespace: str = "lab", name: str = "mnist", **checkpoint: Any) -> str:
    """As the operator's key for it is derived from it."""
    seen = a_job(checkpoint=checkpoint) if checkpoint else a_job()
    job = seen.metadata.model_copy(update={"namespace": namespace, "name": name, "uid": namespace + name})
    return manifests.secret_creation(seen.but(metadata=job), TrainingJobSpec.model_validate(seen.spec)).folder


CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    "same",
    [
        folder(name="other", volume=CLAIM, path="p"),
        folder(volume=CLAIM, path="/p/"),
        folder(volume={"persistentVolumeClaim": {"readOnly": False, "claimName": "c"}}, path="p"),
    ],
)
def test_jobs_that_save_in_one_folder_have_one_key_for_it(same: str) -> None:
    assert same == folder(volume=CLAIM, path="p")


def test_jobs_that_save_elsewhere_have_other_keys() -> None:
    folders = {
        folder(volume=CLAIM, path="p"),
        folder(volume=CLAIM, path="q"),
        folder(volume=CLAIM),
        folder(volume={"nfs": {"server": "c", "path": "/"}}, path="p"),
        folder("other", volume=CLAIM, path="p"),
        folder(),
    }
    assert len(folders) == 6
    assert folder() == "", "it has no checkpoints"


def test_a_secret_that_the_job_names_is_mounted_and_its_keys_sign() -> None:
    """By the pod: the operator reads no Secret. The folder's own keys stay where they were."""
    checkpoint = {"volume": CLAIM, "signing": {"secretName": "keys"}}
    manifest = pod(checkpoint=checkpoint)
    assert {"name": "ropeteam-signing", "secret": {"secretName": "keys"}} in manifest["spec"]["volumes"]
    mount = {"name": "ropeteam-signing", "mountPath": "/ropeteam-signing", "readOnly": True}
    assert mount in trainer(manifest)["volumeMounts"]
    worker = codec.decode(config.WorkerConfig, env(trainer(manifest))[config.CONFIG])
    assert worker.checkpoint
    assert worker.checkpoint.signing == "/ropeteam-signing/checkpoint-keys"
    assert folder(volume=CLAIM, signing=checkpoint["signing"]) == folder(volume=CLAIM)
    plain = pod(checkpoint={"volume": CLAIM})
    assert "signing" not in str(plain["spec"]["volumes"]) + str(trainer(plain)["volumeMounts"])


def test_a_worker_is_configured_with_whom_its_job_trusts_and_whether_its_pod_is_a_world() -> None:
    for given, found in (("One", False), ("PerPod", True)):
        text = env(trainer(pod(resume={"trust": "Any"}, worlds=given)))[config.CONFIG]
        worker = codec.decode(config.WorkerConfig, text)
        assert (worker.trust, worker.worlds_per_pod) == (config.Trust.ANY, found)


def test_a_users_cadence_replaces_the_automatic_one() -> None:
    container = trainer(pod(checkpoint={"volume": {"nfs": {}}, "everySteps": 10}))
    worker = codec.decode(config.WorkerConfig, env(container)[config.CONFIG])
    assert worker.checkpoint == config.CheckpointConfig(
        "/checkpoints/mnist", 10, None, 3, volume="/checkpoints"
    )


def test_the_short_form_is_merged_into_the_template() -> None:
    template = in_template(
        command=["python", "a.py"],
        env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    template["metadata"] = {"labels": {"team": "vision"}, "annotations": {"note": "x"}}
    template["spec"] |= {"nodeSelector": {"gpu": "h100"}, "volumes": [{"name": "data", "emptyDir": {}}]}
    manifest = pod(
        command=None, image="train:2", workingDir="/src", env=[{"name": "C", "value": "3"}], template=template
    )
    container = trainer(manifest)
    assert (container["image"], container["workingDir"]) == ("train:2", "/src")
    assert container["command"][4:] == ["python", "a.py"]
    assert trainer(pod(image=None, template=in_template(image="mine:1")))["image"] == "mine:1"
    assert [env(container)[name] for name in "ABC"] == ["1", "2", "3"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert manifest["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert manifest["metadata"]["labels"]["team"] == "vision"
    assert manifest["metadata"]["annotations"] == {"note": "x", **NO_PROXIES}


def test_gpus_become_a_limit_and_processes() -> None:
    container = trainer(pod(gpusPerWorker=8, resources={"limits": {"memory": "64Gi"}}))
    assert container["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": "8"}
    assert codec.decode(config.WorkerConfig, env(container)[config.CONFIG]).processes == 8


def volumes(manifest: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in manifest["spec"]["volumes"]}


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {each["mountPath"]: each["name"] for each in container["volumeMounts"]}


def test_volumes_of_the_agent_the_token_the_checkpoints_and_shared_memory() -> None:
    claim = {"persistentVolumeClaim": {"claimName": "ckpt"}}
    manifest = pod(checkpoint={"volume": claim}, sharedMemory="8Gi")
    assert mounts(trainer(manifest)) == {
        "/ropeteam": "ropeteam-agent",
        "/ropeteam-token": "ropeteam-token",
        "/checkpoints": "ropeteam-checkpoint",
        "/dev/shm": "ropeteam-shm",
    }
    found = volumes(manifest)
    assert found["ropeteam-token"]["secret"] == {"secretName": "mnist-5eed5eed-k1"}
    assert found["ropeteam-checkpoint"] == {"name": "ropeteam-checkpoint", **claim}
    assert found["ropeteam-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_shared_memory_of_the_template_is_preserved() -> None:
    manifest = pod(template=mounting("mine", "/dev/shm"))
    assert mounts(trainer(manifest))["/dev/shm"] == "mine"
    assert "ropeteam-shm" not in volumes(manifest)


def test_a_cache_of_shards_has_a_folder_and_names_it_to_the_script_of_it() -> None:
    manifest = pod(shardCache="200Gi")
    assert mounts(trainer(manifest))["/shard-cache"] == "ropeteam-shard-cache"
    assert volumes(manifest)["ropeteam-shard-cache"]["emptyDir"] == {"sizeLimit": "200Gi"}
    variables = env(trainer(manifest))
    assert variables[config.SHARD_CACHE] == "/shard-cache"
    assert int(variables[config.SHARD_CACHE_BYTES]) == 190 * 2**30, "the kubelet evicts who takes all of it"


def test_a_disk_of_the_node_may_be_the_cache_of_shards() -> None:
    manifest = pod(shardCache="200Gi", template=mounting("nvme", "/shard-cache"))
    assert mounts(trainer(manifest))["/shard-cache"] == "nvme"
    assert "ropeteam-shard-cache" not in volumes(manifest)
    assert config.SHARD_CACHE in env(trainer(manifest))


def test_no_container_of_ours_is_in_a_worker_pod() -> None:
    template = in_template()
    template["spec"]["initContainers"] = [{"name": "download"}]
    manifest = pod(template=template)
    assert manifest["spec"]["initContainers"] == [{"name": "download"}]
    assert [each["name"] for each in manifest["spec"]["containers"]] == ["trainer"]
    assert "initContainers" not in pod()["spec"]
    assert volumes(manifest)["ropeteam-agent"]["secret"] == {"secretName": "ropeteam-agent-test"}


def test_how_a_worker_pod_lives_and_ends() -> None:
    spec = pod(recovery={"drainSeconds": 90})["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 100)


def test_defaults_lean_to_restricted_and_what_the_user_sets_is_preserved() -> None:
    manifest = pod()
    assert manifest["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert manifest["spec"]["automountServiceAccountToken"] is False
    assert trainer(manifest)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    template = in_template(securityContext={"allowPrivilegeEscalation": True, "capabilities": {}})
    template["spec"]["serviceAccountName"] = "trainer"
    manifest = pod(template=template)
    assert trainer(manifest)["securityContext"] == {"allowPrivilegeEscalation": True, "capabilities": {}}
    assert "automountServiceAccountToken" not in manifest["spec"]


def test_pods_of_an_attempt_that_began_under_an_earlier_release_keep_their_capabilities() -> None:
    """Root without them may write no volume of another user: a job that ran would end at its next fault."""
    status = a_running_job().status
    assert status.capabilities_dropped
    before = with_changes(status, capabilities_dropped=False)
    seen = a_running_job().but(status=before).after(force_deleted(0), written)
    (made,) = (action.manifest for action in decide(seen).actions if isinstance(action, CreatePod))
    assert trainer(made)["securityContext"] == {"allowPrivilegeEscalation": False}


@pytest.mark.parametrize("given", [{"add": ["IPC_LOCK"]}, {"drop": ["NET_RAW"]}, {"drop": []}])
def test_capabilities_of_the_template_win(given: dict[str, Any]) -> None:
    made = trainer(pod(template=in_template(securityContext={"capabilities": given})))
    assert made["securityContext"]["capabilities"] == given


def test_beside_privileged_is_nothing_that_kubernetes_would_refuse() -> None:
    made = trainer(pod(template=in_template(securityContext={"privileged": True})))
    assert made["securityContext"] == {"privileged": True}


def test_a_bad_node_is_avoided_but_not_forbidden() -> None:
    seen = a_running_job(workers=2).after(on_a_lost_node(0), written)
    made = next(action.manifest for action in decide(seen).actions if isinstance(action, CreatePod))
    rules = made["spec"]["affinity"]["nodeAffinity"]
    assert list(rules) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    fields = rules["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"]["matchFields"]
    assert fields == [{"key": "metadata.name", "operator": "NotIn", "values": ["node-0"]}]
    assert "affinity" not in pod()["spec"]


def test_the_users_manifest_is_not_changed_in_place() -> None:
    template = in_template()
    pod(template=template)
    assert template == in_template()


@pytest.mark.parametrize("template", [{}, {"spec": {}}])
def test_a_template_may_leave_out_almost_everything(template: dict[str, Any]) -> None:
    seen = a_job(template=template)
    assert trainer(dry_run_pod(seen, build_view(seen).spec))["image"] == "train:1"


@pytest.mark.parametrize(("worlds", "per_pod"), [("One", False), ("PerPod", True)])
def test_the_coordinator_has_no_rights_at_all(worlds: str, per_pod: bool) -> None:
    seen = a_running_job(worlds=worlds, recovery={"exitCodes": [{"codes": [75], "action": "RetryFree"}]})
    alone = seen.but(pods=(), report=None).after(written)
    manifest = next(action.manifest for action in decide(alone).actions if isinstance(action, CreatePod))
    spec, container = manifest["spec"], manifest["spec"]["containers"][0]
    assert manifest["metadata"]["name"] == "mnist-coordinator-2"
    assert spec["restartPolicy"] == "Always"
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["command"] == ["python", "-m", "ropeteam_trainer.coordinator"]
    decoded = codec.decode(config.CoordinatorConfig, env(container)[config.CONFIG])
    assert (decoded.term, decoded.workers, decoded.exit_codes[0].codes) == (2, 4, (75,))
    assert decoded.worlds_per_pod is per_pod
    assert env(container)[config.POD_IP]["fieldRef"]["fieldPath"] == "status.podIP"


def test_the_service_leads_to_the_coordinator_of_this_term_only() -> None:
    seen = a_running_job().but(service=None)
    made = next(action.manifest for action in decide(seen).actions if isinstance(action, CreateService))
    assert made["spec"]["selector"] == {
        "ropeteam.dev/job-uid": UID,
        "ropeteam.dev/role": "coordinator",
        "ropeteam.dev/term": "1",
    }
    assert [port["port"] for port in made["spec"]["ports"]] == [29401, 29402]


def test_actions_name_what_they_do() -> None:
    manifest = {"metadata": {"name": "mnist"}}
    selector = {"ropeteam.dev/term": "3"}
    lines = [
        str(action)
        for action in (
            CreatePod(manifest),
            DeletePod("mnist-0-1", "u1"),
            CreateService(manifest),
            PointService("mnist", "u2", selector),
            DeleteService("mnist", "u2"),
            CreateSecret("mnist-x", UID, {}, {}, "k1"),
            CreatePolicy(manifest),
            EnsureAgent(),
        )
    ]
    assert lines == [
        "create Pod mnist",
        "delete Pod mnist-0-1 (uid u1)",
        "create Service mnist",
        "point Service mnist to term 3",
        "delete Service mnist",
        "create Secret mnist-x",
        "create NetworkPolicy mnist",
        "ensure the agent's Secret",
    ]


def test_a_finished_job_reports_that_it_is_deleted() -> None:
    assert str(DeleteJob("mnist", UID)) == "delete TrainingJob mnist"
