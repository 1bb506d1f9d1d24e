"""Label and field selectors, as in `kubectl -l` and `--field-selector`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ropeteam.api.rule import at
from ropeteam.local.api.meta import key_errors, value_errors
from ropeteam.local.api.rules import fields
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource, StatusError

Test = Callable[[Object], bool]
_SET = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s!=,()<>]*)$")
_ORDER = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s*(?P<op>[<>])\s*(?P<value>-?\d+)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^\s!=,()<>]+)$")


def labels_of(value: Object) -> dict[str, str]:
    return value["metadata"].get("labels") or {}


def matches(selector: dict[str, str], value: Object) -> bool:
    """Whether the selector of a Service matches."""
    return selector.items() <= labels_of(value).items()


def parse(labels: str, fields: str, resource: Resource | None = None) -> Test:
    """One test for both. Raises 400 for an invalid selector, or one that `resource` does not support."""
    parts = [part.strip() for part in re.split(r",(?![^()]*\))", labels)] if labels.strip() else []
    tests = [_label(part) for part in parts]
    tests += [_field(part.strip(), resource) for part in fields.split(",") if part.strip()]
    return lambda value: all(test(value) for test in tests)


def _label(text: str) -> Test:
    if found := _SET.match(text):
        key, wanted = found["key"], {value.strip() for value in found["values"].split(",")}
        _check(key, *wanted)
        inside = found["op"] == "in"
        return lambda value: (labels_of(value).get(key) in wanted) == inside
    if found := _ORDER.match(text):
        key, bound, above = found["key"], int(found["value"]), found["op"] == ">"
        _check(key)
        return lambda value: _is_beyond(labels_of(value).get(key), bound, above)
    if found := _COMPARE.match(text):
        key, text, equal = found["key"], found["value"], found["op"] != "!="
        _check(key, text)
        return lambda value: (labels_of(value).get(key) == text) == equal
    if found := _EXISTS.match(text):
        key, expected = found["key"], not found["no"]
        _check(key)
        return lambda value: (key in labels_of(value)) == expected
    raise StatusError(400, "BadRequest", f"unable to parse requirement: {text!r}")


def _check(key: str, *values: str) -> None:
    """Raise 400 for an invalid label."""
    wrong = list(key_errors("<nil>", key))
    wrong += [
        FieldError.invalid(f"values[0][{key}]", value, why) for value in values for why in value_errors(value)
    ]
    if wrong:
        raise StatusError(400, "BadRequest", f"unable to parse requirement: {wrong[0]}")


def _is_beyond(value: str | None, bound: int, above: bool) -> bool:
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > bound if above else int(value) < bound


def _field(text: str, resource: Resource | None) -> Test:
    found = _COMPARE.match(text)
    if not found:
        raise StatusError(400, "BadRequest", f"invalid selector: {text!r}; can't understand {text!r}")
    path, wanted, equal = found["key"], found["value"], found["op"] != "!="
    if resource and path not in ("metadata.name", "metadata.namespace", *fields(resource)):
        text = f"field label not supported: {path}"
        if not resource.schema and not fields(resource):
            text = f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        raise StatusError(400, "BadRequest", text)
    path = {"source": "source.component"}.get(path, path)
    return lambda value: (_text(at(value, path), path) == wanted) == equal


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool) or path == "spec.hostNetwork":
        return "true" if value else "false"
    return str(value or "")
