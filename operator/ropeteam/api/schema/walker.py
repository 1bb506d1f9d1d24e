"""Differences between a value and its structural schema. Pure.

Their order is that of a real API server: of an object first the missing fields, then each field that it has.
Users read them as sentences (`sentences.py`), clients of the local cluster in the words of an API server
(`ropeteam/local/api/schema.py`).
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


def differences(schema: Schema, value: Any, path: str = "", whole_floats: bool = False) -> Iterator[Fault]:
    """Each difference of `value` from `schema`, depth first; none: it is valid. `path`: of the value, for
    Fault.path. `whole_floats`: whether 2.0 is an integer, as on an API server; pydantic refuses it. A value
    of a wrong type is compared with an enum, but not entered. Total: `value` may be any JSON value."""
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
        yield from _object_differences(schema, value, path, whole_floats)
    elif isinstance(value, list):
        yield from _list_differences(schema, value, path, whole_floats)
    elif isinstance(value, str):
        yield from _text_differences(schema, value, path)
    elif has_type(value, "number"):
        yield from _number_differences(schema, value, path)


def has_type(value: Any, kind: str, whole_floats: bool = False) -> bool:
    """Whether a JSON value is of a type of TYPES. A bool is no integer, as it is in Python."""
    if isinstance(value, bool):
        return kind == "boolean"
    if whole_floats and kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind])


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches as on the API server (RE2) and in pydantic (Rust's regex): there `$` is the end
    of the text only, in Python also the position before a last newline."""
    return re.search(_python_pattern(pattern), text) is not None


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
def _python_pattern(pattern: str) -> str:
    r"""`pattern` for Python's re: each `$` outside of classes and escapes becomes `\Z`."""
    return _END.sub(lambda found: r"\Z" if found[0] == "$" else found[0], pattern)


def _object_differences(
    schema: Schema, value: dict[str, Any], path: str, whole_floats: bool
) -> Iterator[Fault]:
    known, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield Fault(_field_path(path, name), Problem.REQUIRED, None, known.get(name, {}))
    yield from _size_differences(schema, value, path, ("minProperties", "maxProperties"))
    for name, item in value.items():
        inner = known.get(name, extra)
        if isinstance(inner, dict):
            yield from differences(inner, item, _field_path(path, name), whole_floats)
        elif not (inner or schema.get(OPEN)):
            yield Fault(_field_path(path, name), Problem.UNKNOWN, name, schema)


def _field_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _list_differences(schema: Schema, value: list[Any], path: str, whole_floats: bool) -> Iterator[Fault]:
    yield from _size_differences(schema, value, path, ("minItems", "maxItems"))
    for number, item in enumerate(value):
        yield from differences(schema.get("items", {}), item, f"{path}[{number}]", whole_floats)
    if schema.get("x-kubernetes-list-type") == "map":
        yield from _map_key_differences(schema, value, path)


def _size_differences(schema: Schema, value: Any, path: str, bounds: tuple[str, str]) -> Iterator[Fault]:
    """`bounds`: keywords of the minimum and the maximum number of entries."""
    least, most = bounds
    if len(value) < schema.get(least, 0):
        yield Fault(path, Problem.TOO_FEW, value, schema)
    if len(value) > schema.get(most, len(value)):
        yield Fault(path, Problem.TOO_MANY, value, schema)


def _map_key_differences(schema: Schema, value: list[Any], path: str) -> Iterator[Fault]:
    """Differences of a list of type map: its items must be objects, each with other keys. A null is skipped:
    its type was compared before."""
    seen = []
    for number, item in enumerate(value):
        if isinstance(item, dict):
            key = {name: item[name] for name in schema["x-kubernetes-list-map-keys"] if name in item}
            if key in seen:
                yield Fault(f"{path}[{number}]", Problem.DUPLICATE, key, schema)
            seen.append(key)
        elif item is not None:
            yield Fault(f"{path}[{number}]", Problem.NO_OBJECT, item, schema)


def _text_differences(schema: Schema, value: str, path: str) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield Fault(path, Problem.TOO_SHORT, value, schema)
    elif len(value) > schema.get("maxLength", len(value)):
        yield Fault(path, Problem.TOO_LONG, value, schema)
    elif "pattern" in schema and not matches(schema["pattern"], value):
        yield Fault(path, Problem.PATTERN, value, schema)
    if schema.get("format") == "date-time" and not is_time(value):
        yield Fault(path, Problem.FORMAT, value, schema)


def _number_differences(schema: Schema, value: float, path: str) -> Iterator[Fault]:
    if value < schema.get("minimum", value):
        yield Fault(path, Problem.MINIMUM, value, schema)
    if value > schema.get("maximum", value):
        yield Fault(path, Problem.MAXIMUM, value, schema)
