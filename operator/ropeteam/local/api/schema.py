"""Structural schemas, as a CustomResourceDefinition has them: defaults, pruning and validation. Pure.

The messages are those of a real API server, so that a manifest fails with the same text on both.
CEL rules are not run; their Python equivalents are (see kinds.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson

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


def faults(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """Every error as `path: Invalid value: ...`."""
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield _wrong_type(value, "integer,string", path)
        return
    kind = schema.get("type")
    fits = not kind or _is(value, kind)
    if kind and not fits:
        yield _wrong_type(value, "date-time" if schema.get("format") == "date-time" else kind, path)
    if "enum" in schema and value not in schema["enum"]:
        choice = ", ".join(_show(member) for member in schema["enum"])
        yield f"{path}: Unsupported value: {_show(value)}: supported values: {choice}"
    if not fits:
        return
    if isinstance(value, dict):
        yield from _object_faults(value, schema, path)
    elif isinstance(value, list):
        yield from _list_faults(value, schema, path)
    elif isinstance(value, str):
        yield from _text_faults(value, schema, path)
    elif not isinstance(value, bool) and isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield _bad(value, path, f"should be greater than or equal to {schema['minimum']}")
        if value > schema.get("maximum", value):
            yield _bad(value, path, f"should be less than or equal to {schema['maximum']}")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _object_faults(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{prefix}{name}: Required value"
    if len(value) < schema.get("minProperties", 0):
        yield _bad(len(value), path, f"should have at least {schema['minProperties']} properties")
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxProperties']} items"
    extra = schema.get("additionalProperties")
    for name, item in value.items():
        inner = schema.get("properties", {}).get(name, extra)
        if isinstance(inner, dict):
            yield from faults(item, inner, prefix + name)


def _list_faults(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield _bad(len(value), path, f"should have at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
    for number, item in enumerate(value):
        yield from faults(item, schema.get("items", {}), f"{path}[{number}]")
    if schema.get("x-kubernetes-list-type") == "map":
        yield from _key_faults(value, schema["x-kubernetes-list-map-keys"], path)


def _key_faults(value: list[Any], names: list[str], path: str) -> Iterator[str]:
    """Errors in the members of a list of type map: each is an object with unique keys."""
    seen = []
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            if item is not None:
                why = "must be an object for an array of list-type map"
                yield f"{path}[{number}]: Invalid value: {_show(item)}: {why}"
            continue
        key = {name: item[name] for name in names if name in item}
        if key in seen:
            yield f"{path}[{number}]: Duplicate value: {_show(key)}"
        seen.append(key)


def _text_faults(value: str, schema: Schema, path: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield _bad(value, path, f"should be at least {schema['minLength']} chars long")
    elif len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    elif "pattern" in schema and not re.search(schema["pattern"], value):
        yield _bad(value, path, f"should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not is_time(value):
        yield _bad(value, path, f"must be of type date-time: {_show(value)}")


def is_time(text: str) -> bool:
    """Whether a text is a time in RFC 3339."""
    if not re.match(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$", text):
        return False
    try:
        datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


def _bad(value: Any, path: str, why: str) -> str:
    return f"{path}: Invalid value: {_show(value)}: {path} in body {why}"


def _wrong_type(value: Any, wanted: str, path: str) -> str:
    found = next((name for name in _TYPES if _is(value, name)), "null")
    if wanted == "date-time":
        found = {"integer": "int64", "number": "float64"}.get(found, found)
    return f'{path}: Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'


def _show(value: Any) -> str:
    return orjson.dumps(value).decode()
