"""Write tests/messages.txt: each message of the shipped code that a user can meet, by module.

    python -m tools.messages [--check]

A message is a string of several words that is no docstring: the text of an error, a condition, an event or a
log line, output of a command, or a part of one. Reasons of conditions and events, and names of log events,
are listed as one word. `{name}` stands for a value. Help of commands and descriptions of fields are in
docs/reference/.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import generated

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "messages.txt"
_PROSE = re.compile(r"(?<![\w/.-])[A-Za-z][a-z]+(?![\w/=|(-])")
_CEL = re.compile(r"\b(?:self|oldSelf|c)\.\w|\bhas\(")
_NO_MESSAGE = ("Options", "_object_schema", "compile", "debug", "fullmatch")
"""Calls whose strings no user meets: options of launchers, field names, patterns, log lines below info."""
_WITH_REASONS = (
    *("Announcement", "ConditionFact", "Obstacle", "ended_facts", "not_accepted_facts"),
    *("Cause", "ConditionType", "FailReason"),
    *("write", "write_if_changed", "write_limited"),
)
"""Calls and classes with reasons, or with names of log events."""


def main(arguments: list[str]) -> int:
    return generated.main({FILE: snapshot(ROOT)}, "tools/messages.py", arguments)


def snapshot(root: Path) -> str:
    paths = sorted(path for folder in ("operator", "trainer-image") for path in (root / folder).rglob("*.py"))
    found = {path.relative_to(root): list(messages(path.read_text())) for path in paths}
    modules = ("\n    ".join([str(path), *lines]) for path, lines in found.items() if lines)
    return "".join(f"{module}\n" for module in modules)


def messages(source: str) -> Iterator[str]:
    yield from _of_node(ast.parse(source), "")


def _of_node(node: ast.AST, call: str) -> Iterator[str]:
    """`call`: the function that gets this value as an argument, or the class of this attribute."""
    text = _text(node)
    if text is not None:
        plain = re.sub(r"\{[^{}]*\}", "{}", text)
        is_text = " " in plain.strip() and _PROSE.search(plain) and not _CEL.search(plain)
        if call not in _NO_MESSAGE and (is_text or (call in _WITH_REASONS and plain.isalpha())):
            yield text.replace("\r", "\\r").replace("\n", "\\n")
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    match node:
        case ast.Call(func=func):
            call = _name(func)
        case ast.ClassDef(name=name):
            call = name
        case ast.stmt() if not isinstance(node, ast.Assign):
            call = ""
    for child in ast.iter_child_nodes(node):
        yield from _of_node(child, call)


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or "" for value in values)
        case ast.FormattedValue(value=value):
            return "{" + _name(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            begin, end = _text(left), _text(right)
            return None if begin is None or end is None else begin + end
    return None


def _name(node: ast.AST) -> str:
    """The last name in an expression: `count` of `len(each.count)`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other))):
            return f"{one}|{other}"
        case ast.Call(func=ast.Attribute(value=value), args=[]):
            return _name(value)
        case ast.Call(func=func, args=args):
            parts: list[ast.AST] = [*reversed(args), func]
        case _:
            parts = list(ast.iter_child_nodes(node))
    return next(filter(None, map(_name, parts)), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
