"""Each difference between a value and its schema: kind, place and order."""

from __future__ import annotations

from typing import Any

import pytest

from ropeteam.api.schema.walker import Problem, differences, matches

TEXT = {"type": "string"}
TIME = {"type": "string", "format": "date-time"}
NAMED = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": TEXT, "port": {"type": "integer"}}},
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name", "port"],
}


def faults(schema: Any, value: Any, **how: bool) -> list[tuple[str, Problem]]:
    return [(fault.path, fault.problem) for fault in differences(schema, value, "it", **how)]


def test_of_an_object_what_is_missing_comes_first_then_its_fields_in_their_order():
    schema = {"type": "object", "required": ["c"], "maxProperties": 2, "properties": {"a": TEXT, "b": TEXT}}
    assert faults(schema, {"b": 1, "d": 1, "a": 1}) == [
        ("it.c", Problem.REQUIRED),
        ("it", Problem.TOO_MANY),
        ("it.b", Problem.TYPE),
        ("it.d", Problem.UNKNOWN),
        ("it.a", Problem.TYPE),
    ]


def test_of_a_text_the_size_or_the_pattern_is_named():
    schema = {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a+$"}
    found = [faults(schema, text) for text in ("b", "bbbb", "bb", "aa")]
    assert found == [[("it", each)] for each in (Problem.TOO_SHORT, Problem.TOO_LONG, Problem.PATTERN)] + [[]]


def test_a_whole_float_is_an_integer_where_the_caller_sets_it():
    assert faults({"type": "integer"}, 2.0) == [("it", Problem.TYPE)]
    assert faults({"type": "integer"}, 2.0, whole_floats=True) == []
    assert faults({"type": "integer"}, 2.5, whole_floats=True) == [("it", Problem.TYPE)]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("2026-11-20T10:00:00Z", True),
        ("2026-11-20t10:00:00.5+01:00", True),
        ("2026-11-20T10:00:00", False),
        ("2026-11-20 10:00:00Z", False),
        ("2026-13-40T10:00:00Z", False),
        ("2026-11-20T10:00:00Z\n", False),
    ],
)
def test_a_time_is_one_of_rfc_3339(text: str, fits: bool):
    assert faults(TIME, text) == ([] if fits else [("it", Problem.FORMAT)])


def test_members_of_a_list_map_are_objects_with_unique_keys():
    members = [{"name": "a", "port": 1}, {"name": "a", "port": 2}, {"name": "a", "port": 1}, None, 7]
    assert faults(NAMED, members) == [
        ("it[3]", Problem.TYPE),
        ("it[4]", Problem.TYPE),
        ("it[2]", Problem.DUPLICATE),
        ("it[4]", Problem.NO_OBJECT),
    ]


def test_a_pattern_ends_where_the_text_ends():
    assert matches("^a$", "a")
    assert not matches("^a$", "a\n")
    assert matches(r"^[$]\$[]$]?$", "$$")
