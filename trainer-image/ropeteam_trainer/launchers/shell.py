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


def parse_simple_line(line: str) -> Simple | None:
    """Command of a line for a POSIX shell: its words without quotes, and what the commands before it set.
    None: it needs a shell.

    Before the last command only `cd FOLDER`, `export A=b` and `set` with harmless options are understood.
    """
    first, stdin = _here_document(line)
    if first is None:
        return None
    commands = _split_commands(_JOINED.sub(lambda found: "" if found[0] == "\\\n" else found[0], first))
    if not commands:
        return None
    env, cwd = list[tuple[str, str]](), ""
    for raw in commands[:-1]:
        name, *arguments = raw
        if name == "cd" and len(arguments) == 1 and not arguments[0].startswith("-"):
            cwd = posixpath.join(cwd, _unquoted_word(arguments[0]))
        elif name == "export" and all(map(_ASSIGNMENT.match, arguments)):
            env += map(_assignment, arguments)
        elif name != "set" or not all(map(_SET.fullmatch, arguments)):
            return None
    last = commands[-1]
    while last and _ASSIGNMENT.match(last[0]):
        env.append(_assignment(last.pop(0)))
    return Simple(tuple(map(_unquoted_word, last)), tuple(env), cwd, stdin) if last else None


def _here_document(line: str) -> tuple[str | None, str | None]:
    """The line before a here-document, and its text. Without a here-document: the line, None. (None, None):
    commands follow it."""
    at = line.find("<<")
    here = _HERE.match(line, at) if at >= 0 else None
    if here is None:
        return line, None
    lines = line[here.end() :].rstrip().split("\n")
    if lines.count(here["end"]) != 1 or lines[-1] != here["end"]:
        return None, None  # commands follow its end
    return line[:at], "".join(f"{each}\n" for each in lines[:-1])


def shell_line(words: tuple[str, ...]) -> tuple[str, bool] | None:
    """Line of the command `bash [options] -c LINE`, and whether that shell reads the user's startup files
    first (-l). None: not such a command. `words[0]` is the shell."""
    letters, rest = "", list(words[1:])
    while rest and re.fullmatch(r"-[ceuxlo]+|--login|pipefail", rest[0]):
        word = rest.pop(0)
        letters += "l" if word == "--login" else word * word.startswith("-")
    return (rest[0], "l" in letters) if "c" in letters and rest else None


def _split_commands(line: str) -> list[list[str]]:
    """Words of each command, still quoted. Empty: the line has none, or something that only a shell can
    do."""
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
    """Kind (a group of _TOKEN) and text of each token. The last kind is "" if the rest of the line is
    none."""
    at = 0
    while found := _TOKEN.match(line, at):
        yield str(found.lastgroup), found[0]
        at = found.end()
    if at < len(line):
        yield "", line[at:]


def _unquoted_word(word: str) -> str:
    """Word without its quotes."""
    return re.sub(_PIECE, lambda piece: _unquoted(piece[0]), word)


def _unquoted(piece: str) -> str:
    """Text of one piece of a word: quoted, escaped, or plain."""
    if piece.startswith("'"):
        return piece[1:-1]
    if piece.startswith('"'):
        return re.sub(r"\\(.)", r"\1", piece[1:-1])
    return piece.removeprefix("\\")


def _assignment(word: str) -> tuple[str, str]:
    """Name and value of `A=b`."""
    name, _, value = word.partition("=")
    return name, _unquoted_word(value)
