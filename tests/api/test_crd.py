"""The CRD: small, described to the last field, bounded, and in crds/ exactly as the models say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from tests.api.test_columns import a_status

from ropeteam.api import crd, editor
from ropeteam.api.columns import with_columns
from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.status import JobStatus

ROOT = Path(__file__).parents[2]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from nodes(each, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from nodes(schema[inner], f"{path}[]")


def test_the_repository_holds_what_the_models_define(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check"], ROOT) == 0, capsys.readouterr().out


@pytest.mark.parametrize("drifted", [crd.FILE, editor.FILE])
def test_drift_is_reported_and_mended(
    drifted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / drifted
    for each in (crd.FILE, editor.FILE):
        (tmp_path / each).parent.mkdir()
    assert crd.main(["--check"], tmp_path) == 1
    assert crd.main([], tmp_path) == 0
    assert crd.main(["--check"], tmp_path) == 0
    capsys.readouterr()
    file.write_text(file.read_text() + "# changed\n")
    assert crd.main(["--check"], tmp_path) == 1
    assert f"{file} differs from the models; run `make crds`" in capsys.readouterr().out


def test_it_is_small_enough_for_plain_kubectl_apply() -> None:
    assert len(crd.to_yaml().encode()) <= crd.MAX_BYTES == 200 * 1024


def test_yaml_reads_back_as_the_same_object() -> None:
    assert yaml.safe_load(crd.to_yaml()) == crd.crd()


def test_every_field_is_described() -> None:
    properties = [
        (f"{path}.{name}", each)
        for path, node in nodes(crd.job_schema())
        for name, each in node.get("properties", {}).items()
    ]
    assert len(properties) > 100
    undescribed = [path for path, each in properties if not each.get("description")]
    assert undescribed == [".metadata"], "a real API server allows no description there"


def test_every_text_list_and_map_of_ours_has_a_maximum() -> None:
    bounds = {"string": {"maxLength", "enum", "format"}, "array": {"maxItems"}, "object": {"maxProperties"}}
    free = {".apiVersion", ".kind", ".metadata"}
    unbounded = [
        path
        for path, node in nodes(crd.job_schema())
        if not node.keys()
        & {"properties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"}
        and not node.keys() & bounds.get(node["type"], set(node))
    ]
    assert set(unbounded) == free


def test_only_keywords_of_a_structural_schema_are_used() -> None:
    forbidden = {
        "$ref",
        "$defs",
        "anyOf",
        "oneOf",
        "allOf",
        "const",
        "title",
        "patternProperties",
        "prefixItems",
    }
    for path, node in nodes(crd.job_schema()):
        assert not node.keys() & forbidden, path
        assert not {"properties", "additionalProperties"} <= node.keys(), path
        assert node.get("default", 0) is not None, path
        assert "x-kubernetes-int-or-string" in node or isinstance(node["type"], str), path


def described_spec() -> dict[str, Any]:
    """Schema of spec as `kubectl explain` reads it."""
    [version] = crd.crd()["spec"]["versions"]
    spec: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (".workers", "Must be between 1 and 4096."),
        (".launcher", "Defaults to Auto."),
        (".suspend", "Defaults to false."),
        (".command", "At most 256 items are allowed."),
        (".resume.step", "Must be 0 or more."),
        (".recovery.startSeconds", "Defaults to 600. Must be between 5 and 86400."),
        (".env[].name", "At most 128 characters are allowed."),
    ],
)
def test_descriptions_of_spec_end_with_default_and_limits(path: str, end: str) -> None:
    """`kubectl explain` prints no others."""
    assert dict(nodes(described_spec()))[path]["description"].endswith(f". {end}")


def test_fields_that_can_be_changed_while_pods_run_are_described_so() -> None:
    spec = described_spec()["properties"]
    recovery = spec["recovery"]["properties"]
    fields = spec | {f"recovery.{name}": each for name, each in recovery.items()}
    marked = {name for name, each in fields.items() if "Can be changed at any time." in each["description"]}
    assert marked == {*fields} - {"recovery"} - {change.field for change in CHANGES.fields}


def test_status_is_never_defaulted_by_the_server() -> None:
    status = crd.job_schema()["properties"]["status"]
    assert [path for path, node in nodes(status) if "default" in node] == []


def test_defaults_are_those_of_pydantic() -> None:
    spec = crd.job_schema()["properties"]["spec"]
    defaults = {name: each["default"] for name, each in spec["properties"].items() if "default" in each}
    least = TrainingJobSpec(workers=1).to_json()
    assert defaults == {name: value for name, value in least.items() if name != "workers"}


def test_every_rule_is_in_it_once() -> None:
    found = [each for _, node in nodes(crd.job_schema()) for each in _rules(node)]
    messages = [each["message"] for each in found if "message" in each]
    assert sorted(messages) == sorted(rule.message for rule in RULES)
    assert [each["rule"] for each in found if "messageExpression" in each] == [CHANGES.cel]


def _rules(node: dict[str, Any]) -> list[dict[str, str]]:
    rules: list[dict[str, str]] = node.get("x-kubernetes-validations", [])
    return rules


def test_columns_show_what_status_holds() -> None:
    status = with_columns(a_status())
    job = {"metadata": {"creationTimestamp": "2030-01-01T00:00:00Z"}, "status": status.to_json()}
    shown = {}
    for name, _, path, _, _ in crd.COLUMNS:
        value: Any = job
        for part in path.split(".")[1:]:
            value = value[part]
        shown[name] = value
    assert shown == {
        "STATE": "Recovering",
        "READY": "2/3",
        "STEP": 40,
        "PROGRESS": "40%",
        "ETA": "2m5s",
        "FAILURES": "1/10",
        "AGE": "2030-01-01T00:00:00Z",
        "REASON": "RankFailed",
        "CHECKPOINT": 30,
        "LAST-INCIDENT": "Signal in slot 1",
    }


def test_a_status_that_the_operator_writes_fits_the_schema() -> None:
    from ropeteam.api.schema.sentences import problems
    from ropeteam.api.schema.structural import structural_schema

    schema = structural_schema(JobStatus, defaults=False)
    for status in (JobStatus(), with_columns(a_status())):
        assert list(problems(schema, status.to_json(), "status")) == []


def test_every_model_is_documented() -> None:
    def models(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
        yield kind
        for each in kind.__subclasses__():
            yield from models(each)

    ours = [each for each in models(BaseModel) if each.__module__.startswith("ropeteam.api.")]
    assert [each for each in ours if not each.__doc__] == []
