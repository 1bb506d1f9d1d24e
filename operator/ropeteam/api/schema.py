"""Pydantic models as Kubernetes structural schemas, and plain values held against such a schema.

`structural` makes the schema. It refuses, with the path, what would be wrong or vague on a server: a union, a
float, a text, list or map without a maximum, a field without a description. Optional means absent: `X | None`
is X, not required, without a default. Defaults are pydantic's own, so that server and local validation agree.
`faults` says in sentences what is wrong with a value: field, what, and what to change. It takes any schema
made here: nothing in this module knows a TrainingJob.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

OPEN, INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
_NOT_SAID = {"title", "const", "examples"}
_SAID = {
    *(
        "description",
        "type",
        "format",
        "enum",
        "default",
        "required",
        "properties",
        "additionalProperties",
        "items",
    ),
    *("minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties"),
    *("maxProperties", OPEN, INT_OR_STRING, "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}
_BOUND = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",), "object": ("maxProperties",)}
_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
}
_JSON = json.JSONEncoder(default=str, skipkeys=True, check_circular=False)
_TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def structural(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The schema of `model`, references inlined. Raises TypeError, with the path, for what it refuses."""
    whole = model.model_json_schema(by_alias=True)
    schema = _inline(whole, whole.get("$defs", {}), model.__name__)
    return schema if defaults else without_defaults(schema)


def without_defaults(schema: Any) -> Any:
    """For status: what the operator did not write is absent, never invented by the server."""
    if not isinstance(schema, dict):
        return schema
    return {key: without_defaults(value) for key, value in schema.items() if key != "default"}


def opened(schema: Schema) -> Schema:
    """`schema` whose objects keep unknown fields. The definition is installed before the operator of its
    release and lives beside the one before: a server that pruned what either writes would lose its memory."""
    inner: Schema = {key: opened(schema[key]) for key in ("items",) if key in schema}
    if "properties" in schema:
        inner["properties"] = {name: opened(each) for name, each in schema["properties"].items()}
        inner[OPEN] = True
    return {**schema, **inner}


def _inline(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    node = _plain({key: value for key, value in node.items() if key != "$defs"}, defs, path)
    if "default" in node:
        node["default"] = _without_none(node["default"])
    if "properties" in node:
        node["properties"] = {
            name: _inline(each, defs, f"{path}.{name}") for name, each in node["properties"].items()
        }
        node.pop("additionalProperties", None)  # forbidden beside properties; pruning does it
        _refuse_silence(node["properties"], path)
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict):
            node[inner] = _inline(node[inner], defs, f"{path}[]")
    _refuse_vague(node, path)
    order = ("description", "type")
    return {key: node[key] for key in order if key in node} | {
        k: v for k, v in node.items() if k not in order
    }


def _plain(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """Without references, `X | None` and words that a structural schema does not have."""
    if "anyOf" in node:
        kinds = [kind for kind in node["anyOf"] if kind.get("type") != "null"]
        if len(kinds) != 1:
            raise TypeError(f"{path}: a structural schema cannot have a union; use separate fields")
        rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        node = {**kinds[0], **rest}
    if "$ref" in node:
        named = defs[node["$ref"].rsplit("/", 1)[1]]
        node = {**named, **{key: value for key, value in node.items() if key != "$ref"}}
    if "description" in node:
        node = {**node, "description": " ".join(node["description"].split())}
    return {key: value for key, value in node.items() if key not in _NOT_SAID}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def _refuse_silence(properties: dict[str, Schema], path: str) -> None:
    silent = [name for name, each in properties.items() if not each.get("description")]
    if silent:
        raise TypeError(f"{path}: no description for {', '.join(silent)}; write a docstring below the field")


def _refuse_vague(node: Schema, path: str) -> None:
    unknown = set(node) - _SAID
    if unknown:
        raise TypeError(f"{path}: {', '.join(sorted(unknown))} cannot be expressed in a structural schema")
    if INT_OR_STRING in node:
        return
    kind = node.get("type")
    if kind not in _TYPES:
        raise TypeError(
            f"{path}: type {kind} is not allowed; use text, a whole number, true/false, a list or a map"
        )
    bounded = kind not in _BOUND or any(word in node for word in _BOUND[kind])
    if not bounded and "properties" not in node and OPEN not in node:
        raise TypeError(f"{path}: no maximum; give it a {_BOUND[kind][0]}")


def defaulted(schema: Schema, value: Any) -> Any:
    """`value` with the schema's defaults filled in, as a server does. Total: what has no such shape stays."""
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    missing = {
        name: each["default"] for name, each in known.items() if "default" in each and name not in value
    }
    return {name: defaulted(known.get(name, {}), each) for name, each in (value | missing).items()}


def faults(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """What is wrong with `value`, one sentence each. Nothing: a server with this schema takes it."""
    if value is None:
        yield f"{path}: is null; leave it out or give it {_wanted(schema)}"
    elif INT_OR_STRING in schema:
        if type(value) not in (int, str):
            yield f"{path}: {_show(value)} is not a quantity; use a whole number or text such as 500m or 8Gi"
    elif type(value) is not _TYPES[schema["type"]]:
        yield f"{path}: {_show(value)} is {_kind(value)}; use {_wanted(schema)}"
    elif schema["type"] != "boolean":
        yield from _FAULTS[schema["type"]](schema, value, path)


def matches(pattern: str, text: str) -> bool:
    """As the server and pydantic match: `$` is the end, not a place before a last newline."""
    return re.search(pattern.replace("$", r"\Z"), text) is not None


def _of_text(schema: Schema, value: str, path: str) -> Iterator[str]:
    known = schema.get("enum")
    if known and value not in known:
        yield f"{path}: {_quoted(value)} is not known; use {_either(known)}"
    if "pattern" in schema and not matches(schema["pattern"], value):
        yield f"{path}: {_quoted(value)} has the wrong form; it must match {schema['pattern']}{_help(schema)}"
    if schema.get("format") == "date-time" and not _is_time(value):
        yield f"{path}: {_quoted(value)} is not a time; use a form such as 2030-01-31T12:00:00Z"
    yield from _size(len(value), schema, path, ("minLength", "maxLength", "characters"))


def _of_number(schema: Schema, value: int, path: str) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and value < low:
        yield f"{path}: {value} is too small; use {low} or more"
    if high is not None and value > high:
        yield f"{path}: {value} is too large; use {high} or less"


def _of_list(schema: Schema, value: list[Any], path: str) -> Iterator[str]:
    yield from _size(len(value), schema, path, ("minItems", "maxItems", "entries"))
    for index, item in enumerate(value):
        yield from faults(schema["items"], item, f"{path}[{index}]")
    if schema.get("x-kubernetes-list-type") == "map":
        (key,) = schema["x-kubernetes-list-map-keys"]
        yield from _twice([item.get(key) if isinstance(item, dict) else None for item in value], path)


def _of_map(schema: Schema, value: dict[str, Any], path: str) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: is missing; set it to {_wanted(known[name])}{_help(known[name])}"
    inner = schema.get("additionalProperties")
    for name, each in value.items():
        if name in known or inner:
            yield from faults(known.get(name, inner), each, f"{path}.{name}")
        elif OPEN not in schema:
            meant = _hint(name, known) or f"; the fields of {path} are {', '.join(known)}"
            yield f"{path}.{name}: unknown field{meant}"
    yield from _size(len(value), schema, path, ("minProperties", "maxProperties", "entries"))


_FAULTS: dict[str, Any] = {
    "string": _of_text,
    "integer": _of_number,
    "array": _of_list,
    "object": _of_map,
}


def _size(size: int, schema: Schema, path: str, words: tuple[str, str, str]) -> Iterator[str]:
    least, most, unit = words
    if size < schema.get(least, 0):
        yield f"{path}: is empty; leave it out or give it {_wanted(schema)}{_help(schema)}"
    if size > schema.get(most, size):
        yield f"{path}: has {size} {unit}; use {schema[most]} or fewer"


def _twice(keys: list[Any], path: str) -> Iterator[str]:
    seen: set[str] = set()
    for index, key in enumerate(keys):
        if isinstance(key, str):
            if key in seen:
                yield f"{path}[{index}]: {_quoted(key)} is listed twice; keep one of the two"
            seen.add(key)


def _wanted(schema: Schema) -> str:
    if INT_OR_STRING in schema:
        return "a quantity such as 2 or 8Gi"
    if "enum" in schema:
        return _either(schema["enum"])
    if schema["type"] == "array":
        return f"a list, as in [{_word(schema['items'])}, ...]"
    if "minimum" in schema and "maximum" in schema:
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return _word(schema)


def _word(schema: Schema) -> str:
    return "a quantity" if INT_OR_STRING in schema else _WORDS[schema["type"]]


def _help(schema: Schema) -> str:
    """The first sentence of the description."""
    said = "enum" in schema or "description" not in schema
    return "" if said else f" ({schema['description'].split('. ')[0].rstrip('.')})"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _hint(word: str, known: Any) -> str:
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower().replace("_", ""), lower, n=1, cutoff=0.7)
    return f", did you mean {lower[close[0]]}?" if close else ""


def _show(value: Any) -> str:
    """Its beginning: no more is written, however large the value, or whatever it contains."""
    text = ""
    for piece in _JSON.iterencode(value):
        text += piece
        if len(text) > 60:
            return text[:57] + "..."
    return text


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _kind(value: Any) -> str:
    return next((_WORDS[name] for name, kind in _TYPES.items() if type(value) is kind), "not a whole number")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
