"""Validation of metadata: names, labels, annotations, owners. No I/O; with the messages of a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ropeteam.local import resources as r
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource, Undecodable

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
    """Raise 400 for metadata with a field of a wrong type. `meta`: as the client sent it."""
    if not isinstance(meta, dict):
        raise wrong_type_error(resource, meta, "metadata", "ObjectMeta")
    for name, value in meta.items():
        if name in _TEXTS and value is not None:
            if not isinstance(value, dict):
                raise wrong_type_error(resource, value, f"metadata.{name}", "map[string]string")
            wrong = next((each for each in value.values() if not isinstance(each, str | None)), None)
            if wrong is not None:
                raise wrong_type_error(resource, wrong, f"metadata.{name}", "string")
        elif name in _LISTS and not isinstance(value, list | None):
            raise wrong_type_error(resource, value, f"metadata.{name}", "a list")
        elif name in ("name", "generateName", "namespace", "resourceVersion", "uid") and not isinstance(
            value, str | None
        ):
            raise wrong_type_error(resource, value, f"metadata.{name}", "string")


def wrong_type_error(resource: Resource, value: Any, path: str, wanted: str) -> Undecodable:
    """400: the value at `path` is of another type than `wanted`."""
    text = f"json: cannot unmarshal {_json_type(value)} into {path} of type {wanted}"
    return resource.undecodable_error(text)


def _json_type(value: Any) -> str:
    """Name of a value's type in Go's decoder."""
    names = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "number")


def field_errors(resource: Resource, meta: Object) -> Iterator[FieldError]:
    """Errors of metadata whose types are right (`check_types`)."""
    yield from _name_errors(resource, meta.get("name") or "")
    for key, value in (meta.get("labels") or {}).items():
        yield from key_errors("metadata.labels", key)
        for why in label_value_problems(value or ""):
            yield FieldError.invalid("metadata.labels", value, why)
    for key in meta.get("annotations") or {}:
        yield from key_errors("metadata.annotations", key.lower())
    for owner in meta.get("ownerReferences") or ():
        here = "metadata.ownerReferences"
        if not owner.get("apiVersion"):
            yield FieldError.invalid(f"{here}.apiVersion", "", "version must not be empty")
        for name in ("kind", "name", "uid"):
            if not owner.get(name):
                yield FieldError.invalid(f"{here}.{name}", "", "must not be empty")


def _name_errors(resource: Resource, name: str) -> Iterator[FieldError]:
    """Errors of metadata.name. Names of Services and Namespaces are DNS labels, others DNS subdomains."""
    here, label = "metadata.name", resource in (r.SERVICES, r.NAMESPACES)
    if not name:
        yield FieldError.required(here, "name or generateName is required")
        return
    limit = 63 if label else 253
    if len(name) > limit:
        yield FieldError.invalid(here, name, f"must be no more than {limit} characters")
    if label and "." in name:
        yield FieldError.invalid(here, name, "must not contain dots")
    elif not re.fullmatch(_LABEL if label else _SUBDOMAIN, name):
        yield FieldError.invalid(here, name, NO_LABEL if label else _NO_SUBDOMAIN)


def key_errors(path: str, key: str) -> Iterator[FieldError]:
    """Errors in the key of a label or an annotation."""
    return (FieldError.invalid(path, key, why) for why in _key_problems(key))


def _key_problems(key: str) -> Iterator[str]:
    """Reasons why a text is not a valid key of a label or annotation."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        yield _NO_KEY
        return
    if slash and not re.fullmatch(_SUBDOMAIN, prefix):
        yield f"prefix part {_NO_SUBDOMAIN if prefix else 'must be non-empty'}"
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield "name part must be no more than 63 bytes"
    if not re.fullmatch(_NAME_PART, name):
        yield _NO_NAME_PART


def label_value_problems(value: str) -> Iterator[str]:
    """Reasons why a text is not a valid label value."""
    if len(value) > 63:
        yield "must be no more than 63 bytes"
    if not re.fullmatch(_LABEL_VALUE, value):
        yield _NO_VALUE
