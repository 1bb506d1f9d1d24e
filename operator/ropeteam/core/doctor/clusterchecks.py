"""Findings of `ropeteam doctor` about a cluster and the installation there.

Limits: values of the chart are not read, only the objects that they lead to. The age of a lease is measured
by the API server's clock, so one that has gone stale within a minute may still be called fresh. Fields and
rules of a definition are compared, not other parts, which an API server may write in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ropeteam.api.crd import job_schema
from ropeteam.api.job import GPU, GROUP, VERSION
from ropeteam.api.quantity import amount
from ropeteam.api.rule import at
from ropeteam.core.doctor.findings import Finding, Object, Read, fail, name_of, not_known, ok, warn
from ropeteam.core.seen.unservedrequests import KUEUE

OLDEST = (1, 30)
"""Oldest Kubernetes that the chart supports."""
MONITORING = "monitoring.coreos.com"
_STALE_SECONDS = 60
_RESTARTS = 5


@dataclass(frozen=True)
class Cluster:
    """Objects that were read of a cluster. `where`: its kubeconfig; `release` of this client; `now` by the
    API server's clock. `local`: it is of `ropeteam up`, and `operator` is the problem of its operator.
    """

    where: str
    release: str
    version: str
    now: datetime
    local: bool = False
    operator: str = ""
    groups: Read = field(default=Read())
    definition: Read = field(default=Read())
    deployments: Read = field(default=Read())
    pods: Read = field(default=Read())
    leases: Read = field(default=Read())
    nodes: Read = field(default=Read())
    classes: Read = field(default=Read())


def of_cluster(seen: Cluster) -> Iterator[Finding]:
    yield _version(seen)
    yield _definition(seen)
    if seen.local:
        yield _local_operator(seen)
        return
    yield from _operators(seen)
    yield _nodes(seen.nodes)
    yield _classes(seen.classes)
    yield from _kinds(seen.groups)


def _version(seen: Cluster) -> Finding:
    found = re.match(r"v(\d+)\.(\d+)", seen.version)
    if found is None:
        return warn("cluster", f"of {seen.where}: answers, but does not report its version")
    if (int(found[1]), int(found[2])) < OLDEST:
        return fail(
            "cluster",
            f"of {seen.where}: Kubernetes {seen.version} is too old",
            f"upgrade to {OLDEST[0]}.{OLDEST[1]} or newer",
        )
    return ok("cluster", f"of {seen.where}: answers, Kubernetes {seen.version}")


def _definition(seen: Cluster) -> Finding:
    what, read = "definition", seen.definition
    if read.unknown:
        served = {name_of_group(group) for group in seen.groups.items}
        if seen.groups.unknown or GROUP in served:
            return not_known(what, read)
    if read.unknown or not read.items:
        todo = "install the chart, or `ropeteam crd | kubectl apply -f -`"
        return fail(what, "the cluster does not serve the kind TrainingJob", todo)
    versions = {each["name"]: each for each in at(read.items[0], "spec.versions") or ()}
    if VERSION not in versions:
        return fail(what, f"no version {VERSION}, but {', '.join(versions)}", "use the release of the chart")
    theirs, ours = at(versions[VERSION], "schema.openAPIV3Schema") or {}, job_schema()
    missing, unknown = _fields(ours) - _fields(theirs), _fields(theirs) - _fields(ours)
    if missing:
        todo = "upgrade it (`ropeteam crd | kubectl apply -f -`): unknown fields are dropped silently"
        return warn(what, f"older than this client: it does not have {_some_paths(missing)}", todo)
    if unknown:
        todo = "upgrade this client: it neither shows nor checks these fields"
        return warn(what, f"newer than this client: it has {_some_paths(unknown)}", todo)
    if _rules(theirs) != _rules(ours):
        return warn(what, "same fields, but other rules than this client's", "upgrade the older of the two")
    return ok(what, f"TrainingJob {VERSION}, the same as in this client")


def name_of_group(group: Object) -> str:
    return str(group.get("name"))


def _fields(schema: Any, path: str = "") -> frozenset[str]:
    """Paths of all fields; a list and its items have one."""
    if not isinstance(schema, dict):
        return frozenset()
    found = {path} - {""}
    for name, nested in (schema.get("properties") or {}).items():
        found |= _fields(nested, f"{path}.{name}".lstrip("."))
    for name in ("items", "additionalProperties"):
        found |= _fields(schema.get(name), path)
    return frozenset(found)


def _rules(schema: Any) -> frozenset[str]:
    """CEL rules of a schema."""
    if not isinstance(schema, dict):
        return frozenset()
    own = (str(each["rule"]) for each in schema.get("x-kubernetes-validations") or ())
    return frozenset(own).union(*map(_rules, schema.values()))


def _some_paths(paths: frozenset[str]) -> str:
    """Text of some paths; a path stands for all below it."""
    top = sorted(path for path in paths if path.rpartition(".")[0] not in paths)
    return ", ".join(top[:3]) + (f" and {len(top) - 3} more" if len(top) > 3 else "")


def _local_operator(seen: Cluster) -> Finding:
    if seen.operator:
        return fail("operator", seen.operator, "stop `ropeteam up`, start it again; see operator.log there")
    return ok("operator", "of the local cluster, ready")


def _operators(seen: Cluster) -> Iterator[Finding]:
    found = seen.deployments.items
    if not found and seen.deployments.unknown:
        yield not_known("operator", seen.deployments)
    elif not found:
        yield fail(
            "operator", "no Deployment of it found: jobs are accepted, but wait", "docs/install.md, Install"
        )
    for each in found:
        yield _operator(each, seen.release)
        yield _lease(each, seen)
    yield from _pods(seen.pods)


def _operator(deployment: Object, release: str) -> Finding:
    what = f"operator {at(deployment, 'metadata.namespace')}/{name_of(deployment)}"
    wanted, ready = at(deployment, "spec.replicas") or 0, at(deployment, "status.readyReplicas") or 0
    image = str(_container(deployment).get("image"))
    label = str((at(deployment, "metadata.labels") or {}).get("app.kubernetes.io/version"))
    tag = "" if "@" in image else image.rpartition("/")[2].partition(":")[2]
    version = tag if re.match(r"v?\d", tag) else label
    if not ready:
        look = f"kubectl -n {at(deployment, 'metadata.namespace')} describe pods"
        return fail(what, f"0 of {wanted} ready, image {image}", look)
    if version.lstrip("v") != release:
        todo = "use the same release of both: each may write fields that the other does not know"
        return warn(what, f"its release is {version}, this client's {release}", todo)
    if ready < wanted:
        return warn(what, f"{ready} of {wanted} ready, image {image}", "one is enough until it is lost")
    return ok(what, f"{ready} of {wanted} ready, image {image}")


def _container(deployment: Object) -> Object:
    return dict((at(deployment, "spec.template.spec.containers") or [{}])[0])


def arguments(deployment: Object) -> dict[str, str]:
    """Command-line flags of an operator."""
    flags = (str(arg).lstrip("-").partition("=") for arg in _container(deployment).get("args") or ())
    return {flag: value for flag, _, value in flags}


def _lease(deployment: Object, seen: Cluster) -> Finding:
    where = arguments(deployment).get("lease", "")
    what = f"leader {where}"
    lease = next((x for x in seen.leases.items if f"{at(x, 'metadata.namespace')}/{name_of(x)}" == where), {})
    if not lease and seen.leases.unknown:
        return not_known(what, seen.leases)
    holder, renewed = at(lease, "spec.holderIdentity"), at(lease, "spec.renewTime")
    todo = "read the log of the operators: without a leader no job is reconciled"
    if not holder or not renewed:
        return fail(what, "no operator is the leader", todo)
    pod = str(holder).rpartition("_")[0] or holder
    age = (seen.now - datetime.fromisoformat(str(renewed))).total_seconds()
    if age > _STALE_SECONDS:
        return fail(what, f"{pod} has not renewed its lease for {age:.0f} s", todo)
    return ok(what, f"{pod}, lease fresh")


def _pods(read: Read) -> Iterator[Finding]:
    for pod in read.items:
        for state in at(pod, "status.containerStatuses") or ():
            count = state.get("restartCount", 0)
            if count >= _RESTARTS:
                last = at(state, "lastState.terminated.reason") or "its reason is no longer known"
                namespace = at(pod, "metadata.namespace")
                todo = f"kubectl -n {namespace} logs --previous {name_of(pod)}"
                yield warn(f"operator pod {name_of(pod)}", f"{count} restarts, the last: {last}", todo)


def _nodes(read: Read) -> Finding:
    if read.unknown:
        return not_known("nodes", read)
    ready = [node for node in read.items if _is_ready(node)]
    counts = [amount((at(node, "status.allocatable") or {}).get(GPU, 0)) or 0 for node in ready]
    ready_text = f"{len(ready)} of {len(read.items)} ready"
    if not any(counts):
        todo = (
            "for jobs with spec.gpusPerWorker install the driver and NVIDIA's device plugin or GPU operator"
        )
        return warn("nodes", f"{ready_text}, none offers {GPU}", todo)
    offered = f"{GPU}: {sum(counts):.0f} on {sum(map(bool, counts))} of them"
    if len(ready) < len(read.items):
        return warn("nodes", f"{ready_text}, {offered}", "kubectl get nodes")
    return ok("nodes", f"{ready_text}, {offered}")


def _is_ready(node: Object) -> bool:
    states = {each.get("type"): each.get("status") for each in at(node, "status.conditions") or ()}
    return states.get("Ready") == "True"


def _classes(read: Read) -> Finding:
    what, mark = "storage class", "storageclass.kubernetes.io/is-default-class"
    if read.unknown:
        return not_known(what, read)
    names = [
        name_of(each) for each in read.items if (at(each, "metadata.annotations") or {}).get(mark) == "true"
    ]
    if names:
        return ok(what, f"{', '.join(names)} is the default; several workers need ReadWriteMany from it")
    others = f"there are {', '.join(map(name_of, read.items))}" if read.items else "there is none"
    return warn(what, f"no default; {others}", "claims for checkpoints must set storageClassName")


def _kinds(read: Read) -> Iterator[Finding]:
    if read.unknown:
        yield not_known("third-party kinds", read)
        return
    served = {name_of_group(group) for group in read.items}
    if MONITORING in served:
        yield ok(
            "monitoring", "kinds of the Prometheus Operator are served: metrics.serviceMonitor may be on"
        )
    else:
        off = "metrics.serviceMonitor, .podMonitor and .prometheusRule of the chart must stay off"
        yield ok("monitoring", f"kinds of the Prometheus Operator are not served: {off}")
    if KUEUE in served:
        yield ok("queues", "Kueue is served; its label works in spec.template.metadata.labels only")
    else:
        yield ok("queues", "Kueue is not served: a label that names a queue has no effect")
