"""JSON of tenants is read within bounds: depth, size, lines."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam.controller.client import boundedjson

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
    short = orjson.loads(boundedjson.truncate_depth(orjson.dumps(value), levels))
    assert short == without_what_is_deeper(value, levels)
    assert boundedjson.is_deeper(value, levels) == (short != value)


KEYS = st.sampled_from(["spec", "status", "managedFields", "name", 'x"status', "a"])
HOSTILE = st.recursive(
    st.text('a"\\{}[],:', max_size=5) | st.just(',"status":{'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
TEXTS = st.text('a"\\{}[],:', max_size=5) | st.just('},"status":{')
STATUS = st.dictionaries(st.just("conditions"), st.lists(st.dictionaries(KEYS, TEXTS), max_size=2))


@given(st.dictionaries(KEYS, HOSTILE, max_size=3), st.none() | STATUS, st.integers(0, 60), st.booleans())
def test_an_object_is_read_without_what_is_too_large(
    spec: Any, status: Any, most: int, watched: bool
) -> None:
    meta = {"annotations": {"a": ',"managedFields":['}, "name": "n", "uid": "u"}
    fields = [{"fieldsV1": {"f:spec": {"f:name": {}}, 'k:{"name":"x"}': {}}, "manager": '],"name":"'}]
    object_: dict[str, Any] = {"apiVersion": "v", "kind": "K", "metadata": meta, "spec": spec}
    if status is not None:
        object_["status"] = status
    text = orjson.dumps(object_ | {"metadata": meta | {"managedFields": fields}}, option=orjson.OPT_SORT_KEYS)
    size = len(orjson.dumps(spec))
    expected = object_ | {"spec": size if size > most else spec}
    if watched:
        line = b'{"type":"ADDED","object":' + text + b"}"
        assert boundedjson.parse_object(line, most, b"}}") == {"type": "ADDED", "object": expected}
    else:
        assert boundedjson.parse_object(text, most) == expected


def test_what_somebody_else_has_written_is_read_whole() -> None:
    text = b'{"spec":{"metadata":{},"spec":{"a":1}}, "metadata":{"name":"n","managedFields":[]}}'
    assert boundedjson.parse_object(text, 0) == orjson.loads(text)
    with pytest.raises(orjson.JSONDecodeError):
        boundedjson.parse_object(b'{"metadata":{},"spec":{', 0)


def test_a_character_that_a_server_escapes_counts_as_one() -> None:
    text = b'{"metadata":{},"spec":{"command":"' + rb"\u003c" * 100 + b'"}}'
    assert boundedjson.parse_object(text, len(orjson.dumps({"command": "<" * 100})))["spec"] == {
        "command": "<" * 100
    }


def test_ten_thousand_levels_are_read() -> None:
    text = b'{"before": 1, "deep": ' + b'{"a":' * 10_000 + b'"}{"' + b"}" * 10_000 + b', "after": 2}'
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text)
    read = boundedjson.loads(text)
    assert (read["before"], read["after"]) == (1, 2)
    assert boundedjson.is_deeper(read, 900)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        boundedjson.loads(b'{"half": ')


def test_depth_is_counted_in_lists_and_objects() -> None:
    assert not boundedjson.is_deeper("text", 0)
    assert boundedjson.is_deeper({}, 0)
    assert not boundedjson.is_deeper([nested(4)], 5)
    assert boundedjson.is_deeper([nested(5)], 5)


class Stream:
    """A body in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def iter_any(self) -> Any:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield piece


async def test_parts_of_lines_are_joined() -> None:
    stream: Any = Stream(b"one\ntw", b"o", b"\n\nthr", b"ee\nrest")
    assert [line async for line in boundedjson.read_lines(stream, 10)] == [b"one", b"two", b"three"]


async def test_a_line_without_end_is_not_gathered() -> None:
    stream: Any = Stream(b"one\n", b"x" * 6, b"x" * 6, b"never read")
    taken = boundedjson.read_lines(stream, 10)
    assert await anext(taken) == b"one"
    with pytest.raises(boundedjson.ResponseTooLarge):
        await anext(taken)
