"""Shell lines that are one simple command, which needs no shell.

    set -e; export A=b; cd /work && C=d torchrun x.py
    python - <<'END' (the text of a script) END
Guarantee: a line with anything that only a shell can do (variables, patterns, pipes, redirections, several
commands) is None, and is left to the shell. Limits: so are many lines that look simple.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

_QUOTED = r"""'[^']*'|"(?:[^"$`\\]|\\["$`\\])*\""""
_PIECE = rf"""{_QUOTED}|\\[^\n]|[^\s'"\\$`|&;<>()*?\[\]{{}}~#!]"""
_TOKEN = re.compile(rf"(?P<blank>[ \t]+)|(?P<operator>&&|;|\n)|(?P<word>(?:{_PIECE})+)")
_JOINED = re.compile(r"""'[^']*'|"[^"]*"|\\\n""")
"""A line that ends with a backslash continues on the next, except in quotes (in double ones: not simple)."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SET = re.compile(r"[-+][eux]*o?|pipefail")
_HERE = re.compile(r"<<[ \t]*(?P<quote>['\"])(?P<end>\w+)(?P=quote)[ \t]*\n")


@dataclass(frozen=True)
class Simple:
    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    stdin: str | None = None
    """Text of a here-document."""


def simple(line: str) -> Simple | None:
    """Parse a line. None: it needs a shell."""
    first, stdin = _here_document(line)
    if first is None:
        return None
    commands = _commands(_JOINED.sub(lambda found: "" if found[0] == "\\\n" else found[0], first))
    if not commands:
        return None
    env, cwd = list[tuple[str, str]](), ""
    for raw in commands[:-1]:
        name, *arguments = raw
        if name == "cd" and len(arguments) == 1 and not arguments[0].startswith("-"):
            cwd = posixpath.join(cwd, _value(arguments[0]))
        elif name == "export" and all(map(_ASSIGNMENT.match, arguments)):
            env += map(_pair, arguments)
        elif name != "set" or not all(map(_SET.fullmatch, arguments)):
            return None
    last = commands[-1]
    while last and _ASSIGNMENT.match(last[0]):
        env.append(_pair(last.pop(0)))
    return Simple(tuple(map(_value, last)), tuple(env), cwd, stdin) if last else None


def _here_document(line: str) -> tuple[str | None, str | None]:
    """The line before a here-document, and its text, if there is one. No line: commands follow it."""
    at = line.find("<<")
    here = _HERE.match(line, at) if at >= 0 else None
    if here is None:
        return line, None
    lines = line[here.end() :].rstrip().split("\n")
    if lines.count(here["end"]) != 1 or lines[-1] != here["end"]:
        return None, None  # commands follow its end
    return line[:at], "".join(f"{each}\n" for each in lines[:-1])


def line_of(words: tuple[str, ...]) -> tuple[str, bool] | None:
    """Line of `bash [options] -c LINE`, and whether the shell reads the user's startup files first. None: not
    such a command."""
    letters, rest = "", list(words[1:])
    while rest and re.fullmatch(r"-[ceuxlo]+|--login|pipefail", rest[0]):
        word = rest.pop(0)
        letters += "l" if word == "--login" else word * word.startswith("-")
    return (rest[0], "l" in letters) if "c" in letters and rest else None


def _commands(line: str) -> list[list[str]]:
    """Words of each command, still quoted. Empty: the line is not simple."""
    commands: list[list[str]] = [[]]
    for kind, text in _tokens(line):
        if kind == "operator":
            commands.append([])
        elif kind == "word":
            commands[-1].append(text)
        elif kind != "blank":
            return []
    return [command for command in commands if command]


def _tokens(line: str) -> Iterator[tuple[str, str]]:
    at = 0
    while found := _TOKEN.match(line, at):
        yield str(found.lastgroup), found[0]
        at = found.end()
    if at < len(line):
        yield "", line[at:]


def _value(word: str) -> str:
    """Word without its quotes."""
    return re.sub(_PIECE, lambda piece: _unquoted(piece[0]), word)


def _unquoted(piece: str) -> str:
    if piece.startswith("'"):
        return piece[1:-1]
    if piece.startswith('"'):
        return re.sub(r"\\(.)", r"\1", piece[1:-1])
    return piece.removeprefix("\\")


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, _value(value)
