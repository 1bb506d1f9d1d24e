"""Findings of `ropeteam doctor` about a namespace for jobs, and about the objects that one job needs there.

Limits: whether a network enforces policies cannot be read, nor the levels that an API server applies to
namespaces without labels, nor refusals of webhooks. Peers of policies are taken for ours if they may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ropeteam.api.conditions import ConditionType
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
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Role
from ropeteam_trainer.contract import config as contract

_ENFORCED_LEVEL = "pod-security.kubernetes.io/enforce"
_STATES_WITHOUT_SERVICE = ("Complete", "Failed", "Suspended", "Invalid")
"""Values of status.state of a job that needs no Service, or may have none."""
_ANY_HIGH_PORT = 1024
"""Stands for the ports that torch chooses by itself: a policy that allows them all allows this one."""


@dataclass(frozen=True)
class Namespace:
    """Objects that were read of a namespace."""

    name: str
    guards_jobs: bool | None = None
    """Whether the operator creates a NetworkPolicy for each job, so that ingress is allowed. None:
    unknown."""
    itself: Read = field(default=Read())
    quotas: Read = field(default=Read())
    limits: Read = field(default=Read())
    policies: Read = field(default=Read())


@dataclass(frozen=True)
class Job:
    """Objects that were read of a job. `claims` and pull `secrets`: by the names in its spec."""

    name: str
    namespace: str
    itself: Read = field(default=Read())
    claims: dict[str, Read] = field(default_factory=dict)
    secrets: dict[str, Read] = field(default_factory=dict)
    service: Read = field(default=Read())


def namespace_findings(seen: Namespace) -> Iterator[Finding]:
    """Findings of a namespace for jobs. A local cluster serves no quotas, and then nothing but Pod Security
    is looked at."""
    yield _pod_security_finding(seen)
    if seen.quotas.served:
        yield from _quota_findings(seen.quotas)
        yield from _limit_range_findings(seen.limits)
        yield from _network_policy_findings(seen)


def _pod_security_finding(seen: Namespace) -> Finding:
    """Finding about the namespace and the Pod Security level that its label enforces."""
    what, read = f"namespace {seen.name}", seen.itself
    if read.unknown:
        return unknown_finding(what, read)
    if not read.items:
        return fail_finding(
            what, "does not exist", f"kubectl create namespace {seen.name}, or name another with -n"
        )
    level = (at(read.items[0], "metadata.labels") or {}).get(_ENFORCED_LEVEL, "")
    if level == "restricted":
        return ok_finding(
            what, "Pod Security level restricted: jobs run as user 1000, images that need root fail"
        )
    if level == "baseline":
        return ok_finding(
            what, "Pod Security level baseline: hostPath and hostNetwork in a template are refused"
        )
    return ok_finding(what, f"exists, Pod Security level {level or 'not set'}")


def _quota_findings(read: Read) -> Iterator[Finding]:
    """A finding for each ResourceQuota: a warning, if a resource is used up."""
    if read.unknown:
        yield unknown_finding("quotas", read)
        return
    for quota in read.items:
        hard, used = at(quota, "status.hard") or {}, at(quota, "status.used") or {}
        full = [
            f"{name} {used.get(name, 0)} of {most}"
            for name, most in sorted(hard.items())
            if (parse_quantity(used.get(name, 0)) or 0) >= (parse_quantity(most) or 0)
        ]
        what = f"quota {name_of(quota)}"
        if full:
            yield warn_finding(
                what, f"used up: {', '.join(full)}", "raise it, or free some of it: pods are refused"
            )
        else:
            yield ok_finding(what, f"capacity is left for {', '.join(sorted(hard)) or 'everything'}")
    if not read.items:
        yield ok_finding("quotas", "none")


def _limit_range_findings(read: Read) -> Iterator[Finding]:
    """A warning for each LimitRange with default limits of containers; none, if there is no such."""
    if read.unknown:
        yield unknown_finding("limit ranges", read)
    for each in read.items:
        given = [
            row.get("default") for row in at(each, "spec.limits") or () if row.get("type") == "Container"
        ]
        defaults = [f"{name} {value}" for row in given for name, value in sorted((row or {}).items())]
        if defaults:
            todo = "set spec.resources of jobs, otherwise ranks are killed at that limit"
            yield warn_finding(
                f"limit range {name_of(each)}", f"containers without limits get {', '.join(defaults)}", todo
            )


def _network_policy_findings(seen: Namespace) -> Iterator[Finding]:
    """One finding about policies that are not the operator's: which ports of workers and coordinators they
    block. Limit: policies that select parameter servers alone, egress of coordinators and ingress from agents
    are not looked at.

    Policies add up, so the operator's own allow ingress. Egress they do not restrict, so another policy
    may."""
    what, read = "network policies", seen.policies
    if read.unknown:
        yield unknown_finding(what, read)
        return
    foreign = [each for each in read.items if _is_foreign(each)]
    of_workers = [each for each in foreign if _selects(at(each, "spec.podSelector"), Role.WORKER)]
    of_coordinators = [each for each in foreign if _selects(at(each, "spec.podSelector"), Role.COORDINATOR)]
    guarded = seen.guards_jobs is True
    egress = list(_blocked_egress(of_workers))
    to_workers = [] if guarded else list(_blocked_worker_ingress(of_workers))
    to_coordinators = [] if guarded else list(_blocked_coordinator_ingress(of_coordinators))
    blocked = [*egress, *to_workers, *to_coordinators]
    if not blocked:
        yield ok_finding(what, "no foreign policy blocks the ports of jobs")
        return
    causes = [*(of_workers if egress or to_workers else ()), *(of_coordinators if to_coordinators else ())]
    policies = ", ".join(sorted({name_of(each) for each in causes}))
    if seen.guards_jobs is None and (to_workers or to_coordinators):
        policies += ", unless the operator creates policies for jobs"
    todo = "allow it in an additional policy (docs/install.md, Ports)"
    yield warn_finding(what, f"{', '.join(blocked)}, because of {policies}", todo)


def _is_foreign(policy: Object) -> bool:
    return (at(policy, "metadata.labels") or {}).get(names.MANAGED_BY) != "ropeteam"


def _blocked_egress(policies: Iterable[Object]) -> Iterator[str]:
    """Texts of what workers cannot connect to. `policies`: those that select workers. Empty: egress is
    allowed, or no policy restricts it."""
    rules = _joint_rules(policies, "Egress", "egress")
    if rules is None:
        return
    if not _is_allowed(rules, contract.COORDINATOR_AGENT_PORT, "to"):
        yield f"workers cannot reach their coordinator (egress, port {contract.COORDINATOR_AGENT_PORT})"
    if not _is_allowed(rules, _ANY_HIGH_PORT, "to"):
        yield "workers cannot reach each other (egress, all ports)"
    if not _is_allowed(rules, 53, "", "UDP"):
        yield "workers cannot reach DNS (egress, port 53)"


def _blocked_worker_ingress(policies: Iterable[Object]) -> Iterator[str]:
    """Text if workers cannot connect to workers. `policies`: those that select workers. Empty: ingress is
    allowed, or no policy restricts it."""
    rules = _joint_rules(policies, "Ingress", "ingress")
    if rules is not None and not _is_allowed(rules, _ANY_HIGH_PORT, "from"):
        yield "workers cannot reach each other (ingress, all ports)"


def _blocked_coordinator_ingress(policies: Iterable[Object]) -> Iterator[str]:
    """Text if the operator cannot connect to coordinators. `policies`: those that select coordinators. Empty:
    ingress is allowed, or no policy restricts it."""
    rules = _joint_rules(policies, "Ingress", "ingress")
    if rules is not None and not _is_allowed(rules, contract.COORDINATOR_HTTP_PORT, ""):
        yield f"the operator cannot reach coordinators (ingress, port {contract.COORDINATOR_HTTP_PORT})"


def _joint_rules(policies: Iterable[Object], kind: str, part: str) -> list[Object] | None:
    """Rules of all policies together: traffic that one allows is allowed. None: no policy restricts this
    direction. `kind`: Ingress or Egress, as in policyTypes; `part`: its field of the spec."""
    found = [each for each in policies if kind in (at(each, "spec.policyTypes") or ["Ingress"])]
    return [rule for each in found for rule in at(each, f"spec.{part}") or ()] if found else None


def _is_allowed(rules: Iterable[Object], port: int, peers: str, protocol: str = "TCP") -> bool:
    """Whether a rule allows the port. `peers`: the part of a rule that has to select workers, `from` or `to`;
    empty: any peer."""
    return any(
        (not peers or _may_select_workers(rule.get(peers)))
        and _includes_port(rule.get("ports"), port, protocol)
        for rule in rules
    )


def _may_select_workers(peers: Any) -> bool:
    """Whether a rule's peers may include workers. No peers are all peers; addresses and namespaces are taken
    to include them, since neither is known here."""
    return not peers or any(
        "ipBlock" in peer or "namespaceSelector" in peer or _selects(peer.get("podSelector"), Role.WORKER)
        for peer in peers
    )


def _includes_port(ports: Any, wanted: int, protocol: str) -> bool:
    """Whether a rule's ports include this one. No ports are all ports; a named port is none of ours."""
    if not ports:
        return True
    of_protocol = [each for each in ports if each.get("protocol", "TCP") == protocol]
    numbers = [(each.get("port"), each.get("endPort") or each.get("port")) for each in of_protocol]
    return any(first is None or (type(first) is int and first <= wanted <= last) for first, last in numbers)


def _selects(selector: Any, role: Role) -> bool:
    """Whether a label selector matches the labels that all our pods of this role have. Its matchExpressions
    are not read: they count as matching."""
    ours = {names.MANAGED_BY: "ropeteam", names.ROLE: role.value}
    return (at(selector, "matchLabels") or {}).items() <= ours.items()


def job_findings(seen: Job) -> Iterator[Finding]:
    """Findings of one job: its conditions, its claims, pull secrets, and the Service, if it may need one."""
    what, read = f"job {seen.name}", seen.itself
    if read.unknown:
        yield unknown_finding(what, read)
        return
    if not read.items:
        yield fail_finding(
            what,
            f"there is no TrainingJob {seen.name} in namespace {seen.namespace}",
            "list jobs: kubectl get tj -A",
        )
        return
    job = read.items[0]
    where = "" if seen.namespace == "default" else f" -n {seen.namespace}"
    yield from _condition_findings(what, job, f"ropeteam explain {seen.name}{where}")
    for name, claim in seen.claims.items():
        yield _claim_finding(seen, name, claim)
    for name, secret in seen.secrets.items():
        yield _pull_secret_finding(seen, name, secret)
    if at(job, "status.state") not in (*_STATES_WITHOUT_SERVICE, None):
        yield _service_finding(seen)


def _condition_findings(what: str, job: Object, explain: str) -> Iterator[Finding]:
    """A finding for each condition that shows a fault, or else one with the job's state. `explain`: the
    command that shows more."""
    state = at(job, "status.state")
    if state is None:
        yield warn_finding(what, "no operator has reconciled it yet", "see the operator above")
    fatal = {
        ("Accepted", "False"),
        (ConditionType.FAILED.value, "True"),
        (ConditionType.STALLED.value, "True"),
    }
    found = False
    for each in at(job, "status.conditions") or ():
        condition = each.get("type"), each.get("status")
        text = f"{each.get('type')}={each.get('status')}, {each.get('reason')}: {each.get('message')}"
        if condition in fatal:
            found = True
            yield fail_finding(what, text, explain)
        elif condition == (ConditionType.DEGRADED.value, "True"):
            found = True
            yield warn_finding(what, text, explain)
    if state and not found:
        yield ok_finding(what, f"{state}", explain)


def _claim_finding(seen: Job, name: str, read: Read) -> Finding:
    """Finding about a PersistentVolumeClaim of the job. `seen`: with the job's object."""
    what = f"claim {name}"
    if read.unknown:
        return unknown_finding(what, read)
    if not read.items:
        return fail_finding(
            what,
            "does not exist, and pods that mount it wait",
            f"create the PersistentVolumeClaim in namespace {seen.namespace}",
        )
    claim = read.items[0]
    phase, modes = at(claim, "status.phase"), at(claim, "spec.accessModes") or ()
    several = (at(seen.itself.items[0], "spec.workers") or 1) > 1
    if several and "ReadWriteMany" not in modes:
        todo = "ReadWriteMany is needed unless all pods run on one node"
        return warn_finding(what, f"{phase}, {', '.join(modes)}, and several workers mount it", todo)
    if phase != "Bound":
        return warn_finding(
            what, f"{phase}: no volume yet", f"kubectl describe pvc -n {seen.namespace} {name}"
        )
    return ok_finding(what, f"Bound, {', '.join(modes)}")


def _pull_secret_finding(seen: Job, name: str, read: Read) -> Finding:
    """Finding about a Secret of spec.template.spec.imagePullSecrets; only its metadata was read."""
    what = f"pull secret {name}"
    if read.unknown:
        return unknown_finding(what, read)
    if not read.items:
        return warn_finding(
            what,
            "does not exist: images that need it are not pulled",
            f"kubectl create secret docker-registry {name} -n {seen.namespace} --docker-server=...",
        )
    return ok_finding(what, "exists")


def _service_finding(seen: Job) -> Finding:
    """Finding about the Service in front of the job's coordinator."""
    what = f"service {seen.name}"
    if seen.service.unknown:
        return unknown_finding(what, seen.service)
    if not seen.service.items:
        return warn_finding(
            what,
            "does not exist: agents cannot find their coordinator",
            "the operator creates it: see the operator above",
        )
    return ok_finding(what, "exists")
