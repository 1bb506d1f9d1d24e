"""The language checker finds each kind of breach, and nothing in prose or names of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tools import dialect

SETTINGS: dict[str, Any] = {
    "files": ["*.py", "*.md"],
    "names": {"report, send": "told says", "RankGroup": "crew"},
    "phrases": {"shows, reported": r"\btold\b", "resumes": r"\bgo(?:es)? on\b"},
    "exceptions": {},
}
RULES = dialect.rules_of(SETTINGS)


def found(text: str, name: str = "operator/x.py") -> list[str]:
    return [f"{breach.name}: {breach.text}" for breach in dialect.breaches(name, text, RULES)]


@pytest.mark.parametrize(
    "text",
    [
        "def told(): pass",
        "async def was_told(): pass",
        "class ToldOnce: pass",
        "def send(*, told): pass",
        "told = 1",
        "for told in (): pass",
        "reply.told = 1",
        "TOLD_AFTER = 1",
        "if told := 1: pass",
    ],
)
def test_every_name_that_a_file_defines_is_read_by_its_parts(text: str) -> None:
    assert [each.partition(": ")[0] for each in found(text)] == ["operator/x.py:told"]


@pytest.mark.parametrize("text", ["print(told)", "send(told=1)", "from x import told", "untold = bold = 1"])
def test_names_of_others_and_other_names_are_left_alone(text: str) -> None:
    assert found(text) == []


def test_the_name_of_a_file_is_a_name() -> None:
    assert found("", "operator/crew.py") == ["operator/crew.py:crew: name crew: say RankGroup"]


def test_a_docstring_does_not_begin_with_a_pronoun() -> None:
    assert found('"""What it does."""\n\nx = """What it does."""\n') == [
        "operator/x.py:pronoun: line 1: a docstring begins with 'What'"
    ]
    assert found('class A:\n    x: int\n    """Its size."""\n') == [
        "operator/x.py:pronoun: line 3: a docstring begins with 'Its'"
    ]
    assert found('"""Item sizes."""\n') == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Size.\n\nThe size is told."""\n', [3]),
        ("x = 1  # told by whom\n", [1]),
        ('log("the size is told")\n', [1]),
        ('log(f"the {size} is told to {told} and goes on")\n', [1, 1]),
        ('"""Size.\n\n`told` and ```told``` are code."""\n', []),
        ('key = "told"\n', []),
        ("x = '# told'\n# a \"told\n", [1, 2]),
        ("    # the work goes\n    # on, and\n    #goes on\n", [1, 3]),
        ("x = 1  # where it goes\non = 1  # on\n", []),
        ("# it goes\n\n# on\n", []),
    ],
)
def test_phrases_are_found_in_docstrings_comments_and_messages(text: str, lines: list[int]) -> None:
    found_in = [int(each.partition(": line ")[2].partition(":")[0]) for each in found(text)]
    assert found_in == lines


def test_messages_of_tests_are_not_read() -> None:
    assert found('log("the size is told")\n', "tests/x.py") == []
    assert len(found('"""The size is told."""\n', "tests/x.py")) == 1


def test_pages_are_read_as_prose() -> None:
    page = "It is told.\n\n```sh\ntold\n```\n\nWork goes\non, and goes on.\n"
    assert found(page, "docs/x.md") == [
        "docs/x.md:told: line 1: say shows, reported",
        "docs/x.md:goes on: line 7: say resumes",
        "docs/x.md:goes on: line 8: say resumes",
    ]


def test_an_exception_counts_until_nothing_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "ROOT", tmp_path)
    (tmp_path / "x.py").write_text("told = says = 1\n")
    settings = {**SETTINGS, "exceptions": {"*.py:told": "a reason", "y.py:told": "another"}}
    assert dialect.problems(settings) == [
        "x.py:says: name says: say report, send",
        "y.py:told: nothing there",
    ]
