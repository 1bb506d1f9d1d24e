"""The NetworkPolicy of a job: the peers that it admits, the gang that waits for it, and jobs that run
without."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import UID, Scene, a_job, a_running_job, force_deleted, written
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.conditions import ConditionType
from ropeteam.api.defaults import JobPolicy
from ropeteam.core.decide import decide
from ropeteam.core.objects import manifests, policy
from ropeteam.core.objects.actions import CreatePod, CreatePolicy
from ropeteam.core.objects.workerpod import worker_pod
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import PolicySeen, Role
from ropeteam.core.seen.view import build_view

OPERATOR = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ropeteam"}}}
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
OWN = {"matchLabels": {"ropeteam.dev/job-uid": UID}}
QUOTA = 'policies.x "mnist-1" is forbidden: exceeded quota: small, limited: count/networkpolicies=0'
RBAC = (
    'networkpolicies.networking.k8s.io is forbidden: User "system:serviceaccount:sys:ropeteam" cannot create '
    'resource "networkpolicies" in API group "networking.k8s.io" in the namespace "lab"'
)


def ports(*numbers: int) -> list[dict[str, Any]]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]


def guarded(seen: Scene, *metrics_from: dict[str, Any]) -> Scene:
    """With an operator that makes policies."""
    who = JobPolicy(operator_from=(OPERATOR,), metrics_from=metrics_from)
    return seen.but(defaults=seen.defaults.model_copy(update={"policy": who}))


def made(seen: Scene) -> dict[str, Any]:
    manifest = policy.manifest(seen, build_view(seen).spec)
    assert manifest is not None
    return manifest


def test_a_jobs_pods_reach_each_other_the_operator_their_coordinator_and_anybody_the_metrics() -> None:
    manifest = made(guarded(a_job()))
    assert manifest["spec"] == {
        "podSelector": OWN,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": OWN}]},
            {"from": [OPERATOR], "ports": ports(29402)},
            {"ports": ports(29402, 29403)},
        ],
    }
    assert manifest["metadata"]["ownerReferences"] == [names.owner_reference(a_job().metadata)]
    assert manifest["metadata"]["namespace"] == "lab"


def test_metrics_are_for_prometheus_alone_where_the_installation_names_it() -> None:
    rules = made(guarded(a_job(), PROMETHEUS))["spec"]["ingress"]
    assert rules[2] == {"from": [PROMETHEUS], "ports": ports(29402, 29403)}
    assert all(rule.get("from") for rule in rules), "nobody else"


def test_an_operator_that_nobody_is_would_be_everybody() -> None:
    with pytest.raises(ValueError, match="operatorFrom"):
        JobPolicy.model_validate({"operatorFrom": []})


def test_it_selects_every_pod_of_the_job() -> None:
    strategy = {"sync": {"type": "ParameterServer", "parameterServer": {"servers": 1}}}
    cluster = FakeCluster(guarded(a_job(workers=2, strategy=strategy)))
    cluster.round()
    seen, spec = cluster.scene, build_view(cluster.scene).spec
    pods = [worker_pod(seen, spec, slot) for slot in seen.status.slots]
    pods.append(manifests.coordinator_pod(seen, spec))
    assert {pod["metadata"]["labels"]["ropeteam.dev/role"] for pod in pods} == set(Role)
    assert all(OWN["matchLabels"].items() <= pod["metadata"]["labels"].items() for pod in pods)


def test_agents_on_the_network_of_their_nodes_reach_their_coordinator() -> None:
    """No selector finds them: their packets come from addresses of nodes."""
    on_nodes = guarded(a_job(template={"spec": {"hostNetwork": True}}))
    assert made(on_nodes)["spec"]["ingress"][3:] == [{"ports": ports(29401)}]
    assert made(guarded(a_job(template={"spec": []})))["spec"]["ingress"][3:] == []


def test_it_is_named_after_what_is_in_it_so_another_content_comes_beside_it() -> None:
    one, other = guarded(a_job()), guarded(a_job(), PROMETHEUS)
    assert made(one)["metadata"]["name"] != made(other)["metadata"]["name"]
    known = PolicySeen(name=made(one)["metadata"]["name"])
    assert policy.missing_policy_actions(build_view(one.but(policy=known))) == ()
    assert policy.missing_policy_actions(build_view(other.but(policy=known))) == (CreatePolicy(made(other)),)


def test_it_is_made_with_the_first_objects_and_no_worker_before_it() -> None:
    cluster = FakeCluster(guarded(a_job(workers=2)))
    cluster.round()
    assert CreatePolicy in [type(action) for action in cluster.round().actions]
    cluster.scene = cluster.scene.but(policy=PolicySeen())
    cluster.round()
    assert [type(action) for action in cluster.round().actions] == [CreatePolicy]
    assert cluster.made == ["mnist-coordinator-1"]
    cluster.round()
    assert cluster.made == ["mnist-coordinator-1", "mnist-0-1", "mnist-1-1"]


def waiting(refusal: str) -> Scene:
    """A job that has its coordinator, and whose policy was refused."""
    cluster = FakeCluster(guarded(a_job(workers=2)))
    for _ in range(3):
        cluster.round()
    return cluster.scene.but(policy=PolicySeen(refusal=policy.refusal_message(refusal)))


def test_a_gang_whose_policy_is_refused_is_not_started_and_shows_what_to_do() -> None:
    seen = waiting(QUOTA)
    decision = decide(seen)
    stalled = decision.status.condition(ConditionType.STALLED)
    assert stalled is not None
    assert (stalled.status, stalled.reason) == ("True", "NetworkPolicyRefused")
    assert QUOTA in stalled.message
    assert "set the value networkPolicy.jobs of Ropeteam's chart to false" in stalled.message
    assert stalled.reason in [each.reason for each in decision.announcements]
    seen = seen.but(status=decision.status).after(written)
    assert [type(action) for action in decide(seen).actions] == [CreatePolicy], "it is tried again"
    named = PolicySeen(name=made(seen)["metadata"]["name"])
    again = decide(seen.but(policy=named).after(written))
    assert [type(each) for each in again.actions if isinstance(each, CreatePod)] == [CreatePod] * 2
    assert not again.status.holds(ConditionType.STALLED)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_ran_gets_its_lost_pods_back_whatever_a_quota_allows(workers: int) -> None:
    """One worker, or all of them at once: none of its pods is known any more."""
    lost = [force_deleted(slot) for slot in range(workers)]
    seen = guarded(a_running_job(workers)).but(policy=PolicySeen(refusal=policy.refusal_message(QUOTA)))
    decision = decide(seen.after(*lost, written))
    assert [str(each) for each in decision.actions if isinstance(each, CreatePod)] == [
        f"create Pod mnist-{slot}-2" for slot in range(workers)
    ]


def test_without_the_right_to_make_one_jobs_go_on() -> None:
    """An operator that was upgraded, and its roles, which somebody else makes, not."""
    seen = waiting(RBAC).after(written)
    assert [str(each) for each in decide(seen).actions][-1] == "create Pod mnist-1-1"
    assert policy.missing_policy_actions(build_view(seen)) == (), "asked for once"
    assert not decide(seen).status.holds(ConditionType.STALLED)
    assert "The job continues without" in policy.refusal_message(RBAC)


def test_a_gang_that_runs_gets_one_and_goes_on_if_it_is_refused() -> None:
    """Of an earlier release. A round that fails again and again would hold up its recovery."""
    seen = guarded(a_running_job())
    assert [type(action) for action in decide(seen).actions] == [CreatePolicy]
    refused = seen.but(policy=PolicySeen(refusal=policy.refusal_message(QUOTA)))
    assert (decide(refused).actions, decide(refused).status) == ((), seen.status)
    lost = decide(refused.after(force_deleted(1), written))
    assert [str(each) for each in lost.actions if isinstance(each, CreatePod)] == ["create Pod mnist-1-2"]


def test_an_installation_that_wants_none_makes_none() -> None:
    assert policy.manifest(a_job(), build_view(a_job()).spec) is None
    assert policy.missing_policy_actions(build_view(a_running_job())) == ()
