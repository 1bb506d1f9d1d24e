"""Services, Secrets, ConfigMaps, Events, Leases, namespaces and claims, as our operator and kubectl make
them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.bodies import CORE, CRDS, LEASES, config, obj, service
from tests.differential.scenario import (
    APPLY,
    STRATEGIC,
    At,
    Call,
    Edited,
    Object,
    Scenario,
    delete,
    get,
    patch,
    post,
    put,
    scenario,
)

_WHEN = "2026-11-20T10:00:00Z"
_SUBJECT = {"kind": "TrainingJob", "apiVersion": "ropeteam.dev/v1alpha1", "name": "x", "namespace": "{ns}"}
_EVENT = {"reason": "Started", "message": "go", "type": "Normal", "count": 1, "involvedObject": _SUBJECT}
_EVENT |= {"source": {"component": "ropeteam"}, "firstTimestamp": _WHEN, "lastTimestamp": _WHEN}
_LEASE = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-11-20T10:00:00.000000Z"}
_SECRET: Object = {"type": "Opaque", "data": {"token": "dA=="}}


def _lease(name: str, spec: Any = _LEASE) -> Object:
    api = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**api, "metadata": {"name": name}, "spec": spec}


def _claim(**spec: Any) -> Object:
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return obj("PersistentVolumeClaim", "x", {"spec": claim_spec})


VALID: dict[str, tuple[str, Object]] = {
    "service": (f"{CORE}/services", service("x")),
    "secret": (f"{CORE}/secrets", obj("Secret", "x", _SECRET)),
    "config": (f"{CORE}/configmaps", config("x")),
    "event": (f"{CORE}/events", obj("Event", "x", _EVENT, namespace="{ns}")),
    "lease": (LEASES, _lease("x")),
    "claim": (f"{CORE}/persistentvolumeclaims", _claim()),
}
SERVICES: dict[str, Object] = {
    "headless": service(clusterIP="None"),
    "two ports without names": service(ports=[{"port": 1}, {"port": 2}]),
    "two ports": service(ports=[{"name": "a", "port": 1}, {"name": "b", "port": 2, "targetPort": "http"}]),
    "port twice": service(ports=[{"name": "a", "port": 1}, {"name": "b", "port": 1}]),
    "port name twice": service(ports=[{"name": "a", "port": 1}, {"name": "a", "port": 2}]),
    "no ports": service(ports=[]),
    "port zero": service(ports=[{"port": 0}]),
    "port too large": service(ports=[{"port": 65536}]),
    "port is text": service(ports=[{"port": "http"}]),
    "port missing": service(ports=[{"name": "a"}]),
    "bad protocol": service(ports=[{"port": 1, "protocol": "ICMP"}]),
    "bad type": service(type="Public"),
    "bad address": service(clusterIP="x"),
    "not ready ones too": service(publishNotReadyAddresses=True),
    "no selector": service(selector=None),
    "selector is text": service(selector="x"),
    "unknown field": service(slector={}),
    "bad name": service("4-x"),
    "capitals": service("Abc"),
    "long name": service("a" * 64),
    "no spec": obj("Service", "s"),
}
SECRETS: dict[str, Object] = {
    "text": obj("Secret", "x", {"stringData": {"a": "b"}}),
    "not base64": obj("Secret", "x", {"data": {"a": "!"}}),
    "number": obj("Secret", "x", {"data": {"a": 1}}),
    "bad key": obj("Secret", "x", {"data": {"a b": "dA=="}}),
    "typed": obj("Secret", "x", {"type": "kubernetes.io/tls", "data": {}}),
    "immutable": obj("Secret", "x", {"immutable": True, "data": {"a": "dA=="}}),
    "immutable is text": obj("Secret", "x", {"immutable": "yes"}),
    "unknown field": obj("Secret", "x", {"more": 1}),
    "bad name": obj("Secret", "X_y", {}),
}
CONFIGS: dict[str, Object] = {
    "empty": obj("ConfigMap", "x"),
    "number": obj("ConfigMap", "x", {"data": {"a": 1}}),
    "bad key": obj("ConfigMap", "x", {"data": {"a b": "1"}}),
    "binary": obj("ConfigMap", "x", {"binaryData": {"a": "dA=="}}),
    "unknown field": obj("ConfigMap", "x", {"more": 1}),
    "bad label": config("x", labels={"a b": "c"}),
    "bad owner": config("x", ownerReferences=[{"name": "x"}]),
    "owner": config("x", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]),
    "too large": obj("ConfigMap", "x", {"data": {"a": "x" * (1 << 20)}}),
    "of another namespace": config("x", namespace="default"),
    "null data": obj("ConfigMap", "x", {"data": None}),
    "null value": obj("ConfigMap", "x", {"data": {"a": None}}),
}
EVENTS: dict[str, Object] = {
    "elsewhere": obj("Event", "e", _EVENT | {"involvedObject": _SUBJECT | {"namespace": "default"}}),
    "of nothing": obj("Event", "e", {"reason": "Started"}),
    "number": obj("Event", "e", _EVENT | {"message": 7}),
    "bad time": obj("Event", "e", _EVENT | {"lastTimestamp": "soon"}),
}
OTHERS: dict[str, tuple[str, Object]] = {
    "lease negative": (LEASES, _lease("x", {"leaseDurationSeconds": -1})),
    "lease bad time": (LEASES, _lease("x", {"renewTime": "soon"})),
    "lease empty": (LEASES, _lease("x", {})),
    "claim without size": (f"{CORE}/persistentvolumeclaims", _claim(resources={})),
    "claim without modes": (f"{CORE}/persistentvolumeclaims", _claim(accessModes=[])),
    "claim bad size": (f"{CORE}/persistentvolumeclaims", _claim(resources={"requests": {"storage": "x"}})),
    "namespace bad name": ("/api/v1/namespaces", obj("Namespace", "A_b")),
    "namespace with a dot": ("/api/v1/namespaces", obj("Namespace", "a.b")),
}


def scenarios() -> Iterator[Scenario]:
    for name, (path, body) in VALID.items():
        yield from _life(name, path, body)
    for kind, plural, bodies in (
        ("service", "services", SERVICES), ("secret", "secrets", SECRETS),
        ("config", "configmaps", CONFIGS), ("event", "events", EVENTS),
    ):  # fmt: skip
        for name, body in bodies.items():
            yield scenario(f"{kind}/{name}", post(f"{CORE}/{plural}", body))
    for name, (path, body) in OTHERS.items():
        yield scenario(f"other/{name}", post(path, body))
    for mode in ("Strict", "Warn", "Ignore"):
        created = post(f"{CORE}/configmaps", CONFIGS["unknown field"], fieldValidation=mode)
        yield scenario(f"config/unknown field {mode}", created)
    yield from _immutable()
    yield from _namespaces()


def _life(kind: str, path: str, body: Object) -> Iterator[Scenario]:
    """Requests that each kind answers alike."""
    made, x = post(path, body), f"{path}/x"
    unnamed = {**body, "metadata": {**body["metadata"], "generateName": "y-"}}
    unnamed["metadata"].pop("name")
    label = {"metadata": {"labels": {"a": "b"}}}
    yield scenario(f"{kind}/create", made, get(x))
    yield scenario(f"{kind}/create twice", made, made)
    yield scenario(f"{kind}/generateName", post(path, unnamed))
    yield scenario(f"{kind}/dry run", post(path, body, dryRun="All"), get(x))
    yield scenario(f"{kind}/not there", get(x), put(x, body), patch(x, {}), delete(x))
    yield scenario(f"{kind}/same", made, put(x, Edited(0, {})))
    yield scenario(f"{kind}/label", made, put(x, Edited(0, label)), put(x, Edited(0, label)))
    yield scenario(f"{kind}/merge", made, patch(x, label), patch(x, {"metadata": {"labels": None}}))
    yield scenario(f"{kind}/strategic", made, patch(x, label, STRATEGIC))
    yield scenario(f"{kind}/apply", patch(x, body, APPLY, fieldManager="me"))
    uid = {"preconditions": {"uid": At(0, "metadata.uid")}}
    yield scenario(f"{kind}/delete", made, delete(x), get(x))
    yield scenario(f"{kind}/delete its uid", made, delete(x, uid), get(x))
    yield scenario(f"{kind}/delete another uid", made, delete(x, {"preconditions": {"uid": "other"}}), get(x))
    yield scenario(
        f"{kind}/delete all", made, delete(path, labelSelector="a=b"), get(x), delete(path), get(x)
    )


def _immutable() -> Iterator[Scenario]:
    for kind, plural, value in (("Secret", "secrets", "dA=="), ("ConfigMap", "configmaps", "1")):
        path = f"{CORE}/{plural}"
        made = post(path, obj(kind, "x", {"immutable": True, "data": {"a": value}}))
        changes: dict[str, Object] = {
            "data": {"data": {"a": "dQ=="}},
            "more data": {"data": {"b": "dQ=="}},
            "the mark": {"immutable": False},
            "the mark away": {"immutable": None},
            "label": {"metadata": {"labels": {"a": "b"}}},
        }
        for name, change in changes.items():
            yield scenario(f"{kind.lower()}/immutable {name}", made, put(f"{path}/x", Edited(0, change)))
    typed = post(f"{CORE}/secrets", obj("Secret", "x", {"type": "a/b"}))
    yield scenario("secret/type changes", typed, patch(f"{CORE}/secrets/x", {"type": "c/d"}))
    path, made = f"{CORE}/services/s", post(f"{CORE}/services", service())
    for name, spec in {
        "another address": {"clusterIP": "10.96.200.1", "clusterIPs": None},
        "no address": {"clusterIP": None, "clusterIPs": None},
        "empty address": {"clusterIP": "", "clusterIPs": None},
        "headless": {"clusterIP": "None", "clusterIPs": ["None"]},
        "selector": {"selector": {"app": "y", "term": "2"}},
        "ports": {"ports": [{"port": 81}]},
    }.items():
        yield scenario(f"service/change {name}", made, patch(path, {"spec": spec}))
    bare = service()
    yield scenario("service/put without address", made, put(path, bare))
    yield scenario("service/asks for a taken address", made, post(f"{CORE}/services", {
        **service("t"), "spec": {**bare["spec"], "clusterIP": At(0, "spec.clusterIP")},
    }))  # fmt: skip


def _namespaces() -> Iterator[Scenario]:
    home = "/api/v1/namespaces/{ns}"
    yield scenario("namespace/read", get(home), get(f"{home}/status"))
    yield scenario("namespace/again", post("/api/v1/namespaces", obj("Namespace", "{ns}")))
    yield scenario("namespace/label", patch(home, {"metadata": {"labels": {"a": "b"}}}))
    yield scenario("namespace/rename", patch(home, {"metadata": {"name": "other"}}))
    late = post(f"{CORE}/configmaps", config("x"))
    yield scenario("namespace/delete", delete(home), get(home), delete(home), late)
    yield scenario("namespace/dry run", delete(home, dryRun="All"), get(home))
    yield scenario("crd/no body", post(CRDS, {"metadata": {"name": "x"}}))
    crd = f"{CRDS}/trainingjobs.ropeteam.dev"
    yield scenario(
        "crd/again", Call("GET", crd), post(CRDS, Edited(0, {"metadata": {"resourceVersion": None}}))
    )
