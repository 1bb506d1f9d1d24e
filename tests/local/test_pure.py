"""The parts without I/O: patches, selectors, schemas, tables, command lines."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeteam.local import resources as r
from ropeteam.local.api import schema, selectors, tables
from ropeteam.local.api.patch import json_patch, merge
from ropeteam.local.node import kubelet, podspec
from ropeteam.local.resources import StatusError

Object = dict[str, Any]


def test_a_merge_patch_removes_by_null_and_replaces_lists():
    assert merge({"a": {"b": 1, "c": 2}, "l": [1]}, {"a": {"b": None}, "l": [2]}) == {"a": {"c": 2}, "l": [2]}
    assert merge("text", {"a": {"b": None}}) == {"a": {}}


def test_a_strategic_patch_merges_lists_by_name():
    before = {"containers": [{"name": "a", "image": "1", "env": []}, {"name": "b"}]}
    change = {
        "$setElementOrder/containers": [],
        "containers": [{"name": "a", "image": "2"}, {"name": "b", "$patch": "delete"}, {"name": "c"}],
    }
    after = {"containers": [{"name": "a", "image": "2", "env": []}, {"name": "c"}]}
    assert merge(before, change, strategic=True) == after


@pytest.mark.parametrize(
    ("operation", "after"),
    [
        ({"op": "add", "path": "/l/1", "value": 9}, {"l": [1, 9, 2], "a": {"b": 3}}),
        ({"op": "add", "path": "/l/-", "value": 9}, {"l": [1, 2, 9], "a": {"b": 3}}),
        ({"op": "remove", "path": "/l/0"}, {"l": [2], "a": {"b": 3}}),
        ({"op": "replace", "path": "/l/0", "value": 9}, {"l": [9, 2], "a": {"b": 3}}),
        ({"op": "move", "from": "/a/b", "path": "/c"}, {"l": [1, 2], "a": {}, "c": 3}),
        ({"op": "copy", "from": "/a/b", "path": "/l/0"}, {"l": [3, 1, 2], "a": {"b": 3}}),
        ({"op": "test", "path": "/a/b", "value": 3}, {"l": [1, 2], "a": {"b": 3}}),
        ({"op": "replace", "path": "", "value": {"new": 1}}, {"new": 1}),
    ],
)
def test_json_patch_applies_its_operations_in_order(operation: Object, after: Object):
    assert json_patch({"l": [1, 2], "a": {"b": 3}}, [operation]) == after


@pytest.mark.parametrize("path", ["/none/x", "/l/7", "/l/x", "/none"])
def test_a_json_patch_that_does_not_fit_is_refused(path: str):
    with pytest.raises(StatusError) as caught:
        json_patch({"l": [1]}, [{"op": "remove", "path": path}])
    assert caught.value.code == 422


@pytest.mark.parametrize(
    ("labels", "fields", "holds"),
    [
        ("a=1", "", True),
        ("a==1,b", "", True),
        ("a!=1", "", False),
        ("c!=1,!c", "", True),
        ("a in (0, 1),b notin (9)", "", True),
        ("c in (x)", "", False),
        ("", "spec.nodeName=local,status.phase!=Failed", True),
        ("", "metadata.name=other", False),
    ],
)
def test_selectors_match_as_in_kubectl(labels: str, fields: str, holds: bool):
    value = {"metadata": {"name": "n", "labels": {"a": "1", "b": "2"}}, "spec": {"nodeName": "local"}}
    assert selectors.parse(labels, fields)(value) is holds


@pytest.mark.parametrize(("labels", "fields"), [("a in b", ""), ("", "status.phase")])
def test_what_is_no_selector_is_refused(labels: str, fields: str):
    with pytest.raises(StatusError):
        selectors.parse(labels, fields)


def typed(kind: str, **more: Any) -> Object:
    return {"type": "object", "properties": {"v": {"type": kind, **more}}}


@pytest.mark.parametrize(
    ("shape", "value", "text"),
    [
        (
            typed("integer", minimum=1),
            0,
            "v: Invalid value: 0: v in body should be greater than or equal to 1",
        ),
        (typed("integer", maximum=1), 2, "v: Invalid value: 2: v in body should be less than or equal to 1"),
        (typed("integer"), True, 'v: Invalid value: "boolean": v in body must be of type integer: "boolean"'),
        (typed("string"), None, 'v: Invalid value: "null": v in body must be of type string: "null"'),
        (
            typed("string", minLength=2),
            "a",
            'v: Invalid value: "a": v in body should be at least 2 chars long',
        ),
        (typed("string", maxLength=1), "ab", "v: Too long: may not be more than 1 bytes"),
        (typed("string", pattern="^a$"), "b", "v: Invalid value: \"b\": v in body should match '^a$'"),
        (typed("array", minItems=1), [], "v: Invalid value: 0: v in body should have at least 1 items"),
        (typed("array", maxItems=1), [1, 2], "v: Too many: 2: must have at most 1 items"),
        (typed("array", items={"type": "string"}), [1], 'v[0]: Invalid value: "integer": v[0] in body must'),
        (typed("object", required=["x"]), {}, "v.x: Required value"),
        (typed("object", additionalProperties={"type": "string"}), {"k": 1}, 'v.k: Invalid value: "integer"'),
        ({"properties": {"v": {"x-kubernetes-int-or-string": True}}}, [], 'v: Invalid value: "array"'),
        (
            typed("string", format="date-time"),
            "soon",
            'v: Invalid value: "soon": v in body must be of type date',
        ),
    ],
)
def test_the_errors_of_a_value(shape: Object, value: Any, text: str):
    (error,) = schema.field_errors({"v": value}, shape)
    assert str(error).startswith(text)


def test_values_that_fit_have_no_errors():
    fine = [
        (typed("string", nullable=True), None),
        (typed("string", format="date-time"), "2030-01-01T00:00:00Z"),
        (typed("number", minimum=0), 0.5),
        ({"properties": {"v": {"x-kubernetes-int-or-string": True}}}, "8Gi"),
    ]
    assert [list(schema.field_errors({"v": value}, shape)) for shape, value in fine] == [[]] * 4


def test_defaults_go_deep_and_null_gives_way():
    inner = {"type": "object", "default": {}, "properties": {"x": {"type": "integer", "default": 1}}}
    shape = {"properties": {"v": inner, "m": {"additionalProperties": inner}, "l": {"items": inner}}}
    value: Object = {"v": None, "m": {"k": {}}, "l": [{}]}
    schema.set_defaults(value, shape)
    assert value == {"v": {"x": 1}, "m": {"k": {"x": 1}}, "l": [{"x": 1}]}


def test_pruning_names_what_it_took_and_leaves_free_parts_alone():
    free = {"x-kubernetes-preserve-unknown-fields": True}
    shape = {
        "properties": {
            "l": {"items": {"properties": {"a": {}}}},
            "free": free,
            "m": {"additionalProperties": {"properties": {}}},
        }
    }
    value = {"l": [{"a": 1, "b": 2}], "free": [{"x": {"y": [{"z": 1}]}}], "m": {"k": {"c": 1}}, "no": 1}
    assert schema.prune(value, shape) == ["l[0].b", "m.k.c", "no"]
    assert value == {"l": [{"a": 1}], "free": [{"x": {"y": [{"z": 1}]}}], "m": {"k": {}}}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (185, "3m5s"), (3600, "60m")),
        *((14520, "4h2m"), (18000, "5h"), (108000, "30h"), (176400, "2d1h"), (777600, "9d")),
    ],
)
def test_ages_read_as_in_kubernetes(seconds: int, text: str, monkeypatch: pytest.MonkeyPatch):
    now = datetime.now(UTC)

    stopped = SimpleNamespace(now=now.astimezone, fromisoformat=datetime.fromisoformat)
    monkeypatch.setattr(tables, "datetime", stopped)
    moment = now - timedelta(seconds=seconds + 0.2)
    assert tables.age(moment.isoformat()) == text
    assert tables.age(None) == "<unknown>"


def row(**state: Object) -> Object:
    return {"state": state, "ready": "running" in state, "restartCount": 0}


@pytest.mark.parametrize(
    ("main", "init", "column"),
    [
        (row(running={}), [], "Running"),
        (row(waiting={"reason": "CrashLoopBackOff"}), [], "CrashLoopBackOff"),
        (row(terminated={"reason": "Error", "exitCode": 1}), [], "Error"),
        (row(waiting={"reason": "ContainerCreating"}), [row(running={})], "Init:0/1"),
        (row(waiting={}), [row(terminated={"reason": "Error", "exitCode": 1})], "Init:Error"),
        (row(waiting={}), [row(waiting={"reason": "CrashLoopBackOff"})], "Init:CrashLoopBackOff"),
        (row(running={}), [row(terminated={"reason": "Completed", "exitCode": 0})], "Running"),
    ],
)
def test_the_status_column_of_pods(main: Object, init: list[Object], column: str):
    status = {"phase": "Pending", "containerStatuses": [main], "initContainerStatuses": init}
    pod = {"metadata": {"name": "p"}, "status": status, "spec": {"containers": [{}]}}
    assert tables.pod_status(pod) == column
    assert tables.pod_status(pod | {"metadata": {"deletionTimestamp": "x"}}) == "Terminating"
    whole = tables.table(r.PODS, [pod], {"resourceVersion": "1"}, "Object")
    assert whole["rows"][0]["object"] == {"kind": "Pod", "apiVersion": "v1", **pod}
    assert tables.table(r.PODS, [pod], {}, "None")["rows"][0]["object"] is None


def test_commands_are_looked_up_in_our_environment_first(tmp_path: Path):
    path = {"PATH": str(tmp_path)}
    fake = tmp_path / "python3"
    fake.touch(0o755)
    assert podspec.find_command("python3", path, tmp_path) != str(fake)
    assert podspec.find_command("./python3", path, tmp_path) == str(tmp_path / "python3")
    (tmp_path / "python2.0").touch(0o755)
    assert podspec.find_command("python2.0", path, tmp_path) == str(tmp_path / "python2.0")
    with pytest.raises(podspec.ContainerStartError, match="no such file"):
        podspec.find_command("./none", path, tmp_path)


@pytest.mark.parametrize("active", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_programs_of_an_activated_environment_come_before_ours(active: str):
    ours = str(Path(sys.prefix, "bin"))
    plain = {"PATH": "/theirs/bin:/usr/bin"}
    assert kubelet.base_environment(plain)["PATH"] == f"{ours}:/theirs/bin:/usr/bin"
    found = kubelet.base_environment({**plain, active: "/theirs"})["PATH"]
    assert found == f"/theirs/bin:/usr/bin:{ours}"


def test_a_container_without_a_command_is_refused_with_what_to_do(tmp_path: Path):
    context = podspec.ExecutionContext({}, {}, tmp_path)
    with pytest.raises(podspec.ContainerStartError, match="write the command in the manifest"):
        podspec.process_spec({}, {"name": "a"}, context, lambda *_: None)
    with pytest.raises(podspec.ContainerStartError, match="working directory"):
        podspec.process_spec(
            {}, {"name": "a", "command": ["x"], "workingDir": "none"}, context, lambda *_: None
        )
    env = [{"name": "A", "valueFrom": {"resourceFieldRef": {}}}]
    with pytest.raises(podspec.ContainerStartError, match="resourceFieldRef"):
        podspec.process_spec({}, {"name": "a", "command": ["x"], "env": env}, context, lambda *_: None)


def test_a_label_that_a_pod_does_not_have_is_no_value():
    assert podspec.field_of({"metadata": {}}, "metadata.labels['team']") is None
    assert podspec.field_of({"metadata": {"labels": {"team": "a"}}}, "metadata.labels['team']") == "a"
