"""Validation of metadata: names, labels, annotations, owners. Pure, with the messages of a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ropeteam.local import resources as r
from ropeteam.local.resources import ApiError, Object, Resource

_LABEL, _NAME_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?", "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN, _LABEL_VALUE = rf"{_LABEL}(\.{_LABEL})*", f"({_NAME_PART})?"
NO_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    f"'{_LABEL}')"
)
_NO_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN}')"
)
_PART_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
)
_NO_NAME_PART = (
    f"name part {_PART_RULE} character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME_PART}')"
)
_NO_KEY = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_NAME_PART}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_NO_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    f"for validation is '{_LABEL_VALUE}')"
)
FIELDS = (
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
)  # fmt: skip
_TEXTS = {"labels", "annotations"}
_LISTS = {"finalizers", "ownerReferences"}


def check_types(resource: Resource, meta: Any) -> None:
    """Check types. Raises 400 for metadata that could not be decoded."""
    if not isinstance(meta, dict):
        raise _undecodable(resource, _json_type(meta), "metadata", "ObjectMeta")
    for name, value in meta.items():
        if name in _TEXTS and value is not None:
            if not isinstance(value, dict):
                raise _undecodable(resource, _json_type(value), f"metadata.{name}", "map[string]string")
            wrong = next((each for each in value.values() if not isinstance(each, str | None)), None)
            if wrong is not None:
                raise _undecodable(resource, _json_type(wrong), f"metadata.{name}", "string")
        elif name in _LISTS and not isinstance(value, list | None):
            raise _undecodable(resource, _json_type(value), f"metadata.{name}", "a list")
        elif name in ("name", "generateName", "namespace", "resourceVersion", "uid") and not isinstance(
            value, str | None
        ):
            raise _undecodable(resource, _json_type(value), f"metadata.{name}", "string")


def _undecodable(resource: Resource, found: str, path: str, wanted: str) -> ApiError:
    text = f"json: cannot unmarshal {found} into {path} of type {wanted}"
    return ApiError(400, "BadRequest", f"{resource.unhandled}: {text}")


def _json_type(value: Any) -> str:
    """Name of a value's type in Go's decoder."""
    names = {dict: "object", list: "array", str: "string", bool: "bool"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "number")


def faults(resource: Resource, meta: Object) -> Iterator[str]:
    yield from _name_faults(resource, meta.get("name") or "")
    for key, value in (meta.get("labels") or {}).items():
        yield from key_faults("metadata.labels", key)
        for why in value_faults(value or ""):
            yield f'metadata.labels: Invalid value: "{value}": {why}'
    for key in meta.get("annotations") or {}:
        yield from key_faults("metadata.annotations", key.lower())
    for owner in meta.get("ownerReferences") or ():
        here = "metadata.ownerReferences"
        if not owner.get("apiVersion"):
            yield f'{here}.apiVersion: Invalid value: "": version must not be empty'
        for name in ("kind", "name", "uid"):
            if not owner.get(name):
                yield f'{here}.{name}: Invalid value: "": must not be empty'


def _name_faults(resource: Resource, name: str) -> Iterator[str]:
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
        return
    bad = f'metadata.name: Invalid value: "{name}": '
    label = resource in (r.SERVICES, r.NAMESPACES)
    limit = 63 if label else 253
    if len(name) > limit:
        yield f"{bad}must be no more than {limit} characters"
    if label and "." in name:
        yield f"{bad}must not contain dots"
    elif not re.fullmatch(_LABEL if label else _SUBDOMAIN, name):
        yield bad + (NO_LABEL if label else _NO_SUBDOMAIN)


def key_faults(path: str, key: str) -> Iterator[str]:
    """Errors in the key of a label or an annotation."""
    bad = f'{path}: Invalid value: "{key}": '
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield bad + _NO_KEY
        return
    if slash and not re.fullmatch(_SUBDOMAIN, prefix):
        yield f"{bad}prefix part {_NO_SUBDOMAIN if prefix else 'must be non-empty'}"
    if not name:
        yield f"{bad}name part must be non-empty"
    elif len(name) > 63:
        yield f"{bad}name part must be no more than 63 bytes"
    if not re.fullmatch(_NAME_PART, name):
        yield bad + _NO_NAME_PART


def value_faults(value: str) -> Iterator[str]:
    """The reasons why a text is not a valid label value."""
    if len(value) > 63:
        yield "must be no more than 63 bytes"
    if not re.fullmatch(_LABEL_VALUE, value):
        yield _NO_VALUE
