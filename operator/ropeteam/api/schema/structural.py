"""Pydantic models as Kubernetes structural schemas, and their defaults.

`structural` makes the schema. It refuses, with the path, what would be wrong or vague on a server: a union, a
float, a text, list or map without a maximum, a field without a description. Optional means absent: `X | None`
is X, not required, without a default. Defaults are pydantic's own, so that server and local validation agree.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

OPEN, INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
_LEFT_OUT = {"title", "const", "examples"}
_KEYWORDS = {
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
_TYPES = ("string", "integer", "boolean", "array", "object")


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
    return {key: value for key, value in node.items() if key not in _LEFT_OUT}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def _refuse_silence(properties: dict[str, Schema], path: str) -> None:
    silent = [name for name, each in properties.items() if not each.get("description")]
    if silent:
        raise TypeError(f"{path}: no description for {', '.join(silent)}; write a docstring below the field")


def _refuse_vague(node: Schema, path: str) -> None:
    unknown = set(node) - _KEYWORDS
    if unknown:
        raise TypeError(f"{path}: {', '.join(sorted(unknown))} cannot be expressed in a structural schema")
    if INT_OR_STRING in node:
        return
    kind = node.get("type")
    if kind not in _TYPES:
        raise TypeError(
            f"{path}: type {kind} is not allowed; use text, a whole number, true/false, a list or a map"
        )
    bounded = kind not in _BOUND or any(bound in node for bound in _BOUND[kind])
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
