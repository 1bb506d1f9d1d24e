"""Each field of a TrainingJob's spec with values that it must refuse, made from its schema; and each rule's
examples."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from tests.differential.bodies import JOBS, SMALLEST, job
from tests.differential.scenario import At, Edited, Object, Scenario, each, post, put, scenario

from ropeteam.api.rule import Spec
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.rules.validate import spec_schema
from ropeteam.api.schema.structural import Schema

_VOLUME = {"persistentVolumeClaim": {"claimName": "c"}}
FULL: Spec = {
    **SMALLEST,
    "env": [{"name": "A", "value": "1"}],
    "resources": {"limits": {"cpu": 1}, "requests": {"memory": "1Gi"}},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "trainer"}]}},
    "checkpoint": {"volume": _VOLUME},
    "resume": {"policy": "Latest"},
    "recovery": {"exitCodes": [{"codes": [2], "action": "Fail"}]},
}
_WRONG: dict[str, Any] = {
    "integer": "two", "number": "two", "string": 7, "boolean": "yes", "array": {"a": 1}, "object": [1],
}  # fmt: skip
Steps = tuple[str | int, ...]


def scenarios() -> Iterator[Scenario]:
    for steps, schema in _fields(spec_schema(), ()):
        for fault, value in _faults(schema):
            name = ".".join(str(step) for step in steps)
            yield scenario(f"shape/{name}/{fault}", post(JOBS, job(spec=_with(steps, value))))
    yield from each(
        "shape", {f"several/{name}": post(JOBS, job(spec=spec)) for name, spec in SEVERAL.items()}
    )
    for number, rule in enumerate(RULES):
        for kind, example in (("good", rule.valid), ("bad", rule.invalid)):
            body = job(spec=example) if rule.path else job(example["metadata"]["name"])
            yield scenario(f"rule/{number}-{rule.path or 'job'}/{kind}", post(JOBS, body))
    for change in CHANGES.fields:
        yield from _changes(change.field, *change.examples)


SEVERAL: dict[str, Any] = {
    "three fields": {"workers": 0, "command": [], "launcher": "Ssh"},
    "shape and rule": {"workers": 0, "recovery": {"lostSeconds": 100, "fenceSeconds": 50}},
    "two rules": {"workers": 2, "recovery": {"lostSeconds": 100, "fenceSeconds": 50}, "resume": {"step": 3}},
    "rules of one place": {"workers": 2, "launcher": "PerPod", "recovery": {"start": "Fork"}},
    "missing and wrong": {"command": "python", "env": [{"value": 1}, {"name": "A"}, {"name": "A"}]},
    "list map key twice": {**SMALLEST, "env": [{"name": "A"}, {"name": "A"}]},
    "float for integer": {**SMALLEST, "workers": 2.0},
    "fraction for integer": {**SMALLEST, "workers": 2.5},
    "huge integer": {**SMALLEST, "workers": 10**19},
    "date without zone": {**SMALLEST, "restartedAt": "2026-11-20T10:00:00"},
    "date of no calendar": {**SMALLEST, "restartedAt": "2026-13-40T10:00:00Z"},
    "date in lower case": {**SMALLEST, "restartedAt": "2026-11-20t10:00:00z"},
    "null with default": {**SMALLEST, "launcher": None, "suspend": None},
    "null of an object with default": {**SMALLEST, "recovery": None},
    "wide letters": {**SMALLEST, "sharedMemory": "\u00fc" * 40, "workingDir": "\u00fc" * 1000},
}


def _changes(field: str, before: Any, after: Any) -> Iterator[Scenario]:
    """A change while the job runs, and while it is suspended."""
    first, second = (_changed(field, value) for value in (before, after))
    made = post(JOBS, job(spec=first))
    idle = put(f"{JOBS}/x/status", Edited(0, {"status": {"state": "Suspended"}}))
    for state, calls in (("running", (made,)), ("suspended", (made, idle))):
        version = At(len(calls) - 1, "metadata.resourceVersion")
        yield scenario(
            f"change/{field}/{state}", *calls, put(f"{JOBS}/x", job(spec=second, resourceVersion=version))
        )


def _changed(field: str, value: Any) -> Spec:
    spec: Spec = {"checkpoint": {"volume": _VOLUME}, **copy.deepcopy(SMALLEST)}
    if field == "template":
        spec.pop("checkpoint")
    home, _, last = field.rpartition(".")
    place = spec.setdefault(home, {}) if home else spec
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value
    return spec


def _fields(schema: Schema, steps: Steps) -> Iterator[tuple[Steps, Schema]]:
    for name, inner in schema.get("properties", {}).items():
        yield from _field(inner, (*steps, name))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _field(schema["additionalProperties"], (*steps, "cpu"))
    if "items" in schema:
        yield from _field(schema["items"], (*steps, 0))


def _field(schema: Schema, steps: Steps) -> Iterator[tuple[Steps, Schema]]:
    yield steps, schema
    yield from _fields(schema, steps)


def _faults(schema: Schema) -> Iterator[tuple[str, Any]]:
    kind = schema.get("type")
    yield "type", _WRONG[kind] if kind else []
    yield "null", None
    if "minimum" in schema:
        yield "minimum", schema["minimum"] - 1
    if "maximum" in schema:
        yield "maximum", schema["maximum"] + 1
    if "enum" in schema:
        yield "enum", "Wrong"
    if schema.get("minLength"):
        yield "minLength", ""
    if "maxLength" in schema:
        yield "maxLength", "x" * (schema["maxLength"] + 1)
    if "pattern" in schema:
        yield "pattern", "!"
    if "minItems" in schema:
        yield "minItems", []
    if "maxItems" in schema:
        yield "maxItems", _many(schema)
    if "minProperties" in schema:
        yield "minProperties", {}
    if "maxProperties" in schema:
        yield "maxProperties", {f"k{n}": 1 for n in range(schema["maxProperties"] + 1)}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield "unknown", {"nobody-knows": 1}


def _many(schema: Schema) -> list[Any]:
    item = schema["items"]
    count = schema["maxItems"] + 1
    if item["type"] == "string":
        return ["x"] * count
    if item["type"] == "integer":
        return [1 + number % 200 for number in range(count)]
    needed = set(item.get("required", ()))
    values: Object = {"codes": [2], "action": "Fail"}
    return [{key: values.get(key, f"n{n}") for key in needed} for n in range(count)]


def _with(steps: Steps, value: Any) -> Spec:
    """FULL with `value` at a place."""
    spec = copy.deepcopy(FULL)
    place: Any = spec
    for step, following in itertools.pairwise(steps):
        empty: Any = [{}] if following == 0 else {}
        place = place.setdefault(step, empty) if isinstance(place, dict) else place[step]
    if isinstance(place, list):
        place[0] = value
    else:
        place[steps[-1]] = value
    return spec
