"""The life of a TrainingJob through the API: identity, status apart, conflicts, patches, deletion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.bodies import CORE, JOBS, SMALLEST, config, job
from tests.differential.scenario import (
    APPLY,
    JSON_PATCH,
    At,
    Call,
    Edited,
    Object,
    Scenario,
    delete,
    each,
    get,
    patch,
    post,
    put,
    scenario,
)

X, STATUS = f"{JOBS}/x", f"{JOBS}/x/status"
MADE = post(JOBS, job())
_UNKNOWN = {**SMALLEST, "wrokers": 3, "recovery": {"lsotSeconds": 1}}
CREATED: dict[str, Call] = {
    "smallest": MADE,
    "without a name": post(JOBS, {**job(), "metadata": {}}),
    "generateName": post(JOBS, {**job(), "metadata": {"generateName": "x-"}}),
    "name of capitals": post(JOBS, job("Mnist")),
    "name with a dot": post(JOBS, job("a.b")),
    "long name": post(JOBS, job("a" * 41)),
    "too long name": post(JOBS, job("a" * 254)),
    "name ending in a hyphen": post(JOBS, job("a-")),
    "empty name": post(JOBS, job("")),
    "another namespace": post(JOBS, job(namespace="default")),
    "its namespace": post(JOBS, job(namespace="{ns}")),
    "no such namespace": post(JOBS.replace("{ns}", "none-such"), job()),
    "with a status": post(JOBS, {**job(), "status": {"state": "Running"}}),
    "with a uid": post(JOBS, job(uid="mine", generation=7, creationTimestamp="2020-01-01T00:00:00Z")),
    "with a resourceVersion": post(JOBS, job(resourceVersion="5")),
    "bad label": post(JOBS, job(labels={"a b": "c"})),
    "bad label value": post(JOBS, job(labels={"a": "c d"})),
    "bad annotation": post(JOBS, job(annotations={"a b": "c"})),
    "bad finalizer": post(JOBS, job(finalizers=["x"])),
    "bad owner": post(JOBS, job(ownerReferences=[{"name": "x"}])),
    "unknown metadata": post(JOBS, job(nobody="x")),
    "dry run": post(JOBS, job(), dryRun="All"),
    "dry run of some": post(JOBS, job(), dryRun="Some"),
    "bad validation": post(JOBS, job(), fieldValidation="Perhaps"),
    "unknown field at the top": post(JOBS, {**job(), "more": 1}, fieldValidation="Strict"),
    "unknown Strict": post(JOBS, job(spec=_UNKNOWN), fieldValidation="Strict"),
    "unknown Warn": post(JOBS, job(spec=_UNKNOWN), fieldValidation="Warn"),
    "unknown Ignore": post(JOBS, job(spec=_UNKNOWN), fieldValidation="Ignore"),
}  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    yield from each("create", CREATED)
    yield scenario("create/twice", MADE, MADE)
    yield scenario("create/dry run keeps nothing", post(JOBS, job(), dryRun="All"), get(X))
    yield scenario("create/dry run of what is there", MADE, post(JOBS, job(), dryRun="All"))
    yield from _updates()
    yield from _statuses()
    yield from _patches()
    yield from _deletions()


def _updates() -> Iterator[Scenario]:
    def changed(name: str, change: Object, **query: Any) -> Scenario:
        return scenario(f"update/{name}", MADE, put(X, Edited(0, change), **query))

    yield scenario("update/what is not there", put(X, job()))
    yield scenario("update/without a resourceVersion", MADE, put(X, job()))
    yield scenario("update/another name", MADE, put(X, job("y")))
    yield changed("same", {})
    yield changed("suspend", {"spec": {"suspend": True}})
    yield changed("label", {"metadata": {"labels": {"a": "b"}}})
    yield changed("status is left alone", {"status": {"state": "Running"}})
    yield changed("another uid", {"metadata": {"uid": "other"}})
    yield changed("garbage resourceVersion", {"metadata": {"resourceVersion": "x"}})
    yield changed("resourceVersion zero", {"metadata": {"resourceVersion": "0"}})
    yield changed("future resourceVersion", {"metadata": {"resourceVersion": "99999999"}})
    yield changed("generation", {"metadata": {"generation": 9}})
    yield changed("creation time", {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}})
    yield changed("namespace", {"metadata": {"namespace": "default"}})
    yield changed("dry run", {"spec": {"suspend": True}}, dryRun="All")
    yield changed("workers", {"spec": {"workers": 3}})
    yield changed("no spec", {"spec": None})
    for mode in ("Strict", "Warn", "Ignore"):
        yield changed(f"unknown {mode}", {"spec": {"wrokers": 3}}, fieldValidation=mode)
    stale = Edited(0, {"spec": {"suspend": True}})
    yield scenario("update/conflict", MADE, put(X, stale), put(X, stale), get(X))
    yield scenario(
        "update/generation counts specs only",
        MADE,
        put(X, Edited(0, {"metadata": {"labels": {"a": "b"}}})),
        put(X, Edited(1, {"spec": {"suspend": True}})),
        put(STATUS, Edited(2, {"status": {"state": "Suspended", "observedGeneration": 2}})),
        put(X, Edited(3, {"spec": {"image": "train:2"}})),
        get(X),
    )


def _statuses() -> Iterator[Scenario]:
    running = {"status": {"state": "Running"}}
    condition = {"type": "Running", "status": "True", "reason": "AllReady"}
    when = {"lastTransitionTime": "2026-11-20T10:00:00Z", "message": ""}
    cases: dict[str, Object] = {
        "plain": running,
        "spec is left alone": {**running, "spec": {"suspend": True}},
        "labels are left alone": {**running, "metadata": {"labels": {"a": "b"}}},
        "another uid": {**running, "metadata": {"uid": "other"}},
        "future resourceVersion": {**running, "metadata": {"resourceVersion": "99999999"}},
        "unknown field": {"status": {"satte": "Running"}},
        "wrong type": {"status": {"state": 7}},
        "negative generation": {"status": {"observedGeneration": -1}},
        "condition": {"status": {"conditions": [{**condition, **when}]}},
        "condition twice": {"status": {"conditions": [{**condition, **when}] * 2}},
        "condition without time": {"status": {"conditions": [condition]}},
        "unknown condition": {"status": {"conditions": [{**condition, **when, "type": "Walking"}]}},
        "no status": {"status": None},
        "bad spec is no matter": {**running, "spec": {"workers": 0}},
    }
    yield scenario("status/of nothing", put(STATUS, job()))
    yield scenario("status/read", MADE, get(STATUS))
    for name, change in cases.items():
        yield scenario(f"status/{name}", MADE, put(STATUS, Edited(0, change)), get(X))
    stale = Edited(0, running)
    yield scenario(
        "status/conflict", MADE, put(STATUS, stale), put(STATUS, Edited(0, {"status": {"state": "Failed"}}))
    )
    yield scenario("status/the same is no write", MADE, put(STATUS, stale), put(STATUS, Edited(1, {})))
    yield scenario("status/merge", MADE, patch(STATUS, running), patch(STATUS, {"status": {"state": None}}))
    yield scenario("status/without resourceVersion", MADE, put(STATUS, {**job(), **running}))
    added = {"op": "add", "path": "/status", "value": {"state": "Running"}}
    yield scenario("status/operations", MADE, patch(STATUS, [added], JSON_PATCH))


def _patches() -> Iterator[Scenario]:
    merges: dict[str, Any] = {
        "suspend": {"spec": {"suspend": True}},
        "nothing": {},
        "remove a default": {"spec": {"launcher": None}},
        "remove what is needed": {"spec": {"workers": None}},
        "remove spec": {"spec": None},
        "wrong type": {"spec": {"workers": "two"}},
        "unknown": {"spec": {"wrokers": 1}},
        "another name": {"metadata": {"name": "y"}},
        "another uid": {"metadata": {"uid": "other"}},
        "stale": {"metadata": {"resourceVersion": "1"}, "spec": {"suspend": True}},
        "this version": {"metadata": {"resourceVersion": At(0, "metadata.resourceVersion")}},
        "status is left alone": {"status": {"state": "Running"}},
        "a list": [],
        "another kind": {"kind": "Job"},
        "annotation": {"metadata": {"annotations": {"a": "b"}}},
    }
    for name, change in merges.items():
        yield scenario(f"merge/{name}", MADE, patch(X, change), get(X))
    yield scenario("merge/nothing there", patch(X, {}))
    yield scenario("merge/dry run", MADE, patch(X, {"spec": {"suspend": True}}, dryRun="All"), get(X))
    yield scenario("merge/strict", MADE, patch(X, {"spec": {"wrokers": 1}}, fieldValidation="Strict"))
    labelled = post(f"{CORE}/configmaps", config("c", labels={"a": "b"}, finalizers=["a.b/c"]))
    for name, change in {
        "drop labels": {"metadata": {"labels": None}},
        "drop finalizers": {"metadata": {"finalizers": None}},
        "data to text": {"data": "x"},
        "number in data": {"data": {"a": 1}},
    }.items():
        yield scenario(f"merge/config {name}", labelled, patch(f"{CORE}/configmaps/c", change))
    for name, operation in OPERATIONS.items():
        operations = operation if isinstance(operation, list) else [operation]
        yield scenario(f"operations/{name}", MADE, patch(X, operations, JSON_PATCH))
    yield scenario("operations/nothing there", patch(X, [], JSON_PATCH))
    yield scenario("operations/an object", MADE, patch(X, {"op": "add"}, JSON_PATCH))
    own = {"fieldManager": "me"}
    suspended = job(spec={**SMALLEST, "suspend": True})
    yield scenario("apply/new", patch(X, job(), APPLY, **own), get(X))
    yield scenario("apply/twice", patch(X, job(), APPLY, **own), patch(X, job(), APPLY, **own))
    yield scenario("apply/change", patch(X, job(), APPLY, **own), patch(X, suspended, APPLY, **own))
    yield scenario("apply/taken away", patch(X, suspended, APPLY, **own), patch(X, job(), APPLY, **own))
    yield scenario("apply/conflict", MADE, patch(X, suspended, APPLY, **own))
    yield scenario("apply/forced", MADE, patch(X, suspended, APPLY, force="true", **own))
    yield scenario("apply/nobody", patch(X, job(), APPLY))
    yield scenario("apply/without kind", patch(X, {"spec": SMALLEST}, APPLY, **own))
    yield scenario("apply/another name", patch(X, job("y"), APPLY, **own))


OPERATIONS: dict[str, Any] = {
    "replace": {"op": "replace", "path": "/spec/suspend", "value": True},
    "add": {"op": "add", "path": "/spec/image", "value": "train:1"},
    "remove": {"op": "remove", "path": "/spec/launcher"},
    "remove nothing": {"op": "remove", "path": "/spec/none"},
    "replace nothing": {"op": "replace", "path": "/spec/none", "value": 1},
    "deep nothing": {"op": "add", "path": "/spec/none/x", "value": 1},
    "test holds": [{"op": "test", "path": "/spec/workers", "value": 2}],
    "test fails": [{"op": "test", "path": "/spec/workers", "value": 3}],
    "test nothing": [{"op": "test", "path": "/spec/none", "value": 3}],
    "unknown": {"op": "change", "path": "/spec/suspend", "value": True},
    "no path": {"op": "add", "value": True},
    "unknown field": {"op": "add", "path": "/spec/wrokers", "value": 1},
    "append": {"op": "add", "path": "/spec/command/-", "value": "x"},
    "index beyond": {"op": "add", "path": "/spec/command/9", "value": "x"},
    "index is text": {"op": "replace", "path": "/spec/command/x", "value": "x"},
    "nothing": [],
}


def _deletions() -> Iterator[Scenario]:
    held = post(JOBS, job(finalizers=["a.b/c"]))
    yield scenario("delete/job", MADE, delete(X), get(X), delete(X))
    requested: dict[str, Object] = {
        "its uid": {"preconditions": {"uid": At(0, "metadata.uid")}},
        "another uid": {"preconditions": {"uid": "other"}},
        "its version": {"preconditions": {"resourceVersion": At(0, "metadata.resourceVersion")}},
        "another version": {"preconditions": {"resourceVersion": "1"}},
        "foreground": {"propagationPolicy": "Foreground"},
        "background": {"propagationPolicy": "Background"},
        "orphan": {"propagationPolicy": "Orphan"},
        "bad policy": {"propagationPolicy": "Never"},
        "grace": {"gracePeriodSeconds": 5},
        "dry run": {"dryRun": ["All"]},
        "bad dry run": {"dryRun": ["Some"]},
        "kind": {"kind": "DeleteOptions", "apiVersion": "v1"},
        "other kind": {"kind": "Pod", "apiVersion": "v1"},
        "unknown field": {"nobody": 1},
        "two policies": {"propagationPolicy": "Background", "orphanDependents": True},
    }
    for name, options in requested.items():
        yield scenario(f"delete/job {name}", MADE, delete(X, options), get(X))
    yield scenario("delete/dry run in the query", MADE, delete(X, dryRun="All"), get(X))
    yield scenario("delete/broken body", MADE, delete(X, "{["), get(X))
    yield scenario("delete/text as grace", MADE, delete(X, gracePeriodSeconds="x"), get(X))
    let_go = patch(X, {"metadata": {"finalizers": None}})
    yield scenario("delete/held", held, delete(X), get(X), delete(X), let_go, get(X))
    yield scenario("delete/held and changed", held, delete(X), patch(X, {"spec": {"suspend": True}}))
    more = patch(X, {"metadata": {"finalizers": ["a.b/c", "d.e/f"]}})
    yield scenario("delete/no new finalizer on what goes", held, delete(X), more)
    yield scenario("delete/made again while held", held, delete(X), MADE)
    yield scenario("delete/made again", MADE, delete(X), MADE)
