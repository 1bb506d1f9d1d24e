"""Pydantic models as Kubernetes structural schemas, and their defaults.

`structural_schema` refuses, with the path, what a structural schema cannot express or this project forbids: a
union, a float, a text, list or map without a maximum, a field without a description. Optional means absent:
`X | None` is X, not required, without a default. Defaults are pydantic's own, so that an API server and local
validation fill in the same.
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


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of `model`, without references. `defaults`: whether it sets defaults. Raises
    TypeError, with the path, for what it refuses."""
    whole = model.model_json_schema(by_alias=True)
    schema = _inlined(whole, whole.get("$defs", {}), model.__name__)
    return schema if defaults else without_defaults(schema)


def without_defaults(schema: Any) -> Any:
    """A copy of a schema that sets no defaults: a field of status that the operator did not write stays
    absent on the server, too."""
    if not isinstance(schema, dict):
        return schema
    return {key: without_defaults(value) for key, value in schema.items() if key != "default"}


def preserving_unknown_fields(schema: Schema) -> Schema:
    """A copy of `schema` whose objects, those in lists too, keep unknown fields. For status, the operator's
    memory: a CRD serves operators of the release before and after its own, and must not prune fields that
    only they know."""
    inner: Schema = {key: preserving_unknown_fields(schema[key]) for key in ("items",) if key in schema}
    if "properties" in schema:
        inner["properties"] = {
            name: preserving_unknown_fields(each) for name, each in schema["properties"].items()
        }
        inner[OPEN] = True
    return {**schema, **inner}


def _inlined(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """`node` and all below it as a structural schema, with description and type first. `defs`: `$defs` of the
    whole schema. `path`: for errors. Raises TypeError."""
    node = _simplified({key: value for key, value in node.items() if key != "$defs"}, defs, path)
    if "default" in node:
        node["default"] = _without_none(node["default"])
    if "properties" in node:
        node["properties"] = {
            name: _inlined(each, defs, f"{path}.{name}") for name, each in node["properties"].items()
        }
        node.pop("additionalProperties", None)  # forbidden beside properties; pruning does it
        _require_descriptions(node["properties"], path)
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict):
            node[inner] = _inlined(node[inner], defs, f"{path}[]")
    _require_structural(node, path)
    order = ("description", "type")
    return {key: node[key] for key in order if key in node} | {
        k: v for k, v in node.items() if k not in order
    }


def _simplified(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """`node` with its reference resolved, `X | None` as X, its description on one line, and without the
    keywords in _LEFT_OUT. A key beside `$ref` or `anyOf` wins. Raises TypeError for a union."""
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
    """A default without keys whose value is None: the API omits them."""
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def _require_descriptions(properties: dict[str, Schema], path: str) -> None:
    """Raise TypeError if a field has no description."""
    silent = [name for name, each in properties.items() if not each.get("description")]
    if silent:
        raise TypeError(f"{path}: no description for {', '.join(silent)}; write a docstring below the field")


def _require_structural(node: Schema, path: str) -> None:
    """Raise TypeError for an unknown keyword, a type that is not allowed, or a text, list or map without a
    maximum (for a text an enum or a format will do, for a map named fields)."""
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


def with_defaults(schema: Schema, value: Any) -> Any:
    """A copy of `value` with the schema's defaults filled in, as an API server does. `value`: any JSON value;
    a part that is not valid by the schema is returned as it is."""
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    missing = {
        name: each["default"] for name, each in known.items() if "default" in each and name not in value
    }
    return {name: with_defaults(known.get(name, {}), each) for name, each in (value | missing).items()}
