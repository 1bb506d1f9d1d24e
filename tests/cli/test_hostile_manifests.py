"""Any manifest is valid, or one sentence names the problem, soon."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ropeteam.cli.main import cli
from ropeteam.cli.manifest import manifestyaml

HEAD = "apiVersion: ropeteam.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: good}\n"
VALID = "workers: 2, command: [python]"
TENFOLD = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in pairwise("abcdefghi"))
LAUGHS = f"a: &a [{', '.join('x' * 10)}]\n{TENFOLD}"
CHAIN = "a0: &a0 [x]\n" + "\n".join(f"a{n + 1}: &a{n + 1} [*a{n}]" for n in range(5000))


def output_of(file: Path, text: str) -> tuple[int, str]:
    file.write_text(text)
    result = CliRunner().invoke(cli, ["validate", str(file)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LAUGHS, "line 8: more than 100000 values"),
        (f"{LAUGHS}\nspec: *i", "more than 100000 values"),
        (CHAIN, "more than 100 nested levels"),
        ("spec: " + "[" * 5000 + "]" * 5000, "line 4: more than 100 nested levels"),
        ("spec: &s {template: *s}", "line 4: *s is an alias inside its own anchor"),
        ("spec: {command: &c [x, *c]}", "*c is an alias inside"),
        (f"spec: {{workers: {'9' * 6000}}}", "line 4: a number of 6000 digits"),
        (f"spec: {{workers: 0x{'f' * 6000}}}", "a number of 6002 digits"),
        (
            f"spec: {{{VALID}, resources: {{limits: {{cpu: {2**64}}}}}}}",
            "line 4: 18446744073709551616 has more than",
        ),
        (f"spec: {{workers: -0x{'f' * 17}}}", "has more than 64 bits"),
        ("spec: {1: x}", "a key is 1, which is not text"),
        ("spec: {yes: x}", "a key is yes, which is not text"),
        ("spec: {? [a, b] : x}", "a key is a list or a map"),
        ("spec: {workers: 2}\nspec: {}", "line 5: key 'spec' is listed twice"),
        ("spec: {workers: 2, workers: 3}", "key 'workers' is listed twice"),
        (f'spec: {{{VALID}, image: "a\\0b"}}', "text with a character that commands"),
        (f'spec: {{{VALID}, image: "\\ud800"}}', "text with a character that commands"),
        (f'spec: {{{VALID}, image: "\\U00110000"}}', "line 4: \\U is followed by digits that are not"),
        (f'spec: {{{VALID}, image: "\\U99999999"}}', "line 4: \\U is followed by digits that are not"),
        (f"spec: {{{VALID}, template: {{x: .inf}}}}", ".inf is not a number of JSON"),
        (f"spec: {{{VALID}, template: {{x: 1.0e+999}}}}", "is not a number of JSON"),
        (f"spec: {{{VALID}, template: {{x: !!set {{a}}}}}}", "set does not exist in Kubernetes"),
        (f"spec: {{{VALID}, template: !!python/object:os.system {{}}}}", "does not exist in Kubernetes"),
        (
            f"spec: {{{VALID}, sharedMemory: 8Gi, resources: {{limits: {{memory: 1e999999999}}}}}}",
            "sharedMemory",
        ),
        ("spec: {workers: [" + ", ".join(["{a: b}"] * 30_000) + "]}", 'spec.workers: [{"a": "b"}, '),
        ("spec: {restartedAt: 2026-13-45, " + VALID + "}", "spec.restartedAt: '2026-13-45' is not a time"),
        ("#" * (3 << 20), "has more than 3145728 bytes"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(text: str, expected: str, tmp_path: Path) -> None:
    code, output = output_of(tmp_path / "job.yaml", HEAD + text)
    assert code == 2
    assert expected in output
    assert len(output) < 1000


@pytest.mark.parametrize("meta", ["labels: [a]", "annotations: {a: 1}", "namespace: 5"])
def test_metadata_of_another_shape_is_reported(meta: str, tmp_path: Path) -> None:
    text = f"{HEAD}spec: {{{VALID}}}".replace("name: good", f"name: good, {meta}")
    code, output = output_of(tmp_path / "job.yaml", text)
    assert code == 2
    assert f"metadata.{meta.split(':')[0]} of TrainingJob good is not" in output


def test_metadata_that_is_null_is_left_out(tmp_path: Path) -> None:
    text = f"{HEAD}spec: {{{VALID}, image: train}}"
    text = text.replace("name: good", "name: good, annotations: null, labels: ~")
    assert output_of(tmp_path / "job.yaml", text)[0] == 0


def test_aliases_and_times_are_taken_as_kubectl_takes_them() -> None:
    text = HEAD + "x: &x {workers: 2}\nspec: {<<: *x, workers: 3, restartedAt: 2026-01-31T12:00:00Z}"
    (document,) = manifestyaml.documents(text)
    assert document["spec"] == {"workers": 3, "restartedAt": "2026-01-31T12:00:00Z"}
    assert list(manifestyaml.documents("a: 1.5\n---\n- ~\n- 1_000")) == [{"a": 1.5}, [None, 1000]]


PIECES = (
    """a: |&x |*x|<<: |[|]|{|}|, |? |  |- |!!set |!!int |0o|1:2|2026-13-45|'|"|.nan|1e99|true|~|=|---|%"""
)
pieces = st.lists(st.sampled_from([*PIECES.split("|"), "|", "\n", "\\0", "9" * 99]), max_size=12).map("".join)


def outcome_of(text: str) -> str:
    try:
        documents = list(manifestyaml.documents(text))
    except manifestyaml.ManifestError:
        return "refused"
    json.dumps(documents, allow_nan=False)
    return "read"


@given(text=pieces | st.text(max_size=20))
@example(text="!!int x")
@example(text="!!bool maybe")
@example(text="&x [*x]")
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_read_or_refused(text: str) -> None:
    assert outcome_of(text) in ("read", "refused")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [("a: 1", "read"), ("&x [1, *x]", "refused"), ("!!int x", "refused"), ("!!bool yes", "read")],
)
def test_some_texts_are_read_and_some_are_refused(text: str, outcome: str) -> None:
    assert outcome_of(text) == outcome


@given(tail=pieces)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_manifest_is_valid_or_refused(tail: str, tmp_path: Path) -> None:
    code, output = output_of(tmp_path / "job.yaml", f"{HEAD}spec:\n  workers: 1\n  template: {tail}")
    assert code in (0, 2)
    assert output.startswith("error: ") or "is valid" in output


@pytest.mark.parametrize("spec", ['{"workers": ' + "9" * 5000 + "}", '{"a": ' * 3000 + "1" + "}" * 3000])
def test_a_snapshot_that_python_cannot_hold_is_refused(spec: str, tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    rest = '{"now": "2026-01-01T00:00:00Z", "metadata": {"name": "a"}, "status": {}, "spec": '
    file.write_text(rest + spec + "}")
    result = CliRunner().invoke(cli, ["explain", str(file)])
    assert result.exit_code == 2
    assert "is not a snapshot" in result.output
