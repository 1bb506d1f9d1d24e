"""Structural schemas, as a CustomResourceDefinition has them: defaults, pruning and validation. Pure.

The messages are those of a real API server, so that a manifest fails with the same text on both.
CEL rules are not run; their Python equivalents are (see kinds.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

import orjson

from ropeteam.local.fielderrors import ErrorType, FieldError, show

Schema = dict[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def set_defaults(value: Any, schema: Schema) -> None:
    """Set defaults in place. A null that is not allowed is replaced by the default, or removed."""
    if isinstance(value, dict):
        known, extra = schema.get("properties", {}), schema.get("additionalProperties")
        for name in list(value):
            inner = known.get(name, extra)
            if value[name] is None and isinstance(inner, dict) and not _allows_null(inner):
                del value[name]
        for name, inner in known.items():
            if "default" in inner and name not in value:
                value[name] = orjson.loads(orjson.dumps(inner["default"]))
            if name in value:
                set_defaults(value[name], inner)
        if isinstance(extra, dict):
            for name in value.keys() - known.keys():
                set_defaults(value[name], extra)
    elif isinstance(value, list):
        for item in value:
            set_defaults(item, schema.get("items", {}))


def _allows_null(schema: Schema) -> bool:
    """Whether the schema is nullable, or does not restrict the value at all."""
    return bool(schema.get("nullable")) or not schema.keys() - {"x-kubernetes-preserve-unknown-fields"}


def prune(value: Any, schema: Schema, path: str = "") -> list[str]:
    """Remove unknown fields in place. Returns the paths of the removed fields."""
    if isinstance(value, list):
        return [
            removed_path
            for number, item in enumerate(value)
            for removed_path in prune(item, schema.get("items", schema), f"{path}[{number}]")
        ]
    if not isinstance(value, dict):
        return []
    known, extra = schema.get("properties", {}), schema.get("additionalProperties")
    free = schema.get("x-kubernetes-preserve-unknown-fields") or extra is True
    removed = []
    for name in list(value):
        here = f"{path}.{name}" if path else name
        if name in known:
            removed += prune(value[name], known[name], here)
        elif isinstance(extra, dict):
            removed += prune(value[name], extra, here)
        elif not free:
            del value[name]
            removed.append(here)
    return removed


class Problem(Enum):
    """How a value differs from its schema."""

    TYPE = auto()
    ENUM = auto()
    REQUIRED = auto()
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
    """A value that differs from its schema. `value`: of a duplicate, the key."""

    path: str
    problem: Problem
    value: Any
    schema: Schema


def walk(value: Any, schema: Schema, path: str = "") -> Iterator[Fault]:
    """Each difference between a value and its schema, in the order of a real server."""
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield Fault(path, Problem.TYPE, value, schema)
        return
    fits = "type" not in schema or _is(value, schema["type"])
    if not fits:
        yield Fault(path, Problem.TYPE, value, schema)
    if "enum" in schema and value not in schema["enum"]:
        yield Fault(path, Problem.ENUM, value, schema)
    if not fits:
        return
    if isinstance(value, dict):
        yield from _walk_object(value, schema, path)
    elif isinstance(value, list):
        yield from _walk_list(value, schema, path)
    elif isinstance(value, str):
        yield from _walk_text(value, schema, path)
    elif not isinstance(value, bool) and isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield Fault(path, Problem.MINIMUM, value, schema)
        if value > schema.get("maximum", value):
            yield Fault(path, Problem.MAXIMUM, value, schema)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _walk_object(value: dict[str, Any], schema: Schema, path: str) -> Iterator[Fault]:
    prefix, known = f"{path}." if path else "", schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Fault(prefix + name, Problem.REQUIRED, None, known.get(name, {}))
    if len(value) < schema.get("minProperties", 0):
        yield Fault(path, Problem.TOO_FEW, value, schema)
    if len(value) > schema.get("maxProperties", len(value)):
        yield Fault(path, Problem.TOO_MANY, value, schema)
    for name, item in value.items():
        inner = known.get(name, schema.get("additionalProperties"))
        if isinstance(inner, dict):
            yield from walk(item, inner, prefix + name)


def _walk_list(value: list[Any], schema: Schema, path: str) -> Iterator[Fault]:
    if len(value) < schema.get("minItems", 0):
        yield Fault(path, Problem.TOO_FEW, value, schema)
    if len(value) > schema.get("maxItems", len(value)):
        yield Fault(path, Problem.TOO_MANY, value, schema)
    for number, item in enumerate(value):
        yield from walk(item, schema.get("items", {}), f"{path}[{number}]")
    if schema.get("x-kubernetes-list-type") == "map":
        yield from _walk_keys(value, schema, path)


def _walk_keys(value: list[Any], schema: Schema, path: str) -> Iterator[Fault]:
    """A list of type map has objects with unique keys."""
    seen = []
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            if item is not None:
                yield Fault(f"{path}[{number}]", Problem.NO_OBJECT, item, schema)
            continue
        key = {name: item[name] for name in schema["x-kubernetes-list-map-keys"] if name in item}
        if key in seen:
            yield Fault(f"{path}[{number}]", Problem.DUPLICATE, key, schema)
        seen.append(key)


def _walk_text(value: str, schema: Schema, path: str) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield Fault(path, Problem.TOO_SHORT, value, schema)
    elif len(value) > schema.get("maxLength", len(value)):
        yield Fault(path, Problem.TOO_LONG, value, schema)
    elif "pattern" in schema and not re.search(schema["pattern"], value):
        yield Fault(path, Problem.PATTERN, value, schema)
    if schema.get("format") == "date-time" and not is_time(value):
        yield Fault(path, Problem.FORMAT, value, schema)


def is_time(text: str) -> bool:
    """Whether a text is a time in RFC 3339."""
    if not re.match(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$", text):
        return False
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


def field_errors(value: Any, schema: Schema, path: str = "") -> Iterator[FieldError]:
    return map(field_error, walk(value, schema, path))


def field_error(fault: Fault) -> FieldError:
    """The error that a real server reports."""
    path, value, schema = fault.path, fault.value, fault.schema
    match fault.problem:
        case Problem.TYPE:
            found = json_type(value, schema)
            why = f'{path} in body must be of type {type_of(schema)}: "{found}"'
            return FieldError(path, ErrorType.TYPE_INVALID, show(found), why)
        case Problem.ENUM:
            return FieldError.not_supported(path, value, schema["enum"])
        case Problem.REQUIRED:
            return FieldError.required(path)
        case Problem.TOO_MANY:
            most = schema["maxProperties" if isinstance(value, dict) else "maxItems"]
            return FieldError.too_many(path, len(value), most)
        case Problem.TOO_LONG:
            return FieldError(
                path, ErrorType.TOO_LONG, detail=f"may not be more than {schema['maxLength']} bytes"
            )
        case Problem.DUPLICATE:
            return FieldError.duplicate(path, value)
        case Problem.NO_OBJECT:
            return FieldError.invalid(path, value, "must be an object for an array of list-type map")
        case Problem.FORMAT:
            why = f"{path} in body must be of type date-time: {show(value)}"
            return FieldError(path, ErrorType.TYPE_INVALID, show(value), why)
    shown = len(value) if fault.problem is Problem.TOO_FEW else value
    return FieldError.invalid(path, shown, f"{path} in body {_requirement(fault)}")


def _requirement(fault: Fault) -> str:
    schema = fault.schema
    match fault.problem:
        case Problem.TOO_FEW if isinstance(fault.value, dict):
            return f"should have at least {schema['minProperties']} properties"
        case Problem.TOO_FEW:
            return f"should have at least {schema['minItems']} items"
        case Problem.MINIMUM:
            return f"should be greater than or equal to {schema['minimum']}"
        case Problem.MAXIMUM:
            return f"should be less than or equal to {schema['maximum']}"
        case Problem.TOO_SHORT:
            return f"should be at least {schema['minLength']} chars long"
    return f"should match '{schema['pattern']}'"


def type_of(schema: Schema) -> str:
    """Type in the messages of a server."""
    if schema.get("x-kubernetes-int-or-string"):
        return "integer,string"
    return "date-time" if schema.get("format") == "date-time" else str(schema["type"])


def json_type(value: Any, schema: Schema) -> str:
    """Type of a value in the messages of a server."""
    found = next((name for name in _TYPES if _is(value, name)), "null")
    if type_of(schema) == "date-time":
        return {"integer": "int64", "number": "float64"}.get(found, found)
    return found
