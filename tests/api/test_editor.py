"""The schema for editors, held by another validator: it takes every manifest of ours, and names each typo."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from tests.fuzz.specs import LONG, SERVED, SHORT

from ropeteam.api.editor import FILE, editor_schema
from ropeteam.api.job import API_VERSION, KIND

ROOT = Path(__file__).parents[2]
SCHEMA = editor_schema()
EXAMPLES = sorted((ROOT / "examples").glob("**/*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def wrong(job: Any) -> list[str]:
    return [f"{each.json_path}: {each.message}" for each in Draft7Validator(SCHEMA).iter_errors(job)]


def job(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": spec}


def test_it_is_a_schema_of_draft_7() -> None:
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid_and_names_where_its_schema_is(example: Path) -> None:
    text = example.read_text()
    [found] = [each for each in yaml.safe_load_all(text) if each["kind"] == KIND]
    assert wrong(found) == []
    modeline = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert modeline, "an editor reads it from the first line"
    assert (example.parent / modeline[1]).resolve() == ROOT / FILE


def test_every_manifest_of_the_documents_is_valid() -> None:
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    # A page may show a spec alone; its apiVersion, kind and name are ours then.
    shown = [job({}) | each for block in blocks for each in yaml.safe_load_all(block) if "spec" in each]
    shown = [each for each in shown if each["kind"] == KIND]
    assert len(shown) > 20
    assert [(each, wrong(each)) for each in shown if wrong(each)] == []


@pytest.mark.parametrize("spec", [SHORT, LONG, SERVED])
def test_what_a_server_takes_is_valid(spec: dict[str, Any]) -> None:
    assert wrong(job(spec)) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("kind", "TrainingJbo", "'TrainingJob' was expected"),
        ("apiVersion", "ropeteam.dev/v1", "'ropeteam.dev/v1alpha1' was expected"),
        ("sepc", {}, "'sepc' was unexpected"),
        ("metadata.name", "Mnist", "'Mnist' does not match"),
        ("spec.worker", 2, "'worker' was unexpected"),
        ("spec.workers", "two", "'two' is not of type 'integer'"),
        ("spec.launcher", "PerNode", "'PerNode' is not one of ['Auto', 'PerRank', 'PerPod']"),
        ("spec.recovery.maxFailure", 3, "'maxFailure' was unexpected"),
        ("spec.checkpoint.everyStep", 3, "'everyStep' was unexpected"),
        ("spec.strategy.sync.typ", "Ring", "'typ' was unexpected"),
        ("spec.resources.limits.cpu", [1], "[1] is not of type 'integer', 'string'"),
    ],
)
def test_a_typo_is_named(path: str, value: Any, expected: str) -> None:
    broken = copy.deepcopy(job(LONG | SERVED))
    *folders, last = path.split(".")
    place = broken
    for folder in folders:
        place = place[folder]
    place[last] = value
    [message] = wrong(broken)
    assert expected in message


def test_a_pod_template_is_open() -> None:
    """Kubernetes adds fields of its own with every version."""
    pod = {"schedulingGates": [{"name": "later"}], "containers": [{"name": "trainer", "lifecycle": {}}]}
    assert wrong(job(SHORT | {"template": {"spec": pod}})) == []
