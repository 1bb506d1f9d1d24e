"""Dataclasses to JSON and back, strictly.

A message from the network is decoded into frozen dataclasses or refused with a sentence that names the field.
Supported: str, int, float, bool, None, str-Enums, dataclasses, `tuple[X, ...]`, `dict[str, X]`, `X | None`,
and `Any`, which is JSON as it is.
A field is written under its own name, or under that of `stored_as`. Unknown fields are ignored (a newer peer
may send more), missing ones take their default.
The reader of a type is built once: a coordinator reads thousands of messages per second.
A lone surrogate (Python's stand-in for a byte of a file name that is not UTF-8) comes from the text of some
script and is no reason to lose a message: `?` replaces it, at both ends. Numbers have 64 bits.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ropeteam_trainer.contract.errors import ProtocolError

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_SCALARS = frozenset({str, int, float, bool, type(None)})
_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_write_unescaped = json.JSONEncoder(ensure_ascii=False).encode
JSON_NAME = "json"
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class DecodeError(ProtocolError, ValueError):
    """Bytes that are not the message that they claim to be. The text names the field and the reason."""


def stored_as(name: str, default: Any = dataclasses.MISSING) -> Any:
    """Field of a dataclass that is called `name` in JSON: the name that peers, manifests and journals of
    earlier releases know. So the name in the code can change without a new version of the protocol; `name`
    never does."""
    return dataclasses.field(default=default, metadata={JSON_NAME: name})


def json_name(field: dataclasses.Field[Any]) -> str:
    """Name of a field in JSON."""
    name: str = field.metadata.get(JSON_NAME, field.name)
    return name


def encode(message: Any) -> bytes:
    """A dataclass as compact JSON, in ASCII. Raises ValueError for NaN and infinity."""
    text = _write(to_plain(message))
    if "\\ud" in text:  # a surrogate, alone or one of a pair
        text = _write(_without_surrogates(json.loads(text)))
    return text.encode()


def _without_surrogates(plain: Any) -> Any:
    """`plain` with `?` in the place of each lone surrogate; pairs become one character."""
    return json.loads(_write_unescaped(plain).encode(errors="replace"))


def to_plain(value: Any) -> Any:
    """A dataclass, or any value that a field may have, as dicts, lists and scalars, ready for json."""
    kind: Any = type(value)
    if kind is tuple or kind is list:
        return [item if type(item) in _SCALARS else to_plain(item) for item in value]
    if kind is dict:
        return {key: item if type(item) in _SCALARS else to_plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    fields = _fields_of(kind)
    return {name: item if type(item) in _SCALARS else to_plain(item) for name, item in fields(value)}


@functools.cache
def _fields_of(kind: Any) -> Callable[[Any], Any]:
    """Function that returns, for instances of a dataclass, (name in JSON, value) of each field."""
    fields = dataclasses.fields(kind)
    names = tuple(map(json_name, fields))
    if len(names) < 2:  # attrgetter returns a tuple only for two names or more
        return lambda value: [(json_name(f), getattr(value, f.name)) for f in fields]
    values = operator.attrgetter(*(f.name for f in fields))
    return lambda value: zip(names, values(value), strict=True)


def decode(cls: type[T], data: bytes | str) -> T:
    """JSON text as `cls`. Raises DecodeError."""
    return from_plain(cls, _parse_json(data))


def _parse_json(data: bytes | str) -> Any:
    """JSON text as dicts, lists and scalars, without surrogates. Raises DecodeError."""
    try:
        text = data.encode(errors="replace").decode() if isinstance(data, str) else data.decode()
        plain = _JSON.decode(text)
        return _without_surrogates(plain) if "\\ud" in text or "\\uD" in text else plain
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None


class Reader(Generic[T]):
    """Decoder of messages of one type from one peer. A field whose JSON equals that of the message before is
    not decoded again, which saves most of the time. (Python's == takes 1 and `true` for equal; there the
    former type stays.)"""

    def __init__(self, cls: type[T]) -> None:
        kind: Any = cls
        self._cls, self._fields = cls, _fields_reader(kind)
        self._attributes = {json_name(f): f.name for f in dataclasses.fields(kind)}
        self._plain: dict[str, Any] = {}
        self._known: dict[str, Any] = {}

    def decode(self, data: bytes) -> T:
        """Message from JSON, as the function `decode` returns it. Raises DecodeError; the next message is
        then compared with the last valid one."""
        plain = _parse_json(data)
        if not isinstance(plain, dict):
            return from_plain(self._cls, plain)
        before, known, attributes = self._plain, self._known, self._attributes
        unchanged = {
            attributes[name]: known[attributes[name]]
            for name, value in plain.items()
            if name in before and before[name] == value and name in attributes
        }
        try:
            message: T = self._fields(plain, unchanged)
        except _Wrong as wrong:
            raise DecodeError(f"{self._cls.__name__}{wrong.where}: {wrong}") from None
        self._plain, self._known = plain, vars(message)
        return message


def _refuse(constant: str) -> None:
    """Refuse NaN, Infinity and -Infinity, which json.loads accepts."""
    raise ValueError(f"{constant} is not a JSON number")


_JSON = json.JSONDecoder(parse_constant=_refuse)


def from_plain(cls: type[T], plain: Any) -> T:
    """Dicts and lists as `cls`. Raises DecodeError."""
    kind: Any = cls
    try:
        return typing.cast(T, _reader_of(kind)(plain))
    except _Wrong as wrong:
        raise DecodeError(f"{cls.__name__}{wrong.where}: {wrong}") from None


class _Wrong(ValueError):
    """Error, and the field that it is in. `where`: path of the field, `.slots[3].term`; each reader on the
    way out puts its part before it."""

    where = ""

    def within(self, part: str) -> _Wrong:
        """This error, with `part` put before its path."""
        self.where = part + self.where
        return self


def _wrong_type(wanted: str, value: Any) -> _Wrong:
    """Error for a value of another type. Its text quotes 80 characters of the value at most."""
    nested = isinstance(value, (list, dict)) and value  # perhaps so deep that it cannot be written again
    return _Wrong(f"expected {wanted}, got {'something nested' if nested else json.dumps(value)[:80]}")


@functools.cache
def _reader_of(kind: Any) -> _Reader:
    """Function that reads plain JSON values as this type, and raises _Wrong. Built once for each type."""
    if kind is Any:
        return lambda value: value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _optional_reader(_reader_of(next(arg for arg in args if arg is not type(None))))
    if origin is tuple:
        return _list_reader(_reader_of(args[0]))
    if origin is dict:
        return _dict_reader(_reader_of(args[1]))
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_reader(kind)
    return {int: _read_int, float: _read_float}.get(kind) or _scalar_reader(kind)


def _optional_reader(inner: _Reader) -> _Reader:
    return lambda value: None if value is None else inner(value)


def _list_reader(inner: _Reader) -> _Reader:
    """Function that reads a list as a tuple, each item by `inner`."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong_type("a list", value)
        found: list[Any] = []
        try:
            for item in value:
                found.append(inner(item))  # noqa: PERF401 (the error names the item)
        except _Wrong as wrong:
            raise wrong.within(f"[{len(found)}]") from None
        return tuple(found)

    return read


def _dict_reader(inner: _Reader) -> _Reader:
    """Function that reads an object as a dict, each value by `inner`."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong_type("an object", value)
        found, key = {}, ""
        try:
            for key, item in value.items():
                found[key] = inner(item)
        except _Wrong as wrong:
            raise wrong.within(f".{key}") from None
        return found

    return read


def _dataclass_reader(kind: Any) -> _Reader:
    read_fields = _fields_reader(kind)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong_type("an object", value)
        return read_fields(value, {})

    return read


@functools.cache
def _fields_reader(kind: Any) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    """Function (plain, known) that makes an instance of a dataclass. `known`: attributes that are read
    already; the function adds the others to it. Fields that `plain` has not take their default. Raises
    _Wrong."""
    hints = typing.get_type_hints(kind)
    readers = tuple((json_name(f), f.name, _reader_of(hints[f.name])) for f in dataclasses.fields(kind))
    required = tuple(
        (json_name(f), f.name)
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    needed = frozenset(attribute for _, attribute in required)

    def read(value: dict[str, Any], known: dict[str, Any]) -> Any:
        name = ""
        try:
            for name, attribute, inner in readers:
                if name in value and attribute not in known:
                    known[attribute] = inner(value[name])
        except _Wrong as wrong:
            raise wrong.within(f".{name}") from None
        if not known.keys() >= needed:
            missing = (name for name, attribute in required if attribute not in known)
            raise _Wrong(f"missing {', '.join(missing)}")
        try:
            return kind(**known)
        except ValueError as error:  # a __post_init__ that refuses
            raise _Wrong(str(error)) from None

    return read


def _enum_reader(kind: Any) -> _Reader:
    members = {member.value: member for member in kind}

    def read(value: Any) -> Any:
        member = members.get(value) if type(value) is str else None
        if member is None:
            raise _wrong_type(f"one of {', '.join(members)}", value)
        return member

    return read


def _scalar_reader(kind: Any) -> _Reader:
    """Function that accepts values of exactly this type: `true` is no int."""

    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise _wrong_type(kind.__name__, value)

    return read


def _read_int(value: Any) -> int:
    """`value`, if it is an integer of 64 bits; `true` is none. Raises _Wrong."""
    if type(value) is not int:
        raise _wrong_type("int", value)
    if not _LOWEST <= value <= _HIGHEST:
        raise _Wrong("expected a number of 64 bits, got a larger one")
    return value


def _read_float(value: Any) -> float:
    """`value` as a finite float; an integer will do. Raises _Wrong."""
    if type(value) is int:
        return float(_read_int(value))
    if type(value) is not float:
        raise _wrong_type("float", value)
    if not math.isfinite(value):  # 1e999 is a number of JSON
        raise _Wrong("expected a number of 64 bits, got a larger one")
    return value
