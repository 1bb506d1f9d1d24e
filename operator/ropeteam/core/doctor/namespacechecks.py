"""Findings of `ropeteam doctor` about a namespace for jobs, and about the objects that one job needs there.

Limits: whether a network enforces policies cannot be read, nor the levels that an API server applies to
namespaces without labels, nor refusals of webhooks. Peers of policies are taken for ours if they may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ropeteam.api.conditions import ConditionType
from ropeteam.api.quantity import amount
from ropeteam.api.rule import at
from ropeteam.core.doctor.findings import Finding, Object, Read, fail, name_of, not_known, ok, warn
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Role
from ropeteam_trainer.contract import config as contract

_LEVEL = "pod-security.kubernetes.io/enforce"
_ENDED = ("Complete", "Failed", "Suspended", "Invalid")
_PEERS = 1024
"""Stand-in for the ports that torch chooses by itself."""


@dataclass(frozen=True)
class Namespace:
    """Objects that were read of a namespace. `guards_jobs`: the operator creates a NetworkPolicy for each
    job; None: not known."""

    name: str
    guards_jobs: bool | None = None
    itself: Read = field(default=Read())
    quotas: Read = field(default=Read())
    limits: Read = field(default=Read())
    policies: Read = field(default=Read())


@dataclass(frozen=True)
class Job:
    """Objects that were read of a job. `claims`, `secrets`: by the names in its spec."""

    name: str
    namespace: str
    itself: Read = field(default=Read())
    claims: dict[str, Read] = field(default_factory=dict)
    secrets: dict[str, Read] = field(default_factory=dict)
    service: Read = field(default=Read())


def of_namespace(seen: Namespace) -> Iterator[Finding]:
    yield _security(seen)
    if seen.quotas.served:
        yield from _quotas(seen.quotas)
        yield from _limits(seen.limits)
        yield from _network(seen)


def _security(seen: Namespace) -> Finding:
    what, read = f"namespace {seen.name}", seen.itself
    if read.unknown:
        return not_known(what, read)
    if not read.items:
        return fail(what, "does not exist", f"kubectl create namespace {seen.name}, or name another with -n")
    level = (at(read.items[0], "metadata.labels") or {}).get(_LEVEL, "")
    if level == "restricted":
        return ok(what, "Pod Security level restricted: jobs run as user 1000, images that need root fail")
    if level == "baseline":
        return ok(what, "Pod Security level baseline: hostPath and hostNetwork in a template are refused")
    return ok(what, f"exists, Pod Security level {level or 'not set'}")


def _quotas(read: Read) -> Iterator[Finding]:
    if read.unknown:
        yield not_known("quotas", read)
        return
    for quota in read.items:
        hard, used = at(quota, "status.hard") or {}, at(quota, "status.used") or {}
        full = [
            f"{name} {used.get(name, 0)} of {most}"
            for name, most in sorted(hard.items())
            if (amount(used.get(name, 0)) or 0) >= (amount(most) or 0)
        ]
        what = f"quota {name_of(quota)}"
        if full:
            yield warn(what, f"used up: {', '.join(full)}", "raise it, or free some of it: pods are refused")
        else:
            yield ok(what, f"capacity is left for {', '.join(sorted(hard)) or 'everything'}")
    if not read.items:
        yield ok("quotas", "none")


def _limits(read: Read) -> Iterator[Finding]:
    if read.unknown:
        yield not_known("limit ranges", read)
    for each in read.items:
        given = [
            row.get("default") for row in at(each, "spec.limits") or () if row.get("type") == "Container"
        ]
        defaults = [f"{name} {value}" for row in given for name, value in sorted((row or {}).items())]
        if defaults:
            todo = "set spec.resources of jobs, otherwise ranks are killed at that limit"
            yield warn(
                f"limit range {name_of(each)}", f"containers without limits get {', '.join(defaults)}", todo
            )


def _network(seen: Namespace) -> Iterator[Finding]:
    what, read = "network policies", seen.policies
    if read.unknown:
        yield not_known(what, read)
        return
    foreign = [each for each in read.items if _is_foreign(each) and _selects_ours(each)]
    blocked = list(_blocked_egress(foreign))
    if seen.guards_jobs is not True:
        blocked += _blocked_ingress(foreign)
    if not blocked:
        yield ok(what, "no foreign policy blocks the ports of jobs")
        return
    policies = ", ".join(sorted(map(name_of, foreign)))
    if seen.guards_jobs is None:
        policies += ", unless the operator creates policies for jobs"
    todo = "allow it in an additional policy (docs/install.md, Ports)"
    yield warn(what, f"pods of jobs cannot reach {', '.join(blocked)} because of {policies}", todo)


def _is_foreign(policy: Object) -> bool:
    return (at(policy, "metadata.labels") or {}).get(names.MANAGED_BY) != "ropeteam"


def _blocked_egress(policies: Iterable[Object]) -> Iterator[str]:
    rules = _rules(policies, "Egress", "egress")
    if rules is None:
        return
    if not _allows(rules, contract.COORDINATOR_AGENT_PORT, "to"):
        yield f"their coordinator (egress, port {contract.COORDINATOR_AGENT_PORT})"
    if not _allows(rules, _PEERS, "to"):
        yield "each other (egress, all ports)"
    if not _allows(rules, 53, "", "UDP"):
        yield "DNS (egress, port 53)"


def _blocked_ingress(policies: Iterable[Object]) -> Iterator[str]:
    rules = _rules(policies, "Ingress", "ingress")
    if rules is None:
        return
    if not _allows(rules, _PEERS, "from"):
        yield "each other (ingress, all ports)"
    if not _allows(rules, contract.COORDINATOR_HTTP_PORT, ""):
        yield f"the operator (ingress, port {contract.COORDINATOR_HTTP_PORT})"


def _rules(policies: Iterable[Object], kind: str, part: str) -> list[Object] | None:
    """Rules of all policies together; None: no policy restricts this direction."""
    found = [each for each in policies if kind in (at(each, "spec.policyTypes") or ["Ingress"])]
    return [rule for each in found for rule in at(each, f"spec.{part}") or ()] if found else None


def _allows(rules: Iterable[Object], port: int, peers: str, protocol: str = "TCP") -> bool:
    """Whether a rule allows the port. `peers`: the part of a rule that has to select our pods; empty: any
    peer."""
    return any(
        (not peers or _may_be_ours(rule.get(peers))) and _has_port(rule.get("ports"), port, protocol)
        for rule in rules
    )


def _may_be_ours(peers: Any) -> bool:
    return not peers or any(
        "ipBlock" in peer or "namespaceSelector" in peer or _matches(peer.get("podSelector"))
        for peer in peers
    )


def _has_port(ports: Any, wanted: int, protocol: str) -> bool:
    if not ports:
        return True
    of_protocol = [each for each in ports if each.get("protocol", "TCP") == protocol]
    numbers = [(each.get("port"), each.get("endPort") or each.get("port")) for each in of_protocol]
    return any(first is None or (type(first) is int and first <= wanted <= last) for first, last in numbers)


def _selects_ours(policy: Object) -> bool:
    return _matches(at(policy, "spec.podSelector"))


def _matches(selector: Any) -> bool:
    """Whether a selector matches the labels that all worker pods have; expressions are taken to match."""
    ours = {names.MANAGED_BY: "ropeteam", names.ROLE: Role.WORKER.value}
    return (at(selector, "matchLabels") or {}).items() <= ours.items()


def of_job(seen: Job) -> Iterator[Finding]:
    what, read = f"job {seen.name}", seen.itself
    if read.unknown:
        yield not_known(what, read)
        return
    if not read.items:
        yield fail(what, f"there is no TrainingJob {seen.name} in namespace {seen.namespace}", "check -n")
        return
    job = read.items[0]
    where = "" if seen.namespace == "default" else f" -n {seen.namespace}"
    yield from _conditions(what, job, f"ropeteam explain {seen.name}{where}")
    for name, claim in seen.claims.items():
        yield _claim(name, claim, job)
    for name, secret in seen.secrets.items():
        yield _secret(name, secret)
    if at(job, "status.state") not in (*_ENDED, None):
        yield _service(seen)


def _conditions(what: str, job: Object, explain: str) -> Iterator[Finding]:
    state = at(job, "status.state")
    if state is None:
        yield warn(what, "no operator has reconciled it yet", "see the operator above")
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
            yield fail(what, text, explain)
        elif condition == (ConditionType.DEGRADED.value, "True"):
            found = True
            yield warn(what, text, explain)
    if state and not found:
        yield ok(what, f"{state}", explain)


def _claim(name: str, read: Read, job: Object) -> Finding:
    what = f"claim {name}"
    if read.unknown:
        return not_known(what, read)
    if not read.items:
        return fail(what, "does not exist, and pods that mount it wait", "create the PersistentVolumeClaim")
    claim = read.items[0]
    phase, modes = at(claim, "status.phase"), at(claim, "spec.accessModes") or ()
    several = (at(job, "spec.workers") or 1) > 1
    if several and "ReadWriteMany" not in modes:
        todo = "ReadWriteMany is needed unless all pods run on one node"
        return warn(what, f"{phase}, {', '.join(modes)}, and several workers mount it", todo)
    if phase != "Bound":
        return warn(what, f"{phase}: no volume yet", f"kubectl describe pvc {name}")
    return ok(what, f"Bound, {', '.join(modes)}")


def _secret(name: str, read: Read) -> Finding:
    what = f"pull secret {name}"
    if read.unknown:
        return not_known(what, read)
    if not read.items:
        return warn(what, "does not exist: images that need it are not pulled", "create it in the namespace")
    return ok(what, "exists")


def _service(seen: Job) -> Finding:
    what = f"service {seen.name}"
    if seen.service.unknown:
        return not_known(what, seen.service)
    if not seen.service.items:
        return warn(what, "does not exist: agents cannot find their coordinator", "the operator creates it")
    return ok(what, "exists")
