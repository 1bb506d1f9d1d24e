"""Objects that ranks exchange: plain values, and instances of the few classes that the caller names.

The wire format is a pickle, sent with torch's own collectives, because ranks of earlier releases send and
expect it: after an upgrade a world may have ranks of both. Promise: whatever a peer sends, nothing that it
names is imported or called, and attributes that it sets on a class are gone with the message: each message is
loaded into stand-in classes of its own, and real instances are made from them, with the types of their
fields.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import pickle
from typing import Any

from ropeteam_trainer.contract import codec

_CHECKPOINT = "ropeteam_trainer.checkpoint"
_WIRE_MODULES = {
    f"{_CHECKPOINT}.agreement": f"{_CHECKPOINT}.together",
    f"{_CHECKPOINT}.decisions.manifest": f"{_CHECKPOINT}.manifest",
    f"{_CHECKPOINT}.decisions.restore": f"{_CHECKPOINT}.restore",
}
"""Modules that earlier releases know by another name: a class is sent under the name that they know."""
_SCALARS = (str, bytes, int, float, bool, type(None))


class NotUnderstood(ValueError):
    """Message of a peer that is none of those that ranks exchange."""


def pack(value: Any) -> bytes:
    content = io.BytesIO()
    _Packer(content).dump(value)
    return content.getvalue()


def wire_name(kind: type) -> tuple[str, str]:
    """Module and class by which a pickle names `kind`, in every release."""
    return _WIRE_MODULES.get(kind.__module__, kind.__module__), kind.__qualname__


def unpack(content: bytes, kinds: tuple[type, ...] = ()) -> Any:
    """Inverse of `pack`. `kinds`: dataclasses, NamedTuples and exceptions of ours; Python's own exceptions
    are known. Raises NotUnderstood."""
    try:
        message = _Message(content, kinds)
        return message.real(message.load())
    except Exception as error:  # a pickle can go wrong in any way
        raise NotUnderstood(f"{type(error).__name__}: {str(error)[:200]}") from None


def can_be_told(error: Exception, kinds: tuple[type, ...]) -> bool:
    return (
        type(error) in kinds or _builtin_error(type(error).__module__, type(error).__qualname__) is not None
    )


def _builtin_error(module: str, name: str) -> type | None:
    found = vars(builtins).get(name) if module == "builtins" else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


class _StandIn:
    """Stand-in for an instance: the arguments that it is made from."""

    _args: tuple[Any, ...]

    def __new__(cls, *args: Any) -> _StandIn:
        stand_in = super().__new__(cls)
        stand_in._args = args
        return stand_in


_PythonPickler: Any = pickle._Pickler


class _Packer(_PythonPickler):  # type: ignore[misc]
    """The pickler in Python: the one in C looks each class up under the name that it writes."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if not isinstance(obj, type) or obj.__module__ not in _WIRE_MODULES:
            super().save_global(obj, name)
            return
        for text in wire_name(obj):
            self.save(text)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)


class _Message(pickle.Unpickler):
    def __init__(self, content: bytes, kinds: tuple[type, ...]) -> None:
        super().__init__(io.BytesIO(content))
        self._kinds = {wire_name(kind): kind for kind in kinds}
        self._stands_for: dict[type, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        kind = self._kinds.get((module, name)) or _builtin_error(module, name)
        if kind is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which ranks do not send to each other")
        stand_in = type(name, (_StandIn,), {})
        self._stands_for[stand_in] = kind
        return stand_in

    def real(self, value: Any) -> Any:
        """`value` with instances in the place of stand-ins."""
        if type(value) in _SCALARS:
            return value
        if type(value) in (tuple, list, set):
            return type(value)(self.real(item) for item in value)
        if type(value) is dict:
            return {self.real(key): self.real(item) for key, item in value.items()}
        kind = self._stands_for[type(value)]
        if dataclasses.is_dataclass(kind):
            return codec.from_plain(kind, self._plain(value))
        return kind(*self.real(value._args))

    def _plain(self, value: Any) -> Any:
        """`value` as it would be read from JSON."""
        if type(value) in _SCALARS:
            return value
        if type(value) in (tuple, list):
            return [self._plain(item) for item in value]
        if type(value) is dict:
            return {key: self._plain(item) for key, item in value.items()}
        return {name: self._plain(item) for name, item in vars(value).items() if name != "_args"}
