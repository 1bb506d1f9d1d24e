"""Findings of `ropeteam doctor` about a cluster and the installation there.

Limits: values of the chart are not read, only the objects that they lead to. A lease counts as fresh for a
minute after its renewal, so a leader that was lost within that minute is not noticed. Fields and rules of a
definition are compared, not other parts, which an API server may write in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ropeteam.api.crd import job_schema
from ropeteam.api.job import GPU, GROUP, VERSION
from ropeteam.api.quantity import parse_quantity
from ropeteam.api.rule import at
from ropeteam.core.doctor.findings import (
    Finding,
    Object,
    Read,
    fail_finding,
    name_of,
    ok_finding,
    unknown_finding,
    warn_finding,
)
from ropeteam.core.seen.unservedrequests import KUEUE, QUEUE

OLDEST = (1, 30)
"""Oldest Kubernetes that the chart supports."""
MONITORING = "monitoring.coreos.com"
_STALE_SECONDS = 60
"""Age from which on a lease that was not renewed means that there is no leader."""
_MANY_RESTARTS = 5
"""Restarts of an operator's container from which on a warning names it."""
OPERATOR_LABELS = "app.kubernetes.io/name=ropeteam,app.kubernetes.io/component=operator"
"""Label selector of the operators' Deployments and pods."""


@dataclass(frozen=True)
class Cluster:
    """Objects that were read of a cluster."""

    where: str
    """Path of its kubeconfig."""
    release: str
    """Release of this client."""
    version: str
    """Version of Kubernetes, as the API server reports it."""
    now: datetime
    """Time by the API server's clock."""
    local: bool = False
    """Whether the cluster is one of `ropeteam up`."""
    operator: str = ""
    """Problem of a local cluster's operator. Empty: it is ready."""
    groups: Read = field(default=Read())
    """API groups that are served."""
    definition: Read = field(default=Read())
    """CustomResourceDefinition of TrainingJob."""
    deployments: Read = field(default=Read())
    """Deployments, pods and leases of operators."""
    pods: Read = field(default=Read())
    leases: Read = field(default=Read())
    nodes: Read = field(default=Read())
    classes: Read = field(default=Read())
    """StorageClasses."""


def cluster_findings(seen: Cluster) -> Iterator[Finding]:
    """Findings of a cluster, in the order of dependence. A local one has no Deployment, GPUs or StorageClass,
    so these are left out."""
    yield _version_finding(seen)
    yield _definition_finding(seen)
    if seen.local:
        yield _local_operator_finding(seen)
        return
    yield from _operator_findings(seen)
    yield _nodes_finding(seen.nodes)
    yield _storage_class_finding(seen.classes)
    yield from _third_party_findings(seen.groups)


def _version_finding(seen: Cluster) -> Finding:
    found = re.match(r"v(\d+)\.(\d+)", seen.version)
    if found is None:
        return warn_finding("cluster", f"of {seen.where}: answers, but does not report its version")
    if (int(found[1]), int(found[2])) < OLDEST:
        return fail_finding(
            "cluster",
            f"of {seen.where}: Kubernetes {seen.version} is too old",
            f"upgrade to {OLDEST[0]}.{OLDEST[1]} or newer",
        )
    return ok_finding("cluster", f"of {seen.where}: answers, Kubernetes {seen.version}")


def _definition_finding(seen: Cluster) -> Finding:
    """Finding about the CRD, first match wins: unknown, missing, another version, older, newer, other rules.

    A definition that may not be read is known to be missing if its API group is not served."""
    what, read = "definition", seen.definition
    if read.unknown:
        served = {name_of_group(group) for group in seen.groups.items}
        if seen.groups.unknown or GROUP in served:
            return unknown_finding(what, read)
    if read.unknown or not read.items:
        todo = "install the chart, or `ropeteam crd | kubectl apply -f -`"
        return fail_finding(what, "the cluster does not serve the kind TrainingJob", todo)
    versions = {each["name"]: each for each in at(read.items[0], "spec.versions") or ()}
    if VERSION not in versions:
        return fail_finding(
            what, f"no version {VERSION}, but {', '.join(versions)}", "use a client of the chart's release"
        )
    theirs, ours = at(versions[VERSION], "schema.openAPIV3Schema") or {}, job_schema()
    missing, unknown = _field_paths(ours) - _field_paths(theirs), _field_paths(theirs) - _field_paths(ours)
    if missing:
        todo = (
            "upgrade it (`ropeteam crd | kubectl apply -f -`): until then the API server silently drops "
            "these fields from jobs"
        )
        return warn_finding(what, f"older than this client: it does not have {_some_paths(missing)}", todo)
    if unknown:
        todo = "upgrade this client: it neither shows nor checks these fields"
        return warn_finding(what, f"newer than this client: it has {_some_paths(unknown)}", todo)
    if _cel_rules(theirs) != _cel_rules(ours):
        return warn_finding(
            what,
            f"the same fields as in this client ({seen.release}), but other validation rules (CEL)",
            "if the chart is older: `ropeteam crd | kubectl apply -f -`; else upgrade this client",
        )
    return ok_finding(what, f"TrainingJob {VERSION}, the same as in this client")


def name_of_group(group: Object) -> str:
    return str(group.get("name"))


def _field_paths(schema: Any, path: str = "") -> frozenset[str]:
    """Paths of all fields of an OpenAPI schema, as `spec.workers`; a list and its items have one."""
    if not isinstance(schema, dict):
        return frozenset()
    found = {path} - {""}
    for name, nested in (schema.get("properties") or {}).items():
        found |= _field_paths(nested, f"{path}.{name}".lstrip("."))
    for name in ("items", "additionalProperties"):
        found |= _field_paths(schema.get(name), path)
    return frozenset(found)


def _cel_rules(schema: Any) -> frozenset[str]:
    """CEL rules of an OpenAPI schema, wherever they are in it."""
    if not isinstance(schema, dict):
        return frozenset()
    own = (str(each["rule"]) for each in schema.get("x-kubernetes-validations") or ())
    return frozenset(own).union(*map(_cel_rules, schema.values()))


def _some_paths(paths: frozenset[str]) -> str:
    """Text that names three of the paths, and how many more there are. Paths below one of them are left
    out."""
    top = sorted(path for path in paths if path.rpartition(".")[0] not in paths)
    return ", ".join(top[:3]) + (f" and {len(top) - 3} more" if len(top) > 3 else "")


def _local_operator_finding(seen: Cluster) -> Finding:
    if seen.operator:
        return fail_finding(
            "operator",
            seen.operator,
            "stop `ropeteam up` and start it again; for the reason: operator.log in its state folder",
        )
    return ok_finding("operator", "of the local cluster, ready")


def _operator_findings(seen: Cluster) -> Iterator[Finding]:
    """Findings of the installation: each Deployment with its leader, then restarts of pods."""
    found = seen.deployments.items
    if not found and seen.deployments.unknown:
        yield unknown_finding("operator", seen.deployments)
    elif not found:
        yield fail_finding(
            "operator",
            "no Deployment of it found: jobs are accepted, but wait",
            "install the chart (docs/install.md, Install)",
        )
    for each in found:
        yield _deployment_finding(each, seen.release)
        yield _leader_finding(each, seen)
    yield from _restart_findings(seen.pods)


def _deployment_finding(deployment: Object, release: str) -> Finding:
    """Finding about an operator's Deployment, first match wins: none ready, another release, some not ready.

    Its release is the image's tag, or the chart's label where the image has a digest or another tag."""
    what = f"operator {at(deployment, 'metadata.namespace')}/{name_of(deployment)}"
    wanted, ready = at(deployment, "spec.replicas") or 0, at(deployment, "status.readyReplicas") or 0
    image = str(_container(deployment).get("image"))
    label = str((at(deployment, "metadata.labels") or {}).get("app.kubernetes.io/version"))
    tag = "" if "@" in image else image.rpartition("/")[2].partition(":")[2]
    version = tag if re.match(r"v?\d", tag) else label
    look = f"kubectl -n {at(deployment, 'metadata.namespace')} describe pods -l {OPERATOR_LABELS}"
    if not ready:
        return fail_finding(what, f"0 of {wanted} ready, image {image}", look)
    if version.lstrip("v") != release:
        todo = "use the same release of both: each may write fields that the other does not know"
        return warn_finding(what, f"its release is {version}, this client's {release}", todo)
    if ready < wanted:
        return warn_finding(
            what, f"{ready} of {wanted} ready, image {image}", f"a standby is missing: {look}"
        )
    return ok_finding(what, f"{ready} of {wanted} ready, image {image}")


def _container(deployment: Object) -> Object:
    """The first container of a Deployment; an empty object, if it has none."""
    return dict((at(deployment, "spec.template.spec.containers") or [{}])[0])


def operator_flags(deployment: Object) -> dict[str, str]:
    """Command-line flags of an operator's Deployment, without dashes. A flag without a value is empty."""
    flags = (str(arg).lstrip("-").partition("=") for arg in _container(deployment).get("args") or ())
    return {flag: value for flag, _, value in flags}


def _leader_finding(deployment: Object, seen: Cluster) -> Finding:
    """Finding about the lease that the operators of a Deployment elect their leader by (their flag
    --lease)."""
    where = operator_flags(deployment).get("lease", "")
    what = f"leader {where}"
    lease = next((x for x in seen.leases.items if f"{at(x, 'metadata.namespace')}/{name_of(x)}" == where), {})
    if not lease and seen.leases.unknown:
        return unknown_finding(what, seen.leases)
    holder, renewed = at(lease, "spec.holderIdentity"), at(lease, "spec.renewTime")
    namespace = at(deployment, "metadata.namespace")
    todo = (
        "without a leader no job is reconciled; for the reason: "
        f"kubectl -n {namespace} logs -l {OPERATOR_LABELS} --prefix"
    )
    if not holder or not renewed:
        return fail_finding(what, "no operator is the leader", todo)
    pod = str(holder).rpartition("_")[0] or holder  # assembly.py: pod name, "_", random
    age = (seen.now - datetime.fromisoformat(str(renewed))).total_seconds()
    if age > _STALE_SECONDS:
        return fail_finding(what, f"{pod} has not renewed its lease for {age:.0f} s", todo)
    return ok_finding(what, f"{pod}, lease fresh")


def _restart_findings(read: Read) -> Iterator[Finding]:
    """Warnings about containers of operators that restart often; none, if the pods could not be read."""
    for pod in read.items:
        for state in at(pod, "status.containerStatuses") or ():
            count = state.get("restartCount", 0)
            if count >= _MANY_RESTARTS:
                last = at(state, "lastState.terminated.reason") or "its reason is no longer known"
                namespace = at(pod, "metadata.namespace")
                todo = f"kubectl -n {namespace} logs --previous {name_of(pod)}"
                yield warn_finding(
                    f"operator pod {name_of(pod)}", f"{count} restarts, the last: {last}", todo
                )


def _nodes_finding(read: Read) -> Finding:
    """Finding about nodes and the GPUs that ready ones offer; a warning, if there are no GPUs."""
    if read.unknown:
        return unknown_finding("nodes", read)
    ready = [node for node in read.items if _is_ready(node)]
    counts = [parse_quantity((at(node, "status.allocatable") or {}).get(GPU, 0)) or 0 for node in ready]
    ready_text = f"{len(ready)} of {len(read.items)} ready"
    if not any(counts):
        todo = (
            "for jobs with spec.gpusPerWorker install the driver and NVIDIA's device plugin or GPU operator"
        )
        return warn_finding("nodes", f"{ready_text}, none offers {GPU}", todo)
    offered = f"{GPU}: {sum(counts):.0f} on {sum(map(bool, counts))} of them"
    if len(ready) < len(read.items):
        return warn_finding("nodes", f"{ready_text}, {offered}", "kubectl get nodes")
    return ok_finding("nodes", f"{ready_text}, {offered}")


def _is_ready(node: Object) -> bool:
    states = {each.get("type"): each.get("status") for each in at(node, "status.conditions") or ()}
    return states.get("Ready") == "True"


def _storage_class_finding(read: Read) -> Finding:
    """Finding about the default StorageClass, which claims for checkpoints use if they name none."""
    what, mark = "storage class", "storageclass.kubernetes.io/is-default-class"
    if read.unknown:
        return unknown_finding(what, read)
    names = [
        name_of(each) for each in read.items if (at(each, "metadata.annotations") or {}).get(mark) == "true"
    ]
    if names:
        return ok_finding(
            what, f"{', '.join(names)} is the default; several workers need ReadWriteMany from it"
        )
    others = f"there are {', '.join(map(name_of, read.items))}" if read.items else "there is none"
    return warn_finding(what, f"no default; {others}", "claims for checkpoints must set storageClassName")


def _third_party_findings(read: Read) -> Iterator[Finding]:
    """Findings about kinds of the Prometheus Operator and of Kueue: no fault, but what may be used."""
    if read.unknown:
        yield unknown_finding("third-party kinds", read)
        return
    served = {name_of_group(group) for group in read.items}
    if MONITORING in served:
        yield ok_finding(
            "monitoring",
            "kinds of the Prometheus Operator are served: the chart's value metrics.serviceMonitor may be on",
        )
    else:
        off = "the chart's values metrics.serviceMonitor, .podMonitor and .prometheusRule must stay off"
        yield ok_finding("monitoring", f"kinds of the Prometheus Operator are not served: {off}")
    if KUEUE in served:
        yield ok_finding(
            "queues",
            f"Kueue is served; it does not queue a TrainingJob as a whole. With {QUEUE} in "
            "spec.template.metadata.labels, and its integration `pod` enabled for the namespace, it admits "
            "the pods one by one",
        )
    else:
        yield ok_finding("queues", f"Kueue is not served: the label {QUEUE} has no effect")
