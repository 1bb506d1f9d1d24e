"""Dataclasses to JSON and back, strictly.

A message from the network is decoded into frozen dataclasses or refused with a sentence that names the field.
Supported: str, int, float, bool, None, str-Enums, dataclasses, `tuple[X, ...]`, `dict[str, X]`, `X | None`.
Field names stay as they are. Unknown fields are ignored (a newer peer may send more), missing ones take their
default.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class DecodeError(ValueError):
    """The bytes are not the message they claim to be. The text says where and why."""


def encode(message: Any) -> bytes:
    """A dataclass as compact JSON."""
    return json.dumps(to_plain(message), separators=(",", ":"), allow_nan=False).encode()


def to_plain(value: Any) -> Any:
    """A dataclass as dicts, lists and scalars, ready for json."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def decode(cls: type[T], data: bytes | str) -> T:
    """JSON text as `cls`. Raises DecodeError."""
    try:
        plain = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    return from_plain(cls, plain)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def from_plain(cls: type[T], plain: Any) -> T:
    """Dicts and lists as `cls`. Raises DecodeError."""
    value = _build(cls, plain, cls.__name__)
    return typing.cast(T, value)


def _build(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        (kind,) = (arg for arg in args if arg is not type(None))
        return _build(kind, value, where)
    if origin is tuple:
        _expect(isinstance(value, list), where, "a list", value)
        return tuple(_build(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        return {key: _build(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            _expect(False, where, f"one of {', '.join(str(member.value) for member in kind)}", value)
    return _scalar(kind, value, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints, fields = _shape(kind)
    known = {name: _build(hints[name], value[name], f"{where}.{name}") for name in fields if name in value}
    missing = [name for name, required in fields.items() if required and name not in known]
    if missing:
        raise DecodeError(f"{where}: missing {', '.join(missing)}")
    try:
        return kind(**known)
    except ValueError as error:  # a __post_init__ that refuses
        raise DecodeError(f"{where}: {error}") from None


@functools.cache
def _shape(kind: Any) -> tuple[dict[str, Any], dict[str, bool]]:
    required = {
        f.name: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        for f in dataclasses.fields(kind)
    }
    return typing.get_type_hints(kind), required


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    _expect(type(value) is kind, where, kind.__name__, value)
    return value


def _expect(holds: bool, where: str, wanted: str, value: Any) -> None:
    if not holds:
        raise DecodeError(f"{where}: expected {wanted}, got {json.dumps(value)[:80]}")
