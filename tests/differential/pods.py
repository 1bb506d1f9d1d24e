"""Pods: shape, rules, what may change, and two ways of leaving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.bodies import CORE, obj, pod
from tests.differential.scenario import (
    STRATEGIC,
    At,
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

PODS = f"{CORE}/pods"
P = f"{PODS}/p"
MADE = post(PODS, pod())
SCHEDULED = post(PODS, pod(nodeName="somewhere", terminationGracePeriodSeconds=7))
_MOUNT = {"name": "v", "mountPath": "/v"}
_VOLUMES = [{"name": "v", "emptyDir": {}}]
_FROM_POD = {"fieldRef": {"fieldPath": "status.podIP"}}
_RESTRICTED = {"runAsNonRoot": True, "runAsUser": 65532, "readOnlyRootFilesystem": True}


def _contained(**container: Any) -> Object:
    return pod(container=container)


BODIES: dict[str, Object] = {
    "no spec": obj("Pod", "p"),
    "no containers": pod(containers=[]),
    "null containers": pod(containers=None),
    "no image": _contained(image=None),
    "empty image": _contained(image=""),
    "no container name": _contained(name=None),
    "bad container name": _contained(name="A_b"),
    "container twice": pod(containers=[{"name": "a", "image": "b"}] * 2),
    "command is text": _contained(command="sleep"),
    "number in command": _contained(command=["sleep", 60]),
    "env without name": _contained(env=[{"value": "1"}]),
    "env of a number": _contained(env=[{"name": "A", "value": 1}]),
    "env two sources": _contained(env=[{"name": "A", "value": "1", "valueFrom": _FROM_POD}]),
    "bad env name": _contained(env=[{"name": "A=B", "value": "1"}]),
    "mount of nothing": _contained(volumeMounts=[_MOUNT]),
    "mount without path": pod(container={"volumeMounts": [{"name": "v"}]}, volumes=_VOLUMES),
    "mount twice": pod(container={"volumeMounts": [_MOUNT, _MOUNT]}, volumes=_VOLUMES),
    "mounted": pod(container={"volumeMounts": [_MOUNT]}, volumes=_VOLUMES),
    "volume twice": pod(volumes=_VOLUMES * 2),
    "volume of two kinds": pod(volumes=[{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}]),
    "volume without source": pod(volumes=[{"name": "v"}]),
    "volume of unknown source": pod(volumes=[{"name": "v", "tape": {}}]),
    "secret volume without name": pod(volumes=[{"name": "v", "secret": {}}]),
    "claim volume without name": pod(volumes=[{"name": "v", "persistentVolumeClaim": {}}]),
    "bad restart policy": pod(restartPolicy="Sometimes"),
    "negative grace": pod(terminationGracePeriodSeconds=-1),
    "grace is text": pod(terminationGracePeriodSeconds="long"),
    "unknown field": pod(nobody=1),
    "unknown field in a container": _contained(nobody=1),
    "bad quantity": _contained(resources={"limits": {"cpu": "many"}}),
    "request above limit": _contained(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
    "number as quantity": _contained(resources={"limits": {"cpu": 1, "nvidia.com/gpu": 2}}),
    "part of a gpu": _contained(resources={"limits": {"nvidia.com/gpu": "500m"}}),
    "negative quantity": _contained(resources={"limits": {"cpu": "-1"}}),
    "bad name": pod("A_b"),
    "name of 254 letters": pod("a" * 254),
    "name with dots": pod("a.b"),
    "bad label": pod(meta={"labels": {"a": "b c"}}),
    "bad toleration": pod(tolerations=[{"key": "a", "operator": "Maybe"}]),
    "node selector of a number": pod(nodeSelector={"gpu": 1}),
    "affinity is a list": pod(affinity=[]),
    "bad pull policy": _contained(imagePullPolicy="Sometimes"),
    "port out of range": _contained(ports=[{"containerPort": 70000}]),
    "port name": _contained(ports=[{"name": "a_very_bad_port_name", "containerPort": 80}]),
    "no such priority class": pod(priorityClassName="none-such"),
    "hostname": pod(hostname="A_b"),
    "negative deadline": pod(activeDeadlineSeconds=-1),
    "init container": pod(initContainers=[{"name": "i", "image": "b"}]),
    "init container takes the name": pod(initContainers=[{"name": "main", "image": "b"}]),
    "with a status": {**pod(), "status": {"phase": "Running"}},
    "restricted": _contained(securityContext=_RESTRICTED),
    "run as somebody": _contained(securityContext={"runAsUser": "root"}),
    "guaranteed": _contained(resources={"limits": {"cpu": "1", "memory": "1Gi"}}),
    "burstable": _contained(resources={"requests": {"cpu": "50m"}}),
}  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    yield scenario("pod/create", MADE, get(P), get(f"{P}/status"))
    yield scenario("pod/create twice", MADE, MADE)
    yield scenario("pod/generateName", post(PODS, {**pod(), "metadata": {"generateName": "p-"}}))
    yield scenario(
        "pod/always", post(PODS, obj("Pod", "p", {"spec": {"containers": [{"name": "a", "image": "b"}]}}))
    )
    for name, body in BODIES.items():
        yield scenario(f"pod/{name}", post(PODS, body))
    for name in ("no containers", "unknown field", "mount of nothing"):
        yield scenario(f"pod-dry-run/{name}", post(PODS, BODIES[name], dryRun="All"))
    for mode in ("Strict", "Ignore"):
        yield scenario(
            f"pod/unknown field {mode}",
            post(PODS, BODIES["unknown field in a container"], fieldValidation=mode),
        )
    yield from _changes()
    yield from _deletions()


def _changes() -> Iterator[Scenario]:
    main: Object = {"name": "main", "image": "none"}
    changes: dict[str, Object] = {
        "label": {"metadata": {"labels": {"a": "b"}}},
        "image": {"spec": {"containers": [{**main, "image": "other"}]}},
        "command": {"spec": {"containers": [{**main, "command": ["true"]}]}},
        "another container": {"spec": {"containers": [main, {"name": "more", "image": "b"}]}},
        "deadline": {"spec": {"activeDeadlineSeconds": 60}},
        "restart policy": {"spec": {"restartPolicy": "Always"}},
        "node": {"spec": {"nodeName": "somewhere"}},
        "toleration": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
        "status": {"status": {"phase": "Failed"}},
        "owner": {
            "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}]}
        },
    }
    for name, change in changes.items():
        yield scenario(f"pod-change/{name}", MADE, patch(P, change, STRATEGIC))
    failed = {"status": {"phase": "Failed", "reason": "Evicted", "message": "gone"}}
    yield scenario("pod-status/merge", MADE, patch(f"{P}/status", failed))
    yield scenario("pod-status/put", MADE, put(f"{P}/status", Edited(0, failed)), get(P))
    yield scenario("pod-status/bad phase", MADE, patch(f"{P}/status", {"status": {"phase": 7}}))
    yield scenario("pod-status/unknown field", MADE, patch(f"{P}/status", {"status": {"nobody": 7}}))
    yield scenario(
        "pod-status/put stale", MADE, patch(P, changes["label"]), put(f"{P}/status", Edited(0, failed))
    )


def _deletions() -> Iterator[Scenario]:
    now = {"gracePeriodSeconds": 0}
    uid = {"preconditions": {"uid": At(0, "metadata.uid")}, "propagationPolicy": "Background"}
    other = {"preconditions": {"uid": "other"}}
    held = post(PODS, pod(meta={"finalizers": ["a.b/c"]}))
    held_there = post(PODS, pod(meta={"finalizers": ["a.b/c"]}, nodeName="somewhere"))
    yield scenario("pod-delete/never scheduled", MADE, delete(P), get(P))
    yield scenario("pod-delete/never scheduled, grace", MADE, delete(P, gracePeriodSeconds=5), get(P))
    yield scenario("pod-delete/never scheduled, held", held, delete(P), get(P))
    yield scenario("pod-delete/scheduled", SCHEDULED, delete(P), get(P))
    yield scenario("pod-delete/by uid", SCHEDULED, delete(P, uid), get(P))
    yield scenario("pod-delete/another uid", SCHEDULED, delete(P, other), get(P))
    yield scenario("pod-delete/at once", SCHEDULED, delete(P, now), get(P))
    yield scenario("pod-delete/at once, query", SCHEDULED, delete(P, gracePeriodSeconds=0), get(P))
    yield scenario("pod-delete/grace", SCHEDULED, delete(P, gracePeriodSeconds=3), get(P))
    yield scenario("pod-delete/negative grace", SCHEDULED, delete(P, gracePeriodSeconds=-1), get(P))
    yield scenario("pod-delete/shorter", SCHEDULED, delete(P), delete(P, gracePeriodSeconds=1), get(P))
    yield scenario("pod-delete/longer", SCHEDULED, delete(P), delete(P, gracePeriodSeconds=60), get(P))
    yield scenario("pod-delete/then at once", SCHEDULED, delete(P), delete(P, now), get(P))
    yield scenario("pod-delete/held", held_there, delete(P, now), get(P), delete(P, now))
    yield scenario("pod-delete/dry run", SCHEDULED, delete(P, dryRun="All"), get(P))
    done = patch(f"{P}/status", {"status": {"phase": "Succeeded"}})
    yield scenario("pod-delete/done", SCHEDULED, done, delete(P), get(P))
    labelled = [post(PODS, pod(n, meta={"labels": {"n": n}}, nodeName="somewhere")) for n in "abc"]
    some = delete(PODS, {"gracePeriodSeconds": 4}, labelSelector="n in (a,b)")
    yield scenario("pod-delete/some", *labelled, some, get(PODS))
    yield scenario("pod-delete/all at once", *labelled, delete(PODS, gracePeriodSeconds=0), get(PODS))
    yield scenario("pod-log/no pod", get(f"{P}/log"))
