"""Objects that the scenarios send, and where to."""

from __future__ import annotations

from typing import Any

from tests.differential.scenario import Object

from ropeteam.api.job import API_VERSION

CORE, ALL_JOBS = "/api/v1/namespaces/{ns}", f"/apis/{API_VERSION}/trainingjobs"
JOBS = f"/apis/{API_VERSION}/namespaces/{{ns}}/trainingjobs"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SMALLEST: Object = {"workers": 2, "command": ["python", "train.py"]}


def job(name: str = "x", spec: Any = SMALLEST, **meta: Any) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": name, **meta},
        "spec": spec,
    }


def obj(kind: str, name: str, body: Object | None = None, **meta: Any) -> Object:
    """Of the core group."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **meta}, **(body or {})}


def config(name: str, **meta: Any) -> Object:
    return obj("ConfigMap", name, {"data": {"a": "1"}}, **meta)


def pod(name: str = "p", container: Object | None = None, meta: Object | None = None, **spec: Any) -> Object:
    main = {"name": "main", "image": "none", **(container or {})}
    return obj("Pod", name, {"spec": {"restartPolicy": "Never", "containers": [main], **spec}}, **meta or {})


def service(name: str = "s", **spec: Any) -> Object:
    return obj("Service", name, {"spec": {"selector": {"app": "x"}, "ports": [{"port": 80}], **spec}})
