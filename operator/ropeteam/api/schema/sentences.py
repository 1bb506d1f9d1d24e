"""Differences between a value and its schema as sentences for users: field, problem, what to change. Pure.

They are for schemas that `structural.py` makes; nothing here knows a TrainingJob.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from ropeteam.api.schema.structural import INT_OR_STRING, Schema
from ropeteam.api.schema.walker import Fault, Problem, differences, has_type

_TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
}
_JSON = json.JSONEncoder(default=str, skipkeys=True, check_circular=False)


def problems(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """One sentence for each mistake in a value; no sentence: it is valid. `path`: of the value, as `spec`."""
    return (sentence(fault) for fault in differences(schema, value, path) if not _is_consequence(fault))


def _is_consequence(fault: Fault) -> bool:
    """Whether another fault reports the same mistake: a value that is no text, or no object, has a wrong
    type; so has a key that is no text; an item without keys misses a required field."""
    match fault.problem:
        case Problem.ENUM:
            return not isinstance(fault.value, str)
        case Problem.DUPLICATE:
            return not fault.value or not all(isinstance(each, str) for each in fault.value.values())
    return fault.problem is Problem.NO_OBJECT


def sentence(fault: Fault) -> str:
    return f"{fault.path}: {_problem_text(fault)}"


def _problem_text(fault: Fault) -> str:
    """The problem and what to change, without the path. At the end only TOO_MANY is left: NO_OBJECT is always
    a consequence. Limit: what is too short is called empty, as all minimums in our schemas are 1."""
    value, schema = fault.value, fault.schema
    match fault.problem:
        case Problem.TYPE:
            return _type_problem(value, schema)
        case Problem.ENUM:
            return f"{_shortened_repr(value)} is unknown; use {_alternatives(schema['enum'])}"
        case Problem.REQUIRED:
            return f"is missing; set it to {_expected(schema)}{_described(schema)}"
        case Problem.UNKNOWN:
            return f"unknown field{_field_hint(fault)}"
        case Problem.MINIMUM:
            return f"{value} is too small; use {schema['minimum']} or more"
        case Problem.MAXIMUM:
            return f"{value} is too large; use {schema['maximum']} or less"
        case Problem.PATTERN:
            form = f"{schema['pattern']}{_described(schema)}"
            return f"{_shortened_repr(value)} has the wrong form; it must match {form}"
        case Problem.FORMAT:
            return f"{_shortened_repr(value)} is not a time; use a form such as 2030-01-31T12:00:00Z"
        case Problem.DUPLICATE:
            return f"{_shortened_repr(', '.join(value.values()))} is listed twice; keep one of the two"
        case Problem.TOO_FEW | Problem.TOO_SHORT:
            return f"is empty; leave it out or give it {_expected(schema)}{_described(schema)}"
        case Problem.TOO_LONG:
            return f"has {len(value)} characters; use {schema['maxLength']} or fewer"
    most = schema["maxProperties" if isinstance(value, dict) else "maxItems"]
    return f"has {len(value)} entries; use {most} or fewer"


def _type_problem(value: Any, schema: Schema) -> str:
    """The problem of a value of a wrong type; the only number that is none of _TYPE_NAMES has a fraction."""
    if value is None:
        return f"is null; leave it out or give it {_expected(schema)}"
    if INT_OR_STRING in schema:
        return f"{_shortened_json(value)} is not a quantity; use a whole number or text such as 500m or 8Gi"
    found = next((name for kind, name in _TYPE_NAMES.items() if has_type(value, kind)), "not a whole number")
    return f"{_shortened_json(value)} is {found}; use {_expected(schema)}"


def _expected(schema: Schema) -> str:
    """Description of a valid value, as "a whole number from 1 to 8"."""
    if INT_OR_STRING in schema:
        return "a quantity such as 2 or 8Gi"
    if "enum" in schema:
        return _alternatives(schema["enum"])
    if schema["type"] == "array":
        return f"a list, as in [{_type_name(schema['items'])}, ...]"
    if "minimum" in schema and "maximum" in schema:
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return _type_name(schema)


def _type_name(schema: Schema) -> str:
    return "a quantity" if INT_OR_STRING in schema else _TYPE_NAMES[schema["type"]]


def _described(schema: Schema) -> str:
    """The first sentence of the description in parentheses; empty for an enum, whose values are listed."""
    if "enum" in schema or "description" not in schema:
        return ""
    return f" ({schema['description'].split('. ')[0].rstrip('.')})"


def _alternatives(choices: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def _field_hint(fault: Fault) -> str:
    """Advice for an unknown field: the field with the most similar name, or else all fields of the object."""
    name, known = str(fault.value), fault.schema.get("properties", {})
    home = fault.path.removesuffix(f".{name}")
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower().replace("_", ""), lower, n=1, cutoff=0.7)
    return f", did you mean {lower[close[0]]}?" if close else f"; the fields of {home} are {', '.join(known)}"


def _shortened_json(value: Any) -> str:
    """JSON of a value, cut to 60 characters. It is encoded only that far: the value may be large."""
    text = ""
    for piece in _JSON.iterencode(value):
        text += piece
        if len(text) > 60:
            return text[:57] + "..."
    return text


def _shortened_repr(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
