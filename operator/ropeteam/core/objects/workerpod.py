"""The pod of a slot, worker or parameter server: the user's template, the short form merged into its
container `trainer`, and our agent around it.

Where the user set nothing, the container gets what the Pod Security level `restricted` requires, except a
user: the image's counts, or that of nonroot.py. Fields that the user set stay, except those that make a pod
ours: names, labels, the agent in front of the command, restartPolicy and grace period. Never raises: a part
of the template of an unexpected type is replaced by an empty one. A parameter server computes on the CPU: it
requests no devices.
"""

from __future__ import annotations

import copy
from typing import Any

from ropeteam.api import strategy
from ropeteam.api.job import GPU, Checkpoint, TrainingJobSpec, Worlds
from ropeteam.api.quantity import parse_quantity
from ropeteam.api.status import SlotStatus
from ropeteam.core.objects import manifests, nonroot, poddefaults, trainercontainer
from ropeteam.core.objects.podparts import add_empty_dir, add_mount, dict_at, dicts_at, list_at
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Observation, Role
from ropeteam.core.seen.view import with_changes
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract import config as contract

AGENT_VOLUME = "ropeteam-agent"
CHECKPOINT_VOLUME = "ropeteam-checkpoint"
CHECKPOINT_PATH = "/checkpoints"
SIGNING_VOLUME = "ropeteam-signing"
SHM_VOLUME = "ropeteam-shm"
SHARD_CACHE_VOLUME = "ropeteam-shard-cache"
SHARD_CACHE_PATH = "/shard-cache"
METRICS_PORT = {"name": "metrics", "containerPort": contract.AGENT_METRICS_PORT, "protocol": "TCP"}


def worker_pod(seen: Observation, spec: TrainingJobSpec, slot: SlotStatus) -> dict[str, Any]:
    """Manifest of the pod of this slot and incarnation, a new object: `spec` is not changed.

    Order: the user's part, then ours, then the installation's defaults where neither sets anything, and last
    the user of nonroot.py, which needs the whole pod."""
    template = copy.deepcopy(spec.template or {})
    pod_spec = dict_at(template, "spec")
    _add_volumes(seen, spec, pod_spec)
    container = _add_trainer(spec, pod_spec)  # in place, as all that follows
    _set_resources(spec, container, is_server(spec, slot))
    container["env"] += _agent_env(seen, spec, slot)  # behind the user's: the last of a name wins
    if spec.shard_cache and not is_server(spec, slot):
        _add_shard_cache(spec.shard_cache, container, pod_spec)
    _set_security_defaults(pod_spec, container, seen.status.capabilities_dropped)
    _declare_metrics(pod_spec, container)
    pod_spec["restartPolicy"] = "Never"
    pod_spec["terminationGracePeriodSeconds"] = spec.recovery.drain_seconds + manifests.DRAIN_MARGIN_SECONDS
    _prefer_other_nodes(pod_spec, seen.status.avoided_nodes)
    role = Role.SERVER if is_server(spec, slot) else Role.WORKER
    metadata = _metadata(seen, template, slot, role)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
    poddefaults.add_worker_defaults(pod, container, seen.defaults.jobs)
    if seen.status.run_as_user is not None:
        nonroot.set_user(pod, container, seen.status.run_as_user)
    return pod


def dry_run_pod(seen: Observation, spec: TrainingJobSpec, user: int | None = None) -> dict[str, Any]:
    """Manifest of a worker pod as the next attempt would create it, for a dry run at the API server. `user`:
    UID as which it runs, as status.runAsUser; None: the user of image and template."""
    status = with_changes(seen.status, run_as_user=user, capabilities_dropped=True)
    return worker_pod(with_changes(seen, status=status), spec, SlotStatus(slot=0))


def is_server(spec: TrainingJobSpec, slot: SlotStatus) -> bool:
    """Whether the slot is a parameter server's: their numbers follow those of the workers."""
    return slot.slot >= spec.workers and spec.servers > 0


def _metadata(seen: Observation, template: dict[str, Any], slot: SlotStatus, role: Role) -> dict[str, Any]:
    """Metadata of the pod: the template's labels and annotations, our labels, and the job as its owner."""
    job, user = seen.metadata, dict_at(template, "metadata")
    position = {"slot": slot.slot, "incarnation": slot.incarnation, "attempt": seen.status.attempt}
    metadata: dict[str, Any] = {
        "name": names.worker(job.name, slot.slot, slot.incarnation),
        "namespace": job.namespace,
        "labels": names.user_entries(dict_at(user, "labels")) | names.labels(job, role, **position),
        "ownerReferences": [names.owner_reference(job)],
    }
    if annotations := names.user_entries(dict_at(user, "annotations")):
        metadata["annotations"] = annotations
    return metadata


def _add_trainer(spec: TrainingJobSpec, pod_spec: dict[str, Any]) -> dict[str, Any]:
    """Put the container `trainer` into `pod_spec`, at its place in the template or else first; returns it.
    The agent is in front of its command, with the user's command behind `--`, and our volumes are mounted."""
    containers, container = dicts_at(pod_spec, "containers"), trainercontainer.merged(spec)
    index = trainercontainer.position(containers)
    if index is None:
        containers.insert(0, container)
    else:
        containers[index] = container
    python = spec.agent_python or "python3"
    user = (*container["command"], *container.pop("args"))
    container["command"] = [python, "-I", contract.AGENT_PYZ, "--", *user]
    add_mount(container, AGENT_VOLUME, contract.AGENT_PYZ.rpartition("/")[0], readOnly=True)
    list_at(container, "volumeMounts").append(manifests.token_mount())
    if spec.checkpoint:
        add_mount(container, CHECKPOINT_VOLUME, CHECKPOINT_PATH)
        if spec.checkpoint.signing:
            add_mount(container, SIGNING_VOLUME, contract.SIGNING_PATH.rpartition("/")[0], readOnly=True)
    limit = {"sizeLimit": spec.shared_memory} if spec.shared_memory else {}
    add_empty_dir(container, pod_spec, SHM_VOLUME, "/dev/shm", {"medium": "Memory"} | limit)
    return container


def _add_shard_cache(size: str, container: dict[str, Any], pod_spec: dict[str, Any]) -> None:
    """Add an emptyDir of this size (a quantity), of which shards may take 95 %: the kubelet counts folders
    and lock files too, and evicts a pod that takes more than the size.
    """
    add_empty_dir(container, pod_spec, SHARD_CACHE_VOLUME, SHARD_CACHE_PATH, {"sizeLimit": size})
    total = parse_quantity(size)
    assert total is not None  # validated with the spec
    container["env"] += [
        {"name": contract.SHARD_CACHE, "value": SHARD_CACHE_PATH},
        {"name": contract.SHARD_CACHE_BYTES, "value": str(int(total * 95 // 100))},
    ]


def _set_resources(spec: TrainingJobSpec, container: dict[str, Any], is_parameter_server: bool) -> None:
    """Set the container's resources, in place. A worker's get the GPUs of spec.gpusPerWorker; a parameter
    server's are its own of the spec, or else a worker's, without extended resources as GPUs, which have a
    domain in their names."""
    resources = container["resources"]
    if not is_parameter_server:
        if spec.gpus_per_worker:
            dict_at(resources, "limits")[GPU] = str(spec.gpus_per_worker)
        return
    own = spec.strategy.sync.parameter_server.resources if spec.strategy else None
    source = copy.deepcopy(own) if own is not None else resources
    container["resources"] = {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in source.items()
        if kind in ("limits", "requests") and isinstance(amounts, dict)
    }


def _add_volumes(seen: Observation, spec: TrainingJobSpec, pod_spec: dict[str, Any]) -> None:
    """Add the volumes that `_add_trainer` mounts: agent, token, checkpoints and their signing keys."""
    volumes = list_at(pod_spec, "volumes")
    volumes += [
        {"name": AGENT_VOLUME, "secret": {"secretName": seen.defaults.agent_secret}},
        manifests.token_volume(seen),
    ]
    if spec.checkpoint:
        volumes.append(copy.deepcopy(spec.checkpoint.volume) | {"name": CHECKPOINT_VOLUME})
        if signing := spec.checkpoint.signing:
            volumes.append({"name": SIGNING_VOLUME, "secret": {"secretName": signing.secret_name}})


def _agent_env(seen: Observation, spec: TrainingJobSpec, slot: SlotStatus) -> list[dict[str, Any]]:
    """Environment that the agent reads: its config, its slot, and facts about the pod."""
    return [
        {"name": contract.CONFIG, "value": codec.encode(_worker_config(seen, spec)).decode()},
        {"name": contract.SLOT, "value": str(slot.slot)},
        {"name": contract.INCARNATION, "value": str(slot.incarnation)},
        {"name": contract.TOKEN_FILE, "value": contract.TOKEN_PATH},
        manifests.env_from_field(contract.POD_UID, "metadata.uid"),
        manifests.env_from_field(contract.POD_IP, "status.podIP"),
        manifests.env_from_field(contract.NODE, "spec.nodeName"),
    ]


def _worker_config(seen: Observation, spec: TrainingJobSpec) -> contract.WorkerConfig:
    """Config of the agents of this attempt, the same for all slots."""
    return contract.WorkerConfig(
        job=seen.metadata.name,
        namespace=seen.metadata.namespace,
        job_uid=seen.metadata.uid,
        attempt=seen.status.attempt,
        workers=spec.workers,
        processes=spec.processes,
        servers=spec.servers,
        coordinator=f"{seen.status.coordinator.address}:{contract.COORDINATOR_AGENT_PORT}",
        timeouts=manifests.timeouts(spec),
        launcher=contract.Launcher(spec.launcher.value),
        start=contract.Start(spec.recovery.start.value),
        feature_level=seen.status.feature_level,
        agent_python=spec.agent_python,
        checkpoint=_checkpoint_config(seen.metadata.name, spec.checkpoint),
        resume=contract.Resume(spec.resume.policy.value),
        resume_step=spec.resume.step,
        strategy=strategy.contract_strategy(spec.strategy) if spec.strategy else None,
        trust=contract.Trust(spec.resume.trust.value),
        worlds_per_pod=spec.worlds is Worlds.PER_POD,
    )


def _checkpoint_config(job: str, checkpoint: Checkpoint | None) -> contract.CheckpointConfig | None:
    """Config of checkpoints in worker pods. None: the job has none. Without an interval in the spec one is
    saved every 300 seconds."""
    if checkpoint is None:
        return None
    seconds = checkpoint.every_seconds if checkpoint.every_steps or checkpoint.every_seconds else 300
    directory = checkpoint_directory(job, checkpoint)
    signing = contract.SIGNING_PATH if checkpoint.signing else ""
    return contract.CheckpointConfig(
        directory, checkpoint.every_steps, seconds, checkpoint.keep, signing, CHECKPOINT_PATH
    )


def checkpoint_directory(job: str, checkpoint: Checkpoint) -> str:
    """Path of the checkpoint folder inside the container `trainer`."""
    return f"{CHECKPOINT_PATH}/{manifests.checkpoint_path(job, checkpoint)}"


def _set_security_defaults(
    pod_spec: dict[str, Any], container: dict[str, Any], capabilities_dropped: bool
) -> None:
    """Set, in place and where the template sets nothing, what Pod Security `restricted` requires, except a
    user; and take from the pod what training does not need: environment of Services, an API token."""
    dict_at(pod_spec, "securityContext").setdefault("seccompProfile", {"type": "RuntimeDefault"})
    own = dict_at(container, "securityContext")
    if own.get("privileged") is not True:  # the API server refuses `false` beside it
        own.setdefault("allowPrivilegeEscalation", False)
        if capabilities_dropped:  # capabilities that the user set are kept
            own.setdefault("capabilities", {"drop": ["ALL"]})
    pod_spec.setdefault("enableServiceLinks", False)
    if "serviceAccountName" not in pod_spec:  # who names an account needs its token
        pod_spec.setdefault("automountServiceAccountToken", False)


def _declare_metrics(pod_spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Declare the agent's metrics port, in place, so that Prometheus finds it. Not with hostNetwork: there a
    declared port is a host port, and a node could have only one worker. Nor where the template has a port of
    that name or number.
    """
    ports = dicts_at(container, "ports")
    taken = any(port.get(key) == METRICS_PORT[key] for port in ports for key in ("name", "containerPort"))
    if not pod_spec.get("hostNetwork") and not taken:
        ports.append(dict(METRICS_PORT))
    if not ports:
        del container["ports"]


def _prefer_other_nodes(pod_spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Prefer other nodes than these, in place. They are not excluded: a small cluster would have none
    left."""
    if not nodes:
        return
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = dict_at(dict_at(pod_spec, "affinity"), "nodeAffinity")
    list_at(affinity, "preferredDuringSchedulingIgnoredDuringExecution").append(
        {"weight": 100, "preference": {"matchFields": fields}}
    )
