"""What tenants write is read within bounds: depth, size, lines."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam.controller import bounded

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('a"\\{}[],:é', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\{[', max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = "inside"
    for _ in range(levels):
        value = {"a": value}
    return value


def without_what_is_deeper(value: Any, levels: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {key: without_what_is_deeper(part, levels - 1) for key, part in value.items()}
    return [without_what_is_deeper(part, levels - 1) for part in value]


@given(VALUES, st.integers(1, 6))
def test_shallow_takes_away_what_is_deeper_and_nothing_else(value: Any, levels: int) -> None:
    short = orjson.loads(bounded.shallow(orjson.dumps(value), levels))
    assert short == without_what_is_deeper(value, levels)
    assert bounded.is_deeper(value, levels) == (short != value)


def test_ten_thousand_levels_are_read() -> None:
    text = b'{"before": 1, "deep": ' + b'{"a":' * 10_000 + b'"}{"' + b"}" * 10_000 + b', "after": 2}'
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)
    read = bounded.loads(text)
    assert (read["before"], read["after"]) == (1, 2)
    assert bounded.is_deeper(read, 900)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        bounded.loads(b'{"half": ')


def test_depth_is_counted_in_lists_and_objects() -> None:
    assert not bounded.is_deeper("text", 0)
    assert bounded.is_deeper({}, 0)
    assert not bounded.is_deeper([nested(4)], 5)
    assert bounded.is_deeper([nested(5)], 5)


class Stream:
    """A body in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def iter_any(self) -> Any:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield piece


async def test_lines_are_put_together_again() -> None:
    stream: Any = Stream(b"one\ntw", b"o", b"\n\nthr", b"ee\nrest")
    assert [line async for line in bounded.lines(stream, 10)] == [b"one", b"two", b"three"]


async def test_a_line_without_end_is_not_gathered() -> None:
    stream: Any = Stream(b"one\n", b"x" * 6, b"x" * 6, b"never read")
    taken = bounded.lines(stream, 10)
    assert await anext(taken) == b"one"
    with pytest.raises(bounded.TooLarge):
        await anext(taken)
