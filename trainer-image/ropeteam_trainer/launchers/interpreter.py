"""Parser for the command line of a Python interpreter, with the interpreter's rules.

Limit: its flags are passed on, and not interpreted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAKES_VALUE = re.compile(r"-(?P<before>[^-cmWX]*)(?P<letter>[cmWX])(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class PythonCommand:
    flags: tuple[str, ...]
    kind: str
    """-m, -c, or empty: kind of `rest[0]`."""
    rest: tuple[str, ...]
    """Module, code, script or `-`, and the arguments after it."""


def parse_python_command(words: tuple[str, ...]) -> PythonCommand:
    """Parse a command line. `words[0]` is the interpreter. As for the interpreter, the first argument that is
    no flag, or the value of -m or -c, ends the flags."""
    flags, rest = list[str](), list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        before, flag, value = _split_flag(rest.pop(0))
        flags += [before] * bool(before)
        rest = [value] * bool(value) + rest
        if flag in ("-m", "-c"):
            return PythonCommand(tuple(flags), flag, tuple(rest))
        if flag:
            flags += [flag, *rest[:1]]
            rest = rest[1:]
    return PythonCommand(tuple(flags), "", tuple(rest))


def _split_flag(word: str) -> tuple[str, str, str]:
    """Split a flag into switches, a flag that takes a value, and the value if it is in the same word: `-um`
    is (-u, -m, ""), `-Xdev` is ("", -X, dev). A part that is missing is ""."""
    if word == "--check-hash-based-pycs":
        return "", word, ""
    takes = None if word.startswith("--") else _TAKES_VALUE.fullmatch(word)
    if takes is None:
        return word, "", ""
    return f"-{takes['before']}" * bool(takes["before"]), f"-{takes['letter']}", takes["value"]
