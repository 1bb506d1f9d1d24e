"""A job's NetworkPolicy: which peers may reach its pods, and what happens if it cannot be created.

torch authenticates nobody at its store and between ranks, so the network has to keep others out. The policy
is named by the digest of its content and never changed, because the operator may create such objects and no
more: another content (the installation's peers, hostNetwork) is another policy beside the first, and policies
add up. No worker pod is created before its policy exists. Two kinds of jobs run without, with a Warning:
one that has had worker pods before, as one of an earlier release has, and each job of an operator without
the right to create one, because its roles are not the chart's, or older: an upgrade must not stop what ran
before.
Limits: a policy that somebody deletes is created again only after a restart of the operator. No policy holds
for pods on the network of their nodes, or where the cluster's network enforces none.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ropeteam.api.job import TrainingJobSpec
from ropeteam.core.objects.actions import CreatePolicy
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View
from ropeteam_trainer.contract import config as contract

_NO_RIGHT = 'cannot create resource "networkpolicies"'
"""Text of the API server where RBAC is the reason; quotas and admission policies are 403 too."""


def missing_policy_actions(view: View) -> tuple[CreatePolicy, ...]:
    """The action that creates the job's NetworkPolicy, or none: it exists, this installation has none, or its
    refusal does not stop the job (the operator has no right to create one, or the job has had worker
    pods)."""
    wanted, known = manifest(view.seen, view.spec), view.seen.policy
    if wanted is None or wanted["metadata"]["name"] == known.name:
        return ()
    if known.refusal and (_NO_RIGHT in known.refusal or _had_worker_pods(view)):
        return ()
    return (CreatePolicy(wanted),)


def blocks_gang_start(view: View) -> bool:
    """Whether no worker may be created yet, because the policy is missing and the job has never had one."""
    return bool(missing_policy_actions(view)) and not _had_worker_pods(view)


def _had_worker_pods(view: View) -> bool:
    """Whether status shows that worker pods existed, in this attempt or an earlier one."""
    return any(
        slot.pod_uid or slot.previous_pod_uid or not slot.previous_pod_fenced for slot in view.status.slots
    )


def refusal_message(refusal: str) -> str:
    """Message to the owner of a job about the API server's `refusal` of the policy, without a full stop: the
    consequence, and what to do. It depends on whether RBAC is the reason."""
    if _NO_RIGHT in refusal:
        return (
            f"{refusal}. The job continues without it: any client that reaches its pods can connect to its "
            "ranks. Grant the operator that permission, as its chart does, or set the chart's value "
            "networkPolicy.jobs to false"
        )
    return (
        f"{refusal}. No gang is started without it: any client that reaches its pods could connect to its "
        "ranks. Allow it in the namespace (its quota, the admission policy that is named), or set the value "
        "networkPolicy.jobs of Ropeteam's chart to false"
    )


def manifest(seen: Observation, spec: TrainingJobSpec) -> dict[str, Any] | None:
    """Manifest of the job's NetworkPolicy, named by the digest of its content. None: this installation has
    none.

    Allowed are, in this order: all ports between pods of the job; the coordinator's HTTP port from operators;
    metrics from where the installation says, or from anywhere; with hostNetwork the coordinator's agent
    port."""
    if seen.defaults.policy is None:
        return None
    job, pods_of_job = seen.metadata, {"matchLabels": {names.JOB_UID: seen.metadata.uid}}
    metrics = list(seen.defaults.policy.metrics_from)
    ingress = [
        {"from": [{"podSelector": pods_of_job}]},
        {
            "from": list(seen.defaults.policy.operator_from),
            "ports": _port_rules(contract.COORDINATOR_HTTP_PORT),
        },
        {
            **({"from": metrics} if metrics else {}),
            "ports": _port_rules(contract.COORDINATOR_HTTP_PORT, contract.AGENT_METRICS_PORT),
        },
    ]
    if _uses_host_network(spec):  # agents connect from addresses of nodes, which no selector matches
        ingress.append({"ports": _port_rules(contract.COORDINATOR_AGENT_PORT)})
    body = {"podSelector": pods_of_job, "policyTypes": ["Ingress"], "ingress": ingress}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    metadata = {
        "name": names.policy(job.name, digest),
        "namespace": job.namespace,
        "labels": names.labels(job),
        "ownerReferences": [names.owner_reference(job)],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": body,
    }


def _port_rules(*numbers: int) -> list[dict[str, Any]]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]


def _uses_host_network(spec: TrainingJobSpec) -> bool:
    """Whether the template sets hostNetwork."""
    pod_spec = (spec.template or {}).get("spec")
    return isinstance(pod_spec, dict) and bool(pod_spec.get("hostNetwork"))
