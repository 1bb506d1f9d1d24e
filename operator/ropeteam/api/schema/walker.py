"""Each difference between a value and its structural schema, as a value. Pure.

The order is that of a real server: of an object first what is missing, then each of its fields. Users read
the differences as `sentences.py` words them, clients of the local cluster as an API server does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import cache
from typing import Any

from ropeteam.api.schema.structural import INT_OR_STRING, OPEN, Schema

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_END = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$")


class Problem(Enum):
    """Kind of difference."""

    TYPE = auto()
    ENUM = auto()
    REQUIRED = auto()
    UNKNOWN = auto()
    TOO_FEW = auto()
    TOO_MANY = auto()
    TOO_SHORT = auto()
    TOO_LONG = auto()
    MINIMUM = auto()
    MAXIMUM = auto()
    PATTERN = auto()
    FORMAT = auto()
    NO_OBJECT = auto()
    DUPLICATE = auto()


@dataclass(frozen=True)
class Fault:
    """A difference. Of an unknown field, `value` is the name and `schema` that of the object around it; of a
    duplicate, `value` is the key."""

    path: str
    problem: Problem
    value: Any
    schema: Schema


def walk(schema: Schema, value: Any, path: str = "", whole_floats: bool = False) -> Iterator[Fault]:
    """`whole_floats`: 2.0 is an integer."""
    if value is None and schema.get("nullable"):
        return
    if schema.get(INT_OR_STRING):
        if not (has_type(value, "integer") or has_type(value, "string")):
            yield Fault(path, Problem.TYPE, value, schema)
        return
    fits = "type" not in schema or has_type(value, schema["type"], whole_floats)
    if not fits:
        yield Fault(path, Problem.TYPE, value, schema)
    if "enum" in schema and value not in schema["enum"]:
        yield Fault(path, Problem.ENUM, value, schema)
    if not fits:
        return
    if isinstance(value, dict):
        yield from _of_object(schema, value, path, whole_floats)
    elif isinstance(value, list):
        yield from _of_list(schema, value, path, whole_floats)
    elif isinstance(value, str):
        yield from _of_text(schema, value, path)
    elif has_type(value, "number"):
        yield from _of_number(schema, value, path)


def has_type(value: Any, kind: str, whole_floats: bool = False) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if whole_floats and kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind])


def matches(pattern: str, text: str) -> bool:
    """As the server and pydantic match: `$` is the end, not also the position before a last newline."""
    return re.search(_in_python(pattern), text) is not None


def is_time(text: str) -> bool:
    """Whether a text is a time in RFC 3339."""
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


@cache
def _in_python(pattern: str) -> str:
    return _END.sub(lambda found: r"\Z" if found[0] == "$" else found[0], pattern)


def _of_object(schema: Schema, value: dict[str, Any], path: str, whole_floats: bool) -> Iterator[Fault]:
    known, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield Fault(_join(path, name), Problem.REQUIRED, None, known.get(name, {}))
    yield from _size(schema, value, path, ("minProperties", "maxProperties"))
    for name, item in value.items():
        inner = known.get(name, extra)
        if isinstance(inner, dict):
            yield from walk(inner, item, _join(path, name), whole_floats)
        elif not (inner or schema.get(OPEN)):
            yield Fault(_join(path, name), Problem.UNKNOWN, name, schema)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _of_list(schema: Schema, value: list[Any], path: str, whole_floats: bool) -> Iterator[Fault]:
    yield from _size(schema, value, path, ("minItems", "maxItems"))
    for number, item in enumerate(value):
        yield from walk(schema.get("items", {}), item, f"{path}[{number}]", whole_floats)
    if schema.get("x-kubernetes-list-type") == "map":
        yield from _of_keys(schema, value, path)


def _size(schema: Schema, value: Any, path: str, bounds: tuple[str, str]) -> Iterator[Fault]:
    least, most = bounds
    if len(value) < schema.get(least, 0):
        yield Fault(path, Problem.TOO_FEW, value, schema)
    if len(value) > schema.get(most, len(value)):
        yield Fault(path, Problem.TOO_MANY, value, schema)


def _of_keys(schema: Schema, value: list[Any], path: str) -> Iterator[Fault]:
    """A list of type map has objects with unique keys."""
    seen = []
    for number, item in enumerate(value):
        if isinstance(item, dict):
            key = {name: item[name] for name in schema["x-kubernetes-list-map-keys"] if name in item}
            if key in seen:
                yield Fault(f"{path}[{number}]", Problem.DUPLICATE, key, schema)
            seen.append(key)
        elif item is not None:
            yield Fault(f"{path}[{number}]", Problem.NO_OBJECT, item, schema)


def _of_text(schema: Schema, value: str, path: str) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield Fault(path, Problem.TOO_SHORT, value, schema)
    elif len(value) > schema.get("maxLength", len(value)):
        yield Fault(path, Problem.TOO_LONG, value, schema)
    elif "pattern" in schema and not matches(schema["pattern"], value):
        yield Fault(path, Problem.PATTERN, value, schema)
    if schema.get("format") == "date-time" and not is_time(value):
        yield Fault(path, Problem.FORMAT, value, schema)


def _of_number(schema: Schema, value: float, path: str) -> Iterator[Fault]:
    if value < schema.get("minimum", value):
        yield Fault(path, Problem.MINIMUM, value, schema)
    if value > schema.get("maximum", value):
        yield Fault(path, Problem.MAXIMUM, value, schema)
