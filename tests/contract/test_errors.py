"""The trees of errors in the docstrings of the two errors.py are those of the code."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TRAINER, OPERATOR = ROOT / "trainer-image/ropeteam_trainer", ROOT / "operator/ropeteam"
ROOTS = {TRAINER: TRAINER / "contract/errors.py", OPERATOR: OPERATOR / "errors.py"}
_LINE = re.compile(r"^ {4}( *)(\w+) {2,}(.+)$", re.MULTILINE)


class Class(NamedTuple):
    name: str
    bases: tuple[str, ...]
    file: str


def classes(package: Path) -> list[Class]:
    """All classes of a package, those in classes and functions too."""
    return [
        Class(node.name, tuple(map(_last, node.bases)), str(path.relative_to(package)))
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def _last(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def exceptions() -> dict[Path, list[Class]]:
    """Public exception classes of both packages: those with a builtin, click's or one of these as a base."""
    every = {package: classes(package) for package in ROOTS}
    known = {"ClickException"} | {
        name for name, value in vars(builtins).items() if isinstance(value, type) and _is_error(value)
    }
    while found := {c.name for cs in every.values() for c in cs if known.intersection(c.bases)} - known:
        known |= found
    return {
        package: [c for c in cs if known.intersection(c.bases) and not c.name.startswith("_")]
        for package, cs in every.items()
    }


def _is_error(kind: type) -> bool:
    return issubclass(kind, BaseException)


def drawn(package: Path) -> list[tuple[str, str, str]]:
    """Rows of a drawing: class, parent, text."""
    doc = ast.get_docstring(ast.parse(ROOTS[package].read_text())) or ""
    rows, above = [], [""]
    for indent, name, text in _LINE.findall(doc):
        depth = len(indent) // 2
        above[depth + 1 :] = [name]
        rows.append((name, above[depth], text))
    return rows


@pytest.mark.parametrize("package", ROOTS, ids=lambda path: path.name)
def test_each_public_exception_is_drawn_under_its_first_base_with_its_others_and_its_file(
    package: Path,
) -> None:
    parents = {name: (parent, text) for name, parent, text in drawn(package)}
    root = str(ROOTS[package].relative_to(package))
    for found in exceptions()[package]:
        assert found.name in parents, f"{found.name} is not in the drawing of {ROOTS[package]}"
        parent, text = parents[found.name]
        if found.file == root:  # a root: the text says what it means
            assert found.bases == ((parent or "Exception"),), found
        else:
            assert (found.bases[0], text) == (parent, ", ".join((*found.bases[1:], found.file))), found


def test_no_name_is_drawn_or_defined_twice_and_each_drawn_one_exists() -> None:
    defined = Counter(c.name for cs in exceptions().values() for c in cs)
    assert [name for name, count in defined.items() if count > 1] == []
    for package in ROOTS:
        names = [name for name, *_ in drawn(package)]
        assert len(set(names)) == len(names) >= 15
        others = {"RopeteamError", "ProtocolError"} if package is OPERATOR else set()
        assert set(names) == {c.name for c in exceptions()[package]} | others
