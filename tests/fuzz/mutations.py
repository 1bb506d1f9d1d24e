"""Odd values, and good ones bent: the same for the same Random.

bent(chance, plain)    JSON of which one to four places are other ones
damaged(chance, data)  bytes that are cut, repeated, flipped, or hold what they should not
written(plain)         JSON as bytes; what is nested DEEP is nested so much
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Path = tuple[Any, ...]
DEEP = "DEEP{}"
"""A text that is written as so many lists, one inside the other: more than json could write."""
_DEEP = re.compile(rb'"DEEP(\d+)([\[{])"')
NUMBERS = (
    *(0, -0.0, 1, -1, 2, 3, 0.5, 1e-300, 1.5e308, -1.5e308, 10**12, -(10**12)),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**30),
)
HUGE = (10**400, -(10**400), 1e999, float("nan"))
"""Numbers that not every writer of JSON writes."""
TEXTS = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "x",
        "²",
        "1e9",
        "0x10",
        "9" * 400,
        "1.0.1",
        "9.9.9",
        f"{'9' * 60}.0.0",
        "1..2",
    ),
    *("true", "null", "{}", "%s%n", "\0", "\n", "\u2028", "é", "\U0001f600" * 50, "a" * 5000, "name"),
    *(
        "..",
        "/",
        "/etc/passwd",
        "../../x",
        "step-1/1.0.1",
        "a,b",
        "[red]",
        "None",
        "\x1b[31m",
        "Running",
        "uid-1",
    ),
    *("2026-13-45T00:00:00Z", "2026-11-20T12:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now"),
)
HALVES = ("\ud800", "caf\udce9.txt", "\udfff\ud800")
"""Half characters."""
_JUNK = (
    *(
        b"",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b",",
    ),
    *(b":", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"null", b"true", b"NaN", b"1e999", b"-", b"9" * 500, b"%00"),
    *(b"/" * 50, b"../", b"{}" * 40, b"\xff" * 40, b"&a [*a]", b"|", b"---\n", b"!!python/object:os.system"),
)


def text(chance: Random, halves: bool = True) -> str:
    return chance.choice(TEXTS + HALVES if halves and chance.random() < 0.1 else TEXTS)


def scalar(chance: Random, like: object = None, exact: bool = False) -> Any:
    """Mostly of the kind of `like`. `exact`: what every writer of JSON can write."""
    kinds: dict[type, Callable[[], Any]] = {
        str: lambda: text(chance, not exact),
        int: lambda: chance.choice(NUMBERS if exact or chance.random() < 0.9 else HUGE),
        bool: lambda: chance.random() < 0.5,
        type(None): lambda: None,
    }
    kinds[float] = kinds[int]
    if type(like) in kinds and chance.random() < 0.7:
        return kinds[type(like)]()
    return chance.choice(list(kinds.values()))()


def value(chance: Random, like: object = None, exact: bool = False) -> Any:
    """Any JSON."""
    odds = chance.random()
    if odds < 0.75:
        return scalar(chance, like, exact)
    if odds < 0.8:
        return f"{DEEP.format(chance.choice((50, 101, 300, 1100, 5000)))}{chance.choice('[{')}"
    if odds < 0.9:
        return [scalar(chance, like, exact) for _ in range(chance.choice((0, 1, 2, 30)))]
    return {text(chance, not exact): scalar(chance, like, exact) for _ in range(chance.choice((0, 1, 2, 30)))}


def _nothing(_: Path) -> bool:
    return False


def places(plain: Any, path: Path = ()) -> Iterator[tuple[Any, Any, Path]]:
    """Every value inside: its container, its key there, and the path to it."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, inner in tuple(items):
        yield plain, key, (*path, key)
        yield from places(inner, (*path, key))


def bent(
    chance: Random,
    plain: Any,
    keep: Callable[[Path], bool] = _nothing,
    exact: bool = False,
    loose: float = 0.4,
) -> Any:
    """`keep`: places that stay as they are. `exact`: what every writer of JSON can write. `loose`: how often
    what takes a place is of another kind than what was there."""
    plain = copy.deepcopy(plain)
    for _ in range(chance.choice((1, 1, 2, 4))):
        found = [(holder, key) for holder, key, path in places(plain) if not keep(path)]
        if found:
            bend = _bend if chance.random() < loose else _bend_slightly
            bend(chance, *chance.choice(found), exact)
    return plain


def _bend(chance: Random, holder: Any, key: Any, exact: bool) -> None:
    old = holder[key]
    match chance.choice(("other", "other", "away", "more", "named", "nested")):
        case "other":
            holder[key] = value(chance, old, exact)
        case "away":
            del holder[key]
        case "more" if isinstance(old, dict):
            old[text(chance, not exact)] = value(chance, exact=exact)
        case "named" if isinstance(holder, dict):
            holder[text(chance, not exact)] = holder.pop(key)
        case _:
            holder[key] = [old] if chance.random() < 0.5 else {"a": old}


def _bend_slightly(chance: Random, holder: Any, key: Any, exact: bool) -> None:
    """Another value of the same kind."""
    old = holder[key]
    match old:
        case list():
            holder[key] = old * chance.choice((0, 2, 5, 60))
        case dict():
            holder[key] = dict(list(old.items())[: chance.randrange(len(old) + 1)])
        case bool():
            holder[key] = not old
        case int() | float():
            holder[key] = chance.choice((old + 1, old - 1, -old, chance.choice(NUMBERS)))
        case str():
            holder[key] = chance.choice((text(chance, not exact), old + "x", old * 40, old[:-1]))


def written(plain: Any) -> bytes:
    """Half characters as escapes."""
    return _DEEP.sub(_deep, json.dumps(plain).encode())


def _deep(found: re.Match[bytes]) -> bytes:
    levels = int(found[1])
    begin, end = (b"[", b"]") if found[2] == b"[" else (b'{"a":', b"}")
    return begin * levels + b"1" + end * levels


def damaged(chance: Random, data: bytes) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 5))):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + chance.choice((0, 1, 1, 2, 8, 64)))
        match chance.choice(("flip", "junk", "cut", "end", "again", "noise")):
            case "flip" if begin < len(data):
                data = data[:begin] + bytes((data[begin] ^ 1 << chance.randrange(8),)) + data[begin + 1 :]
            case "junk":
                data = data[:begin] + chance.choice(_JUNK) + data[end:]
            case "cut":
                data = data[:begin] + data[end:]
            case "end":
                data = data[:begin]
            case "again":
                data = data[:end] + data[begin:end] * chance.choice((1, 3, 100)) + data[end:]
            case _:
                data = data[:begin] + chance.randbytes(end - begin) + data[end:]
    return data
