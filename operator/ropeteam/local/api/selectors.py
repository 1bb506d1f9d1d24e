"""Label and field selectors, as in `kubectl -l` and `--field-selector`. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ropeteam.api.rule import at
from ropeteam.local.api.meta import key_errors, label_value_problems
from ropeteam.local.api.rules import selectable_fields
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource, StatusError

Test = Callable[[Object], bool]
"""Whether an object is selected."""
_SET = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s!=,()<>]*)$")
_ORDER = re.compile(r"^(?P<key>[^\s!=,()<>]+)\s*(?P<op>[<>])\s*(?P<value>-?\d+)$")
_EXISTS = re.compile(r"^(?P<no>!?)\s*(?P<key>[^\s!=,()<>]+)$")


def labels_of(value: Object) -> dict[str, str]:
    return value["metadata"].get("labels") or {}


def matches(selector: dict[str, str], value: Object) -> bool:
    """Whether an object has all labels of a selector, as that of a Service. An empty selector matches all."""
    return selector.items() <= labels_of(value).items()


def parse(labels: str, fields: str, resource: Resource | None = None) -> Test:
    """A test of objects by a label selector and a field selector, each empty or requirements separated by
    commas. Raises 400 for an invalid one, or a field that `resource` does not support (None: any field)."""
    parts = [part.strip() for part in re.split(r",(?![^()]*\))", labels)] if labels.strip() else []
    tests = [_label_test(part) for part in parts]
    tests += [_field_test(part.strip(), resource) for part in fields.split(",") if part.strip()]
    return lambda value: all(test(value) for test in tests)


def _label_test(text: str) -> Test:
    """The test of one requirement of a label selector. First match wins: `in` and `notin`, `<` and `>`, `=`
    and `!=`, existence. Raises 400 if none matches, or for an invalid label."""
    if found := _SET.match(text):
        key, wanted = found["key"], {value.strip() for value in found["values"].split(",")}
        _check_label(key, *wanted)
        inside = found["op"] == "in"
        return lambda value: (labels_of(value).get(key) in wanted) == inside
    if found := _ORDER.match(text):
        key, bound, above = found["key"], int(found["value"]), found["op"] == ">"
        _check_label(key)
        return lambda value: _is_beyond(labels_of(value).get(key), bound, above)
    if found := _COMPARE.match(text):
        key, text, equal = found["key"], found["value"], found["op"] != "!="
        _check_label(key, text)
        return lambda value: (labels_of(value).get(key) == text) == equal
    if found := _EXISTS.match(text):
        key, expected = found["key"], not found["no"]
        _check_label(key)
        return lambda value: (key in labels_of(value)) == expected
    raise StatusError(400, "BadRequest", f"unable to parse requirement: {text!r}")


def _check_label(key: str, *values: str) -> None:
    """Raise 400 for an invalid label key or value in a selector."""
    wrong = list(key_errors("<nil>", key))
    wrong += [
        FieldError.invalid(f"values[0][{key}]", value, why)
        for value in values
        for why in label_value_problems(value)
    ]
    if wrong:
        raise StatusError(400, "BadRequest", f"unable to parse requirement: {wrong[0]}")


def _is_beyond(value: str | None, bound: int, above: bool) -> bool:
    """Whether the value of a label is above, or else below, a bound; a missing or non-integer one is
    neither."""
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > bound if above else int(value) < bound


def _field_test(text: str, resource: Resource | None) -> Test:
    """The test of one requirement of a field selector. Raises 400."""
    found = _COMPARE.match(text)
    if not found:
        raise StatusError(400, "BadRequest", f"invalid selector: {text!r}; can't understand {text!r}")
    path, wanted, equal = found["key"], found["value"], found["op"] != "!="
    if resource and path not in ("metadata.name", "metadata.namespace", *selectable_fields(resource)):
        text = f"field label not supported: {path}"
        if not resource.schema and not selectable_fields(resource):
            text = f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        raise StatusError(400, "BadRequest", text)
    path = {"source": "source.component"}.get(path, path)
    return lambda value: (_comparable_text(at(value, path), path) == wanted) == equal


def _comparable_text(value: Any, path: str) -> str:
    """Text of a field, to compare with a selector's: empty for a missing field, true or false for a
    boolean."""
    if isinstance(value, bool) or path == "spec.hostNetwork":
        return "true" if value else "false"
    return str(value or "")
