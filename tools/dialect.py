"""Hold the language: names, docstrings, comments, messages and pages in the field's terms (docs/glossary.md).

    python tools/dialect.py [PATH...]   print each breach in these files or folders, excepted ones too

`make check` runs it (tools/house.py) on the files that [tool.house.dialect] in pyproject.toml lists. Every
name that a file defines is checked by its parts (`first_step`: first, step), and so is the file's own.
Phrases are sought in prose; text in backquotes, fenced code and fields of f-strings is code. Messages of
tests are not checked. An exception is a glob of `path:word` with its reason.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\{[^{}\n]*\}", re.MULTILINE | re.DOTALL)
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|'
    r"'''(?:\\.|[^\\])*?'''|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'(?:\\.|[^'\\\n])*'|"
    r"#[^\n]*(?:\n[ \t]*#[^\n]*)*",
    re.DOTALL,
)
_NEXT_COMMENT_LINE = re.compile(r"(?<=\n)[ \t]*#")
_PRONOUN = re.compile(
    r"\"+\s*(Its?|They|Their|What|Who|Whose|Whom|Whoever|Whatever|Which|Nobody|Somebody|Those|These|Ours"
    r"|The same|All that|Whether (?:it|they))\b"
)


class Breach(NamedTuple):
    """`name` is what an exception would be listed under: `path:word`."""

    name: str
    text: str


class Rules(NamedTuple):
    names: dict[str, str]  # a forbidden part of a name, and the term instead
    phrases: dict[str, re.Pattern[str]]  # the term instead, and what it replaces
    any_phrase: re.Pattern[str]


def rules_of(settings: dict[str, Any]) -> Rules:
    names = {name: instead for instead, some in settings["names"].items() for name in some.split()}
    flags = re.IGNORECASE | re.MULTILINE
    patterns = {instead: phrase.replace(" ", r"\s+") for instead, phrase in settings["phrases"].items()}
    phrases = {instead: re.compile(pattern, flags) for instead, pattern in patterns.items()}
    return Rules(names, phrases, re.compile("|".join(patterns.values()), flags))


def breaches(name: str, text: str, rules: Rules) -> Iterator[Breach]:
    if not name.endswith(".py"):
        yield from of_prose(name, text, 1, rules)
        return
    yield from of_names(name, text, rules)
    for found in _STRING_OR_COMMENT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        is_docstring = found[0].startswith('"""') and not text[: found.start()].rpartition("\n")[2].strip()
        if is_docstring and (pronoun := _PRONOUN.match(found[0])):
            yield Breach(f"{name}:pronoun", f"line {line}: a docstring begins with {pronoun[1]!r}")
        if is_docstring or found[0][0] == "#" or (" " in found[0] and not name.startswith("tests/")):
            yield from of_prose(name, _NEXT_COMMENT_LINE.sub("", found[0]), line, rules)


def of_names(name: str, text: str, rules: Rules) -> Iterator[Breach]:
    for each in sorted({Path(name).stem, *defined(ast.parse(text))}):
        for part in sorted(rules.names.keys() & {each, *(part.lower() for part in _PART.findall(each))}):
            yield Breach(f"{name}:{part}", f"name {each}: say {rules.names[part]}")


def defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.alias(asname=str(name)):
                yield name
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                yield name


def of_prose(name: str, text: str, first_line: int, rules: Rules) -> Iterator[Breach]:
    plain = _CODE.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text)
    if not rules.any_phrase.search(plain):
        return
    for instead, phrase in rules.phrases.items():
        for found in phrase.finditer(plain):
            line = first_line + plain.count("\n", 0, found.start())
            yield Breach(f"{name}:{' '.join(found[0].split())}", f"line {line}: say {instead}")


def problems(settings: dict[str, Any]) -> list[str]:
    """Breaches in the listed files that no exception covers, and exceptions that nothing needs any more."""
    rules, exceptions = rules_of(settings), settings["exceptions"]
    paths = {path for pattern in settings["files"] for path in ROOT.glob(pattern)}
    found = list(of_files(sorted(paths), rules))
    stale = [
        f"{key}: nothing there" for key in exceptions if not any(fnmatch(each.name, key) for each in found)
    ]
    left = [each for each in found if not any(fnmatch(each.name, key) for key in exceptions)]
    return [f"{each.name}: {each.text}" for each in left] + stale


def of_files(paths: list[Path], rules: Rules) -> Iterator[Breach]:
    for path in paths:
        yield from breaches(str(path.relative_to(ROOT)), path.read_text(), rules)


def main(arguments: list[str]) -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"]["dialect"]
    paths = [
        path
        for argument in arguments or ["."]
        for each in [(ROOT / argument).resolve()]
        for path in ([each] if each.is_file() else sorted([*each.rglob("*.py"), *each.rglob("*.md")]))
        if not {".venv", ".venv-newest", "dist", "build"} & {*path.relative_to(ROOT).parts}
    ]
    found = list(of_files(paths, rules_of(settings)))
    print("\n".join(f"{each.name}: {each.text}" for each in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
