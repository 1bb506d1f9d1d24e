"""Requests that do not depend on a kind: discovery, methods, content types, bodies that are none."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.bodies import ALL_JOBS, CORE, CRDS, JOBS, config, job
from tests.differential.scenario import (
    APPLY,
    JSON,
    JSON_PATCH,
    MERGE,
    Call,
    Scenario,
    each,
    get,
    patch,
    post,
    scenario,
)

_GROUP = "/apis/ropeteam.dev"
DISCOVERED = (
    "/", "/api", "/api/v1", "/apis", _GROUP, f"{_GROUP}/v1alpha1", "/apis/coordination.k8s.io",
    "/apis/coordination.k8s.io/v1", "/apis/apiextensions.k8s.io/v1", "/version", "/healthz", "/livez",
    "/readyz", "/openapi/v3",
)  # fmt: skip
NOWHERE = (
    "/nothing", "/api/v2", "/apis/nothing.dev", "/apis/nothing.dev/v1", "/apis/nothing.dev/v1/things",
    f"{_GROUP}/v2", f"{_GROUP}/v2/trainingjobs", f"{_GROUP}/v1alpha1/things", "/api/v1/things",
    f"{CORE}/things", f"{CORE}/things/x", f"{CORE}/trainingjobs", f"{CORE}/pods/x/things",
    f"{JOBS}/x/things", f"{JOBS}/x/scale", f"{CORE}/configmaps/x/status", "/apis/apps/v1/none",
    "/api/v1/namespaces/none-such", "/api/v1/nodes/none-such", f"{CRDS}/none-such",
    "/openapi/v3/apis/nothing.dev/v1", "/readyz/none-such",
)  # fmt: skip
METHODS = (
    ("POST", f"{JOBS}/x"), ("PUT", JOBS), ("PATCH", JOBS), ("POST", f"{JOBS}/x/status"),
    ("DELETE", f"{JOBS}/x/status"), ("PUT", f"{CORE}/pods"), ("PATCH", f"{CORE}/pods"),
    ("POST", f"{CORE}/pods/x"), ("POST", "/api"), ("DELETE", "/api/v1"), ("POST", "/version"),
    ("POST", ALL_JOBS), ("POST", "/api/v1/pods"), ("DELETE", "/api/v1/namespaces"),
    ("GET", f"{CORE}/pods/x/log"),
    ("DELETE", "/api/v1/pods"),
)  # fmt: skip
BODIES = {
    "empty": "",
    "broken": "{[",
    "half": '{"metadata": {"name": "x"}',
    "list": "[]",
    "number": "7",
    "text": '"x"',
    "null": "null",
    "object": "{}",
    "twice": '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"1","a":"2"}}',
    "metadata-is-text": '{"metadata": "x"}',
    "labels-are-a-list": '{"metadata": {"name": "x", "labels": []}}',
    "label-is-a-number": '{"metadata": {"name": "x", "labels": {"a": 1}}}',
    "other-kind": '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}',
    "other-version": '{"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}}',
    "no-kind": '{"apiVersion": "v1", "metadata": {"name": "x"}}',
    "yaml": "metadata: {name: x}",
}
_JOB = '{"apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob", '
JOB_BODIES = {
    "empty": "",
    "broken": "{[",
    "list": "[]",
    "object": "{}",
    "no-kind": '{"metadata": {"name": "x"}, "spec": {"workers": 1, "command": ["a"]}}',
    "other-kind": '{"apiVersion": "ropeteam.dev/v1alpha1", "kind": "Job", "metadata": {"name": "x"}}',
    "other-version": '{"apiVersion": "ropeteam.dev/v1", "kind": "TrainingJob", "metadata": {"name": "x"}}',
    "no-metadata": _JOB + '"spec": {"workers": 1, "command": ["a"]}}',
    "no-name": _JOB + '"metadata": {}, "spec": {"workers": 1, "command": ["a"]}}',
    "no-spec": _JOB + '"metadata": {"name": "x"}}',
    "spec-is-null": _JOB + '"metadata": {"name": "x"}, "spec": null}',
    "spec-is-text": _JOB + '"metadata": {"name": "x"}, "spec": "x"}',
    "metadata-is-text": _JOB + '"metadata": "x", "spec": {"workers": 1, "command": ["a"]}}',
    "labels-are-a-list": _JOB + '"metadata": {"name": "x", "labels": []}, "spec": {}}',
    "label-is-a-number": _JOB + '"metadata": {"name": "x", "labels": {"a": 1}}, "spec": {}}',
    "twice": _JOB + '"metadata": {"name": "x"}, "spec": {"workers": 1, "workers": 2, "command": ["a"]}}',
}  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    yield from each("discovery", {path: get(path) for path in DISCOVERED})
    yield from each("nowhere", {path.replace("{ns}", "ns"): get(path) for path in NOWHERE})
    yield from each(
        "method", {f"{verb} {path}".replace("{ns}", "ns"): Call(verb, path, {}) for verb, path in METHODS}
    )
    yield from each("body", {name: post(f"{CORE}/configmaps", text) for name, text in BODIES.items()})
    yield from each("job-body", {name: post(JOBS, text) for name, text in JOB_BODIES.items()})
    yield from _content_types()


def _content_types() -> Iterator[Scenario]:
    for content in (
        "text/plain",
        "application/xml",
        "application/yaml",
        "",
        "application/json; charset=utf-8",
    ):
        name = content.replace("; ", ";") or "none"
        yield scenario(f"content/create {name}", post(f"{CORE}/configmaps", config("x"), content))
        yield scenario(f"content/create-job {name}", post(JOBS, job(), content))
    for content in (JSON, "text/plain", "application/merge-patch", MERGE + "; charset=utf-8"):
        change = {"data": {"b": "2"}}
        yield scenario(
            f"content/patch {content}",
            post(f"{CORE}/configmaps", config("x")),
            patch(f"{CORE}/configmaps/x", change, content),
        )
    strategic = "application/strategic-merge-patch+json"
    suspended = {"spec": {"suspend": True}}
    yield scenario("content/patch-job strategic", post(JOBS, job()), patch(f"{JOBS}/x", suspended, strategic))
    yield scenario("content/patch-job yaml", post(JOBS, job()), patch(f"{JOBS}/x", "{[", APPLY))
    yield scenario("content/patch-job text", post(JOBS, job()), patch(f"{JOBS}/x", "{[", MERGE))
    yield scenario("content/patch-job operations", post(JOBS, job()), patch(f"{JOBS}/x", "{[", JSON_PATCH))
    for accept in ("application/yaml", "text/html", "*/*", "application/xml", "", "application/xml, */*"):
        path = f"{CORE}/configmaps"
        yield scenario(
            f"accept/{accept or 'none'}", get(path, accept=accept), get(f"{path}/x", accept=accept)
        )
