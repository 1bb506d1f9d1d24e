"""Structural schemas, as a CustomResourceDefinition has them: defaults, pruning and validation. No I/O.

The messages are those of a real API server, so that a manifest fails with the same text on both.
CEL rules are not run; their Python equivalents are (see kinds.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from ropeteam.api.schema.structural import Schema
from ropeteam.api.schema.walker import TYPES, Fault, Problem, differences, has_type
from ropeteam.local.fielderrors import ErrorType, FieldError, json_text


def set_defaults(value: Any, schema: Schema) -> None:
    """Set defaults in place, as a server does before it validates. A null that is not allowed is replaced by
    the default, or removed."""
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


def field_errors(value: Any, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """Errors of a value, in the words of a real server. Unknown fields are no errors: a server prunes them.
    `path`: of the value."""
    faults = differences(schema, value, path, whole_floats=True)
    return (_server_error(fault) for fault in faults if fault.problem is not Problem.UNKNOWN)


def _server_error(fault: Fault) -> FieldError:
    """The error that a real server reports for a difference other than UNKNOWN. After the cases, TOO_FEW,
    TOO_SHORT, MINIMUM, MAXIMUM and PATTERN are left."""
    path, value, schema = fault.path, fault.value, fault.schema
    match fault.problem:
        case Problem.TYPE:
            found = _json_type_name(value, schema)
            why = f'{path} in body must be of type {type_name(schema)}: "{found}"'
            return FieldError(path, ErrorType.TYPE_INVALID, json_text(found), why)
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
            why = f"{path} in body must be of type date-time: {json_text(value)}"
            return FieldError(path, ErrorType.TYPE_INVALID, json_text(value), why)
    shown = len(value) if fault.problem is Problem.TOO_FEW else value
    return FieldError.invalid(path, shown, f"{path} in body {_requirement_text(fault)}")


def _requirement_text(fault: Fault) -> str:
    """The violated limit in the words of a server; after the cases, PATTERN is left."""
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


def type_name(schema: Schema) -> str:
    """Name of a schema's type in the messages of a server."""
    if schema.get("x-kubernetes-int-or-string"):
        return "integer,string"
    return "date-time" if schema.get("format") == "date-time" else str(schema["type"])


def _json_type_name(value: Any, schema: Schema) -> str:
    """Name of a value's type in the messages of a server; for a time a number is named as in Go."""
    found = next((name for name in TYPES if has_type(value, name, whole_floats=True)), "null")
    if type_name(schema) == "date-time":
        return {"integer": "int64", "number": "float64"}.get(found, found)
    return found
