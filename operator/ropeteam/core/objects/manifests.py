"""Manifests of a job's coordinator pod and Service, the action that creates its Secret, and parts that worker
pods share with them.

The coordinator runs our own image and gets nothing it does not need: no API access, no root user, no writable
root file system.
"""

from __future__ import annotations

import json
from typing import Any

from ropeteam.api.job import Checkpoint, Metadata, TrainingJobSpec, Worlds
from ropeteam.api.status import JobStatus
from ropeteam.api.strategy import contract_strategy
from ropeteam.core.objects import poddefaults
from ropeteam.core.objects.actions import CreateSecret
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Observation, PodSeen, Role
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract import config as contract

RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
}
"""Security context of containers of our own image; satisfies the Pod Security level `restricted`."""
LIVENESS: dict[str, Any] = {
    "httpGet": {"path": "/healthz", "port": "http"},
    "periodSeconds": 10,
    "timeoutSeconds": 5,
    "failureThreshold": 6,
}
"""Probe that the coordinator's event loop runs and its state folder answers. It fails after a minute: a busy
coordinator is not killed, and one that hangs is restarted within fenceSeconds (120 by default), so that its
agents continue."""
TOKEN_VOLUME = "ropeteam-token"
STATE_PATH = "/ropeteam-state"
DRAIN_MARGIN_SECONDS = 10
"""Seconds that a pod's grace period, and the wait for the drain of the gang, are longer than drainSeconds."""


def secret_creation(seen: Observation, spec: TrainingJobSpec) -> CreateSecret:
    """Action that creates the job's Secret, with the token, and the keys of its checkpoint folder, if any."""
    return CreateSecret(
        name=names.secret(seen.metadata, seen.key_id),
        job_uid=seen.metadata.uid,
        labels=names.labels(seen.metadata),
        owner=names.owner_reference(seen.metadata),
        key_id=seen.key_id,
        folder=folder_identity(seen.metadata, spec.checkpoint) if spec.checkpoint else "",
    )


def folder_identity(job: Metadata, checkpoint: Checkpoint) -> str:
    """Text that is the same for all jobs which save in this checkpoint folder, mounted read-only or not:
    their signing keys are derived from it. A change of this text invalidates the signatures of all
    checkpoints."""
    volume = {
        kind: {name: value for name, value in source.items() if name != "readOnly"}
        for kind, source in checkpoint.volume.items()
        if isinstance(source, dict)
    }
    return json.dumps([job.namespace, volume, checkpoint_path(job.name, checkpoint)], sort_keys=True)


def checkpoint_path(job: str, checkpoint: Checkpoint) -> str:
    """Path of the checkpoint folder inside its volume: spec.checkpoint.path, or else the job's name."""
    return (checkpoint.path or job).strip("/")


def service(seen: Observation) -> dict[str, Any]:
    """Manifest of the Service in front of the coordinator. It requests the address in status, if there is
    one: the config of running workers has no other."""
    job, coordinator = seen.metadata, seen.status.coordinator
    spec: dict[str, Any] = {
        "type": "ClusterIP",
        "publishNotReadyAddresses": True,  # agents may connect before the kubelet reports it as ready
        "selector": names.coordinator_selector(job, coordinator.term),
        "ports": [
            _port("agents", contract.COORDINATOR_AGENT_PORT),
            _port("http", contract.COORDINATOR_HTTP_PORT),
        ],
    }
    if coordinator.address:
        spec["clusterIP"] = coordinator.address
    metadata = {
        "name": names.service(job.name),
        "namespace": job.namespace,
        "labels": names.labels(job),
        "ownerReferences": [names.owner_reference(job)],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


def coordinator_pod(seen: Observation, spec: TrainingJobSpec) -> dict[str, Any]:
    """Manifest of the coordinator's pod of the current term. The installation's defaults are added last."""
    job, term = seen.metadata, seen.status.coordinator.term
    config = coordinator_config(seen, spec)
    container: dict[str, Any] = {
        "name": "coordinator",
        "image": seen.defaults.operator_image,
        "command": ["python", "-m", "ropeteam_trainer.coordinator"],
        "env": [
            {"name": contract.CONFIG, "value": codec.encode(config).decode()},
            env_from_field(contract.POD_IP, "status.podIP"),
            {"name": contract.TOKEN_FILE, "value": contract.TOKEN_PATH},
            {"name": contract.AGENT_STATE_DIR, "value": STATE_PATH},
        ],
        "ports": [
            {"name": "agents", "containerPort": contract.COORDINATOR_AGENT_PORT},
            {"name": "http", "containerPort": contract.COORDINATOR_HTTP_PORT},
        ],
        "livenessProbe": LIVENESS,
        "resources": _coordinator_resources(config.slots) | seen.defaults.jobs.coordinator_resources,
        "securityContext": RESTRICTED,
        "volumeMounts": [token_mount(), {"name": "ropeteam-state", "mountPath": STATE_PATH}],
    }
    pod_spec = {
        "automountServiceAccountToken": False,
        "containers": [container],
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 5,
        "volumes": [token_volume(seen), {"name": "ropeteam-state", "emptyDir": {}}],
    }
    if policy := seen.defaults.image_pull_policy:
        container["imagePullPolicy"] = policy
    metadata = {
        "name": names.coordinator(job.name, term),
        "namespace": job.namespace,
        "labels": names.labels(job, Role.COORDINATOR, term=term, attempt=seen.status.attempt),
        "ownerReferences": [names.owner_reference(job)],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
    poddefaults.add_defaults(pod, seen.defaults.jobs)
    return pod


def _coordinator_resources(slots: int) -> dict[str, Any]:
    """Resources of the coordinator's container of a job with so many slots. Requests are above the measured
    use (benchmarks/results/coordinator.json). The limit is several times that: sockets, and 64 KiB for each
    connection before authentication."""
    return {
        "requests": {"cpu": f"{50 + slots // 16}m", "memory": f"{64 + slots // 32}Mi"},
        "limits": {"memory": f"{256 + slots // 8}Mi"},
    }


def coordinator_config(seen: Observation, spec: TrainingJobSpec) -> contract.CoordinatorConfig:
    """Config of the coordinator's process, which its pod has in an environment variable."""
    elastic = spec.elastic
    return contract.CoordinatorConfig(
        job=seen.metadata.name,
        namespace=seen.metadata.namespace,
        job_uid=seen.metadata.uid,
        term=seen.status.coordinator.term,
        workers=spec.workers,
        processes=spec.processes,
        servers=spec.servers,
        timeouts=timeouts(spec),
        no_progress_limit=spec.recovery.no_progress_limit,
        exit_codes=tuple(
            contract.ExitCodeRule(rule.codes, contract.ExitAction(rule.action.value))
            for rule in spec.recovery.exit_codes
        ),
        keep=spec.checkpoint.keep if spec.checkpoint else 3,
        checkpoint=spec.checkpoint is not None,
        lease=seen.status.coordinator.lease_seconds,
        worlds_per_pod=spec.worlds is Worlds.PER_POD,
        replica_ranks=contract_strategy(spec.strategy).replica_ranks if spec.strategy else 1,
        elastic=contract.Elastic(elastic.min_workers, elastic.wait_seconds) if elastic else None,
    )


def timeouts(spec: TrainingJobSpec) -> contract.Timeouts:
    """Timeouts in seconds, the same in the configs of coordinator and agents."""
    policy = spec.recovery
    return contract.Timeouts(
        start=policy.start_seconds,
        hang=policy.hang_seconds,
        lost=policy.lost_seconds,
        fence=policy.fence_seconds,
        drain=policy.drain_seconds,
    )


def key_id_of(status: JobStatus, pods: tuple[PodSeen, ...]) -> str:
    """Id of the operator's key that the token of this job's pods is derived from. Empty: it has no pods.

    Pods authenticate each other by the token, so new ones get the key of those that exist, even if the
    operator has another by now. Only pods whose UID is in status count: anybody could have created others."""
    slots = (uid for slot in status.slots for uid in (slot.pod_uid, slot.previous_pod_uid))
    keys = {pod.uid: pod.key_id for pod in pods}
    return next((keys[uid] for uid in (status.coordinator.pod_uid, *slots) if keys.get(uid)), "")


def token_volume(seen: Observation) -> dict[str, Any]:
    """Volume of the job's Secret, for `token_mount`."""
    return {"name": TOKEN_VOLUME, "secret": {"secretName": names.secret(seen.metadata, seen.key_id)}}


def token_mount() -> dict[str, Any]:
    """The volumeMount of `token_volume`, at the path that configs name."""
    return {"name": TOKEN_VOLUME, "mountPath": contract.TOKEN_PATH.rpartition("/")[0], "readOnly": True}


def env_from_field(name: str, path: str) -> dict[str, Any]:
    """Environment variable `name` with the value of the pod's field `path`, which the kubelet fills in."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
