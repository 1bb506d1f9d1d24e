"""Differences between a value and its schema as sentences for users: field, problem, what to change. Pure.

They are for schemas that `structural.py` makes; nothing here knows a TrainingJob.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from ropeteam.api.schema.structural import INT_OR_STRING, Schema
from ropeteam.api.schema.walker import Fault, Problem, has_type, walk

_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
}
_JSON = json.JSONEncoder(default=str, skipkeys=True, check_circular=False)


def problems(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """One sentence for each mistake. None: a server with this schema takes the value."""
    return (sentence(fault) for fault in walk(schema, value, path) if not _follows(fault))


def _follows(fault: Fault) -> bool:
    """Whether another fault names the same mistake: a value of a wrong type is in no enum, and is no key."""
    match fault.problem:
        case Problem.ENUM:
            return not isinstance(fault.value, str)
        case Problem.DUPLICATE:
            return not fault.value or not all(isinstance(each, str) for each in fault.value.values())
    return fault.problem is Problem.NO_OBJECT


def sentence(fault: Fault) -> str:
    return f"{fault.path}: {_problem(fault)}"


def _problem(fault: Fault) -> str:
    value, schema = fault.value, fault.schema
    match fault.problem:
        case Problem.TYPE:
            return _of_type(value, schema)
        case Problem.ENUM:
            return f"{_quoted(value)} is unknown; use {_either(schema['enum'])}"
        case Problem.REQUIRED:
            return f"is missing; set it to {_wanted(schema)}{_help(schema)}"
        case Problem.UNKNOWN:
            return f"unknown field{_hint(fault)}"
        case Problem.MINIMUM:
            return f"{value} is too small; use {schema['minimum']} or more"
        case Problem.MAXIMUM:
            return f"{value} is too large; use {schema['maximum']} or less"
        case Problem.PATTERN:
            form = f"{schema['pattern']}{_help(schema)}"
            return f"{_quoted(value)} has the wrong form; it must match {form}"
        case Problem.FORMAT:
            return f"{_quoted(value)} is not a time; use a form such as 2030-01-31T12:00:00Z"
        case Problem.DUPLICATE:
            return f"{_quoted(', '.join(value.values()))} is listed twice; keep one of the two"
        case Problem.TOO_FEW | Problem.TOO_SHORT:
            return f"is empty; leave it out or give it {_wanted(schema)}{_help(schema)}"
        case Problem.TOO_LONG:
            return f"has {len(value)} characters; use {schema['maxLength']} or fewer"
    most = schema["maxProperties" if isinstance(value, dict) else "maxItems"]
    return f"has {len(value)} entries; use {most} or fewer"


def _of_type(value: Any, schema: Schema) -> str:
    if value is None:
        return f"is null; leave it out or give it {_wanted(schema)}"
    if INT_OR_STRING in schema:
        return f"{_show(value)} is not a quantity; use a whole number or text such as 500m or 8Gi"
    found = next((name for kind, name in _NAMES.items() if has_type(value, kind)), "not a whole number")
    return f"{_show(value)} is {found}; use {_wanted(schema)}"


def _wanted(schema: Schema) -> str:
    if INT_OR_STRING in schema:
        return "a quantity such as 2 or 8Gi"
    if "enum" in schema:
        return _either(schema["enum"])
    if schema["type"] == "array":
        return f"a list, as in [{_name(schema['items'])}, ...]"
    if "minimum" in schema and "maximum" in schema:
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return _name(schema)


def _name(schema: Schema) -> str:
    return "a quantity" if INT_OR_STRING in schema else _NAMES[schema["type"]]


def _help(schema: Schema) -> str:
    """The first sentence of the description."""
    if "enum" in schema or "description" not in schema:
        return ""
    return f" ({schema['description'].split('. ')[0].rstrip('.')})"


def _either(choices: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def _hint(fault: Fault) -> str:
    """The field that was meant, or all fields of the object."""
    name, known = str(fault.value), fault.schema.get("properties", {})
    home = fault.path.removesuffix(f".{name}")
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower().replace("_", ""), lower, n=1, cutoff=0.7)
    return f", did you mean {lower[close[0]]}?" if close else f"; the fields of {home} are {', '.join(known)}"


def _show(value: Any) -> str:
    """The beginning of the value: no more is written, however large it is, or whatever it contains."""
    text = ""
    for piece in _JSON.iterencode(value):
        text += piece
        if len(text) > 60:
            return text[:57] + "..."
    return text


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
