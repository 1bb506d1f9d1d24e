"""Label and field selectors, as in `kubectl -l` and `--field-selector`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ropeteam.local.resources import ApiError, Object

Test = Callable[[Object], bool]
_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s!=,()]*)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^\s!=,()]+)$")


def labels_of(value: Object) -> dict[str, str]:
    return value["metadata"].get("labels") or {}


def at(value: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def matches(selector: dict[str, str], value: Object) -> bool:
    """The selector of a Service."""
    return selector.items() <= labels_of(value).items()


def parse(labels: str, fields: str) -> Test:
    """One test for both. Raises 400 for a text that is no selector."""
    tests = [_label(part.strip()) for part in re.split(r",(?![^()]*\))", labels) if part.strip()]
    tests += [_field(part.strip()) for part in fields.split(",") if part.strip()]
    return lambda value: all(test(value) for test in tests)


def _label(text: str) -> Test:
    if found := _SET.match(text):
        key, wanted = found["key"], {value.strip() for value in found["values"].split(",")}
        inside = found["op"] == "in"
        return lambda value: (labels_of(value).get(key) in wanted) == inside
    if found := _COMPARE.match(text):
        key, text, equal = found["key"], found["value"], found["op"] != "!="
        return lambda value: (labels_of(value).get(key) == text) == equal
    if found := _EXISTS.match(text):
        key, wants = found["key"], not found["no"]
        return lambda value: (key in labels_of(value)) == wants
    raise ApiError(400, "BadRequest", f"unable to parse requirement: {text!r}")


def _field(text: str) -> Test:
    found = _COMPARE.match(text)
    if not found:
        raise ApiError(400, "BadRequest", f"invalid selector: {text!r}; can't understand it")
    path, wanted, equal = found["key"], found["value"], found["op"] != "!="
    return lambda value: (str(at(value, path) or "") == wanted) == equal
