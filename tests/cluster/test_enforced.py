"""NetworkPolicies of jobs, enforced by a real implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lab.kube.networkpolicies import Enforced, Pod, why_not
from lab.kube.programs import CannotBuild
from lab.waiting import wait_until
from tests.builders import a_job

from ropeteam.api.defaults import JobPolicy
from ropeteam.core.objects import policy
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Role
from ropeteam.core.seen.view import build_view

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.timeout(3600),  # kube-router may have to be built
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

Object = dict[str, Any]
OURS = {"app.kubernetes.io/name": "ropeteam", "app.kubernetes.io/component": "operator"}
SYSTEM = {"matchLabels": {"kubernetes.io/metadata.name": "sys"}}
MONITORING = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
STORE = 40000
PORTS = (29401, 29402, 29403, 29404, STORE)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforced]:
    try:
        enforced = Enforced(tmp_path_factory.mktemp("node"))
    except CannotBuild as problem:
        pytest.skip(f"NOT ENFORCED: {problem}")
    with enforced as node:
        for name in ("lab", "sys", "monitoring", "elsewhere"):
            node.namespace(name)
        yield node


def policy_of(uid: str, *metrics_from: Object, **template: Any) -> Object:
    who = JobPolicy(
        operator_from=({"namespaceSelector": SYSTEM, "podSelector": {"matchLabels": OURS}},),
        metrics_from=metrics_from,
    )
    seen = a_job(template={"spec": template})
    job = seen.metadata.model_copy(update={"uid": uid, "name": uid})
    seen = seen.but(metadata=job, defaults=seen.defaults.model_copy(update={"policy": who}))
    made = policy.manifest(seen, build_view(seen).spec)
    assert made is not None
    return made


def pods_of(node: Enforced, uid: str) -> tuple[Pod, Pod]:
    """A coordinator and a worker, with the labels that ours have."""
    job = a_job().metadata.model_copy(update={"uid": uid, "name": uid})
    coordinator = node.pod(f"{uid}-c", names.labels(job, Role.COORDINATOR), *PORTS, namespace="lab")
    return coordinator, node.pod(f"{uid}-w", names.labels(job, Role.WORKER), *PORTS, namespace="lab")


def settles(node: Enforced, target: Pod, expected: dict[Pod, set[int]]) -> None:
    """Each of these reaches `target` on these ports and no others."""

    def as_expected() -> bool:
        return {pod: node.reaches(pod, target, *PORTS) for pod in expected} == expected

    wait_until(f"{target.name} is reached as it should be", as_expected, 120)


def test_a_jobs_pods_are_reached_by_those_that_need_them_alone(node: Enforced) -> None:
    coordinator, worker = pods_of(node, "one")
    neighbour = node.pod("neighbour", {"ropeteam.dev/job-uid": "two"}, namespace="lab")
    outsider = node.pod("stranger", OURS, namespace="elsewhere")
    operator = node.pod("operator", OURS, namespace="sys")
    prometheus = node.pod("prometheus", {}, namespace="monitoring")
    everybody = (coordinator, neighbour, outsider, operator, prometheus)
    settles(node, worker, {pod: set(PORTS) for pod in everybody})
    node.create(policy_of("one", {"namespaceSelector": MONITORING}))
    nobody: dict[Pod, set[int]] = {neighbour: set(), outsider: set()}
    others = nobody | {operator: {29402}, prometheus: {29402, 29403}}
    settles(node, worker, {coordinator: set(PORTS), **others})
    settles(node, coordinator, {worker: set(PORTS), **others})
    server = node.pod("server", {}, *PORTS, namespace="elsewhere")
    settles(node, server, {worker: set(PORTS)})  # egress is open


def test_what_any_policy_allows_is_allowed(node: Enforced) -> None:
    """Of everybody who may read metrics, of agents with addresses of nodes, and of the user's own."""
    _, worker = pods_of(node, "three")
    outsider = node.pod("stranger-3", {}, namespace="elsewhere")
    node.create(policy_of("three"))
    settles(node, worker, {outsider: {29402, 29403}})
    node.create(policy_of("three", hostNetwork=True))
    settles(node, worker, {outsider: {29401, 29402, 29403}})
    own = {"podSelector": {}, "ingress": [{"ports": [{"port": STORE}]}]}
    meta = {"name": "own", "namespace": "lab"}
    node.create(
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": own}
    )
    settles(node, worker, {outsider: {29401, 29402, 29403, STORE}})
