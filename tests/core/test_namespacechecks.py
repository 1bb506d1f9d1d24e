"""Findings of `ropeteam doctor` about a namespace, and of a job in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ropeteam.core.doctor.findings import Read
from ropeteam.core.doctor.namespacechecks import Job, Namespace, job_findings, namespace_findings

FORBIDDEN = Read(unknown="you may not read them")
TEAM = Namespace("team", True, Read(({"metadata": {"name": "team"}},)))
Object = dict[str, Any]


def of_namespace(**seen: Any) -> list[str]:
    return [str(found) for found in namespace_findings(replace(TEAM, **seen))]


def named(name: str, **parts: Any) -> Read:
    return Read(({"metadata": {"name": name}, **parts},))


def test_an_empty_namespace_is_ok() -> None:
    assert of_namespace() == [
        "ok   namespace team: exists, Pod Security level not set",
        "ok   quotas: none",
        "ok   network policies: no foreign policy blocks the ports of jobs",
    ]


@pytest.mark.parametrize(
    ("level", "line"),
    [
        ("restricted", "ok   namespace team: Pod Security level restricted: jobs run as user 1000"),
        ("baseline", "ok   namespace team: Pod Security level baseline: hostPath and hostNetwork"),
        ("privileged", "ok   namespace team: exists, Pod Security level privileged"),
    ],
)
def test_a_level_names_what_is_refused(level: str, line: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level}
    assert of_namespace(itself=Read(({"metadata": {"labels": labels}},)))[0].startswith(line)


def test_what_may_not_be_read_is_not_known_and_no_failure() -> None:
    lines = of_namespace(itself=FORBIDDEN, quotas=FORBIDDEN, limits=FORBIDDEN, policies=FORBIDDEN)
    assert lines == [
        f"warn {what}: not known: you may not read them"
        for what in ("namespace team", "quotas", "limit ranges", "network policies")
    ]


def test_a_namespace_that_is_not_there_is_a_failure() -> None:
    assert of_namespace(itself=Read())[0] == (
        "FAIL namespace team: does not exist; kubectl create namespace team, or name another with -n"
    )


def test_a_server_without_quotas_has_none_of_the_rest() -> None:
    assert len(of_namespace(quotas=Read(served=False))) == 1


def test_a_quota_that_is_used_up_is_reported_by_its_resource() -> None:
    hard = {"pods": "10", "requests.memory": "1Gi", "requests.nvidia.com/gpu": "8"}
    used = {"pods": "3", "requests.memory": "1024Mi"}
    full = of_namespace(quotas=named("small", status={"hard": hard, "used": used}))
    assert full[1].startswith("warn quota small: used up: requests.memory 1024Mi of 1Gi; raise it")
    unused = of_namespace(quotas=named("large", status={"hard": hard}))
    assert (
        unused[1] == "ok   quota large: capacity is left for pods, requests.memory, requests.nvidia.com/gpu"
    )
    assert of_namespace(quotas=named("new"))[1] == "ok   quota new: capacity is left for everything"


def test_a_limit_range_that_gives_limits_is_reported() -> None:
    rows = [{"type": "Pod"}, {"type": "Container"}, {"type": "Container", "default": {"memory": "512Mi"}}]
    given = of_namespace(limits=named("small", spec={"limits": rows}))
    assert given[2].startswith("warn limit range small: containers without limits get memory 512Mi; set")
    assert of_namespace(limits=named("none", spec={"limits": rows[:2]})) == of_namespace()


OURS = {"matchLabels": {"app.kubernetes.io/managed-by": "ropeteam"}}


def policies(*specs: Object) -> Read:
    """p0, p1 ... of somebody."""
    return Read(
        tuple(
            {"metadata": {"name": f"p{number}"}, "spec": {"podSelector": {}, **spec}}
            for number, spec in enumerate(specs)
        )
    )


def policy_finding(read: Read, guards: bool | None = True) -> str:
    return of_namespace(policies=read, guards_jobs=guards)[-1]


def test_egress_that_is_denied_isolates_workers() -> None:
    line = policy_finding(policies({"policyTypes": ["Egress"]}))
    assert line == (
        "warn network policies: workers cannot reach their coordinator (egress, port 29401), workers cannot"
        " reach each other (egress, all ports), workers cannot reach DNS (egress, port 53), because of p0;"
        " allow it in an additional policy (docs/install.md, Ports)"
    )


DNS: Object = {"ports": [{"port": 53, "protocol": "UDP"}]}


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ([{}], ""),
        ([DNS, {"to": [{"podSelector": {}}]}], ""),
        ([DNS, {"to": [{"podSelector": OURS}]}], ""),
        ([DNS, {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], ""),
        ([DNS, {"to": [{"namespaceSelector": {}}]}], ""),
        ([DNS, {"ports": [{"port": 1024, "endPort": 65535}]}], ""),
        ([DNS, {"ports": [{}]}], ""),
        ([DNS, {"ports": [{"port": 29401}]}], "each other (egress, all ports)"),
        (
            [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}, {"protocol": "TCP"}]}],
            "DNS (egress, port 53)",
        ),
        (
            [DNS, {"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}],
            "their coordinator (egress, port 29401), workers cannot reach each other",
        ),
    ],
)
def test_what_egress_opens_is_not_blocked(rules: list[Object], missing: str) -> None:
    line = policy_finding(policies({"policyTypes": ["Egress"], "egress": rules}))
    assert (f"cannot reach {missing}" in line) if missing else line.startswith("ok "), line


def test_ingress_is_opened_by_the_policies_that_the_operator_makes() -> None:
    deny = policies({}, {"policyTypes": ["Ingress"]})
    assert policy_finding(deny).startswith("ok ")
    assert policy_finding(deny, guards=False).startswith(
        "warn network policies: workers cannot reach each other (ingress, all ports), the operator cannot"
        " reach coordinators (ingress, port 29402), because of p0, p1; "
    )
    assert "because of p0, p1, unless the operator creates policies for jobs; " in policy_finding(
        deny, guards=None
    )
    assert policy_finding(policies({}, {"ingress": [{}]}), guards=False).startswith("ok ")
    assert policy_finding(policies({"policyTypes": ["Egress"], "egress": [{}]}), guards=False).startswith(
        "ok "
    )


def test_only_policies_that_block_are_named() -> None:
    """p1 selects coordinators, and allows all; p0 denies workers egress, which no policy of the operator's
    allows again."""
    of_coordinators = {"podSelector": {"matchLabels": {"ropeteam.dev/role": "coordinator"}}, "ingress": [{}]}
    line = policy_finding(policies({"policyTypes": ["Egress"]}, of_coordinators), guards=None)
    assert "because of p0; " in line


@pytest.mark.parametrize(
    ("role", "blocked", "allowed"),
    [("worker", "workers cannot", "operator cannot"), ("coordinator", "operator cannot", "workers cannot")],
)
def test_ingress_is_blocked_for_the_pods_that_a_policy_selects(role: str, blocked: str, allowed: str) -> None:
    selector = {"matchLabels": {"ropeteam.dev/role": role}}
    line = policy_finding(policies({"podSelector": selector, "policyTypes": ["Ingress"]}), guards=False)
    assert blocked in line
    assert allowed not in line


def test_policies_of_jobs_and_those_of_other_pods_block_nothing() -> None:
    job = {"metadata": {"name": "j", "labels": OURS["matchLabels"]}, "spec": {"policyTypes": ["Egress"]}}
    database = {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Egress"]}
    assert policy_finding(Read((job, *policies(database).items))).startswith("ok ")


def condition(kind: str, status: str) -> Object:
    return {"type": kind, "status": status, "reason": "Why", "message": "Because."}


def a_job(state: str | None, *conditions: Object, workers: int = 2) -> Read:
    status = {"state": state, "conditions": list(conditions)} if state else {}
    return Read(({"spec": {"workers": workers}, "status": status},))


def of_job(read: Read, namespace: str = "default", **seen: Any) -> list[str]:
    return [str(found) for found in job_findings(Job("mnist", namespace, read, **seen))]


def test_a_job_is_shown_by_its_state_or_what_is_wrong() -> None:
    well = a_job("Complete", condition("Accepted", "True"), condition("Failed", "False"))
    assert of_job(well) == ["ok   job mnist: Complete; ropeteam explain mnist"]
    bad = a_job("Invalid", condition("Accepted", "False"), condition("Degraded", "True"))
    assert of_job(bad, "lab") == [
        "FAIL job mnist: Accepted=False, Why: Because; ropeteam explain mnist -n lab",
        "warn job mnist: Degraded=True, Why: Because; ropeteam explain mnist -n lab",
    ]
    assert of_job(a_job(None)) == [
        "warn job mnist: no operator has reconciled it yet; see the operator above"
    ]


def test_a_job_that_is_not_there_or_may_not_be_read() -> None:
    assert of_job(Read()) == [
        "FAIL job mnist: there is no TrainingJob mnist in namespace default; list jobs: kubectl get tj -A"
    ]
    assert of_job(FORBIDDEN) == ["warn job mnist: not known: you may not read them"]


def a_claim(phase: str = "Bound", mode: str = "ReadWriteMany") -> Read:
    return Read(({"spec": {"accessModes": [mode]}, "status": {"phase": phase}},))


@pytest.mark.parametrize(
    ("claim", "workers", "line"),
    [
        (a_claim(), 2, "ok   claim c: Bound, ReadWriteMany"),
        (a_claim(mode="ReadWriteOnce"), 1, "ok   claim c: Bound, ReadWriteOnce"),
        (
            a_claim(mode="ReadWriteOnce"),
            2,
            "warn claim c: Bound, ReadWriteOnce, and several workers mount it; ",
        ),
        (a_claim("Pending"), 2, "warn claim c: Pending: no volume yet; kubectl describe pvc -n default c"),
        (Read(), 2, "FAIL claim c: does not exist, and pods that mount it wait; create"),
        (FORBIDDEN, 2, "warn claim c: not known: you may not read them"),
    ],
)
def test_claims_of_a_job(claim: Read, workers: int, line: str) -> None:
    lines = of_job(a_job("Complete", workers=workers), claims={"c": claim})
    assert lines[1].startswith(line), lines


def test_pull_secrets_and_the_service_of_a_job() -> None:
    there = Read(({},))
    secrets = {"a": there, "b": Read(), "c": FORBIDDEN}
    assert of_job(a_job("Running"), secrets=secrets, service=there)[1:] == [
        "ok   pull secret a: exists",
        "warn pull secret b: does not exist: images that need it are not pulled; kubectl create secret "
        "docker-registry b -n default --docker-server=...",
        "warn pull secret c: not known: you may not read them",
        "ok   service mnist: exists",
    ]
    assert of_job(a_job("Running"))[1].startswith("warn service mnist: does not exist: agents cannot find")
    assert of_job(a_job("Running"), service=FORBIDDEN)[1].startswith("warn service mnist: not known")
