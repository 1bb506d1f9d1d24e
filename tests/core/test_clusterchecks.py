"""Findings of `ropeteam doctor` about a cluster and the installation there."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ropeteam.api.crd import crd
from ropeteam.core.doctor.clusterchecks import Cluster, cluster_findings
from ropeteam.core.doctor.findings import Read

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
FORBIDDEN = Read(unknown="you may not read them")


def an_operator(image: str = "ghcr.io/ropeteam/ropeteam:1.2.3", ready: int = 2) -> dict[str, Any]:
    container = {"image": image, "args": ["--lease=sys/ropeteam", "--max-concurrent-reconciles=32"]}
    return {
        "metadata": {
            "name": "ropeteam",
            "namespace": "sys",
            "labels": {"app.kubernetes.io/version": "1.2.3"},
        },
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready} if ready else {},
    }


def a_lease(holder: str = "ropeteam-1_x", renewed: str = "2026-11-20T11:59:50.000000Z") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return {"metadata": {"name": "ropeteam", "namespace": "sys"}, "spec": spec}


def a_node(gpus: int = 8, ready: str = "True") -> dict[str, Any]:
    allocatable = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": allocatable}}


def a_class(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "nfs", "annotations": annotations}}


DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
CLUSTER = Cluster(
    where="config",
    release="1.2.3",
    version="v1.36.0",
    now=NOW,
    groups=Read(({"name": "ropeteam.dev"},)),
    definition=Read((crd(),)),
    deployments=Read((an_operator(),)),
    leases=Read((a_lease(),)),
    nodes=Read((a_node(), a_node(0))),
    classes=Read((a_class(**DEFAULT),)),
)


def findings(**seen: Any) -> list[str]:
    return [str(found) for found in cluster_findings(replace(CLUSTER, **seen))]


def one(line: str, **seen: Any) -> None:
    lines = findings(**seen)
    assert [each for each in lines if each.startswith(line)], lines


def changed(path: str, value: Any) -> Read:
    """Our definition with another schema at a path of the fields of `spec`; None: without it."""
    definition = copy.deepcopy(crd())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if value is None:
        del spec["properties"][path]
    else:
        spec["properties"][path] = value
    return Read((definition,))


def test_an_installation_that_is_well_is_ok() -> None:
    assert findings() == [
        "ok   cluster: of config: answers, Kubernetes v1.36.0",
        "ok   definition: TrainingJob v1alpha1, the same as in this client",
        "ok   operator sys/ropeteam: 2 of 2 ready, image ghcr.io/ropeteam/ropeteam:1.2.3",
        "ok   leader sys/ropeteam: ropeteam-1, lease fresh",
        "ok   nodes: 2 of 2 ready, nvidia.com/gpu: 8 on 1 of them",
        "ok   storage class: nfs is the default; several workers need ReadWriteMany from it",
        "ok   monitoring: kinds of the Prometheus Operator are not served: the chart's values"
        " metrics.serviceMonitor, .podMonitor and .prometheusRule must stay off",
        "ok   queues: Kueue is not served: the label kueue.x-k8s.io/queue-name has no effect",
    ]


def test_a_version_is_compared() -> None:
    one("ok   cluster: of config: answers, Kubernetes v1.30.0", version="v1.30.0")
    one("FAIL cluster: of config: Kubernetes v1.29.9-eks is too old; upgrade to 1.30", version="v1.29.9-eks")
    one("warn cluster: of config: answers, but does not report its version", version="")


def test_a_definition_that_is_not_there_is_a_failure() -> None:
    absent = "FAIL definition: the cluster does not serve the kind TrainingJob; install the chart"
    one(absent, definition=Read())
    one(absent, definition=FORBIDDEN, groups=Read(({"name": "apps"},)))
    one("warn definition: not known: you may not read them", definition=FORBIDDEN)
    one("warn definition: not known: you may not read them", definition=FORBIDDEN, groups=FORBIDDEN)
    other = {"spec": {"versions": [{"name": "v9"}]}}
    one("FAIL definition: no version v1alpha1, but v9; ", definition=Read((other,)))


def test_a_definition_that_has_drifted_is_reported_by_its_fields() -> None:
    older = "warn definition: older than this client: it does not have"
    one(f"{older} spec.worlds; ", definition=changed("worlds", None))
    more = changed("colour", {"type": "object", "properties": {"red": {"type": "string"}}})
    one("warn definition: newer than this client: it has spec.colour; ", definition=more)
    one(
        "warn definition: the same fields as in this client (1.2.3), but other validation rules (CEL); if",
        definition=changed("workers", {"x-kubernetes-validations": [{"rule": "self > 1"}]}),
    )
    empty = {"spec": {"versions": [{"name": "v1alpha1"}]}}
    one(
        "warn definition: older than this client: it does not have apiVersion, kind, metadata and 2 more; ",
        definition=Read((empty,)),
    )


@pytest.mark.parametrize(
    ("deployment", "line"),
    [
        (an_operator(ready=0), "FAIL operator sys/ropeteam: 0 of 2 ready, image ghcr.io/"),
        (an_operator(ready=1), "warn operator sys/ropeteam: 1 of 2 ready, "),
        (
            an_operator("r.io:5000/ropeteam:v2.0.0"),
            "warn operator sys/ropeteam: its release is v2.0.0, this client's 1.2.3",
        ),
        (an_operator("r.io:5000/ropeteam:v1.2.3"), "ok   operator sys/ropeteam: 2 of 2 ready"),
        (an_operator("r.io/ropeteam@sha256:0"), "ok   operator sys/ropeteam: 2 of 2 ready"),
        (an_operator("r.io/ropeteam:prod"), "ok   operator sys/ropeteam: 2 of 2 ready"),
    ],
)
def test_an_operator_is_ready_and_of_this_release(deployment: dict[str, Any], line: str) -> None:
    one(line, deployments=Read((deployment,)))


def test_no_operator_is_a_failure_and_one_that_may_not_be_seen_is_none() -> None:
    one("FAIL operator: no Deployment of it found", deployments=Read())
    one("warn operator: not known: you may not read them", deployments=FORBIDDEN)
    one("ok   operator sys/ropeteam", deployments=Read((an_operator(),), FORBIDDEN.unknown))


def test_a_leader_renews_its_lease() -> None:
    one("FAIL leader sys/ropeteam: no operator is the leader; without a leader no job", leases=Read())
    one("FAIL leader sys/ropeteam: no operator is the leader", leases=Read((a_lease(""),)))
    stale = a_lease(renewed="2026-11-20T11:58:00.000000Z")
    one("FAIL leader sys/ropeteam: ropeteam-1 has not renewed its lease for 120 s", leases=Read((stale,)))
    one("ok   leader sys/ropeteam: me, lease fresh", leases=Read((a_lease("me"),)))
    one("warn leader sys/ropeteam: not known: you may not read them", leases=FORBIDDEN)


def test_an_operator_that_begins_again_and_again_is_reported_with_its_reason() -> None:
    killed = {"restartCount": 7, "lastState": {"terminated": {"reason": "OOMKilled"}}}
    states = [killed, {"restartCount": 4}, {"restartCount": 5}]
    pod = {"metadata": {"name": "p", "namespace": "sys"}, "status": {"containerStatuses": states}}
    lines = [line for line in findings(pods=Read((pod, {}))) if "restarts" in line]
    assert lines == [
        "warn operator pod p: 7 restarts, the last: OOMKilled; kubectl -n sys logs --previous p",
        "warn operator pod p: 5 restarts, the last: its reason is no longer known;"
        " kubectl -n sys logs --previous p",
    ]


def test_nodes_that_offer_gpus_are_counted() -> None:
    one("warn nodes: 1 of 1 ready, none offers nvidia.com/gpu; for jobs", nodes=Read((a_node(0),)))
    lost = Read((a_node(), a_node(ready="Unknown")))
    one("warn nodes: 1 of 2 ready, nvidia.com/gpu: 8 on 1 of them; kubectl get nodes", nodes=lost)
    one("warn nodes: not known: you may not read them", nodes=FORBIDDEN)


def test_claims_need_a_default_class_or_a_name() -> None:
    one("warn storage class: no default; there are nfs; claims", classes=Read((a_class(),)))
    one("warn storage class: no default; there is none; claims", classes=Read())
    one("warn storage class: not known: you may not read them", classes=FORBIDDEN)


def test_kinds_of_others_are_listed() -> None:
    groups = Read(({"name": "monitoring.coreos.com"}, {"name": "kueue.x-k8s.io"}))
    one("ok   monitoring: kinds of the Prometheus Operator are served", groups=groups)
    one("ok   queues: Kueue is served", groups=groups)
    one("warn third-party kinds: not known: you may not read them", groups=FORBIDDEN)


def test_of_a_local_cluster_its_operator_counts() -> None:
    assert findings(local=True)[2:] == ["ok   operator: of the local cluster, ready"]
    one("FAIL operator: does not answer; stop `ropeteam up`", local=True, operator="does not answer")
