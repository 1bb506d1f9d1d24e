"""The reference has every field and command; links that leave docs/ lead to files on the forge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools import forgelinks, generated, reference

from ropeteam.api.crd import job_schema
from ropeteam.api.schema.structural import Schema
from ropeteam.cli.main import cli


def fields(schema: Schema) -> Iterator[str]:
    for name, each in schema.get("properties", {}).items():
        yield name
        yield from fields(each.get("items", each))


def test_the_page_of_fields_has_all_of_them():
    page = reference.trainingjob()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    schema = job_schema()["properties"]
    assert sorted(rows) == sorted([*fields(schema["spec"]), *fields(schema["status"])])
    assert "| `keep` | integer | `3` |" in page
    assert "(1 to 4096)" in page


def test_the_page_of_commands_has_the_help_of_each():
    page = reference.commands()
    assert all(f"## ropeteam {name}\n\n```text\nUsage: ropeteam {name}" in page for name in cli.commands)


def test_a_page_that_differs_is_named(tmp_path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "trainingjob.md"
    assert generated.main({page: "new"}, "a tool", []) == 0
    assert generated.main({page: "new"}, "a tool", ["--check"]) == 0
    assert generated.main({page: "newer"}, "a tool", ["--check"]) == 1
    assert "trainingjob.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("[a](../CONTRIBUTING.md#tests)", f"[a]({forgelinks.FORGE}/CONTRIBUTING.md#tests)"),
        ("[a](../examples)", f"[a]({forgelinks.FORGE}/examples)"),
        ("[a](api.md#spec)", "[a](api.md#spec)"),
        ("[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("![a](../benchmarks/results/x.svg)", "![a](../benchmarks/results/x.svg)"),
    ],
)
def test_a_link_that_leaves_docs_leads_to_the_forge(text: str, becomes: str):
    assert forgelinks.absolute(text, forgelinks.DOCS) == becomes


def test_a_link_to_what_is_not_there_is_found():
    text = "[a](../LICENSE) [b](../LICENCE) [c](https://example.org)"
    assert list(forgelinks.dead(text, forgelinks.DOCS)) == ["../LICENCE"]
