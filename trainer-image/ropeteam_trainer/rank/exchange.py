"""What ranks tell each other: plain values, and instances of the few classes that the caller names.

On the wire it is a pickle, because ranks of earlier releases send and expect one, and with torch's own
collectives: after an upgrade a world may have ranks of both. Promise: whatever a peer sends, nothing that it
names is imported or called, and what is written into a class is gone with the message: stand-ins are made for
each message, and real instances of what they tell, with the types that their fields have.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import pickle
from typing import Any

from ropeteam_trainer.contract import codec

_SCALARS = (str, bytes, int, float, bool, type(None))


class NotUnderstood(ValueError):
    """A peer has sent something else than ranks tell each other."""


def pack(value: Any) -> bytes:
    return pickle.dumps(value)


def unpack(content: bytes, kinds: tuple[type, ...] = ()) -> Any:
    """`kinds`: dataclasses, NamedTuples and exceptions of ours; those of Python are known. Raises
    NotUnderstood."""
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


class _Told:
    """Stands for an instance: what it is made of."""

    _args: tuple[Any, ...]

    def __new__(cls, *args: Any) -> _Told:
        told = super().__new__(cls)
        told._args = args
        return told


class _Message(pickle.Unpickler):
    def __init__(self, content: bytes, kinds: tuple[type, ...]) -> None:
        super().__init__(io.BytesIO(content))
        self._kinds = {(kind.__module__, kind.__qualname__): kind for kind in kinds}
        self._stands_for: dict[type, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        kind = self._kinds.get((module, name)) or _builtin_error(module, name)
        if kind is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which ranks do not tell each other")
        stand_in = type(name, (_Told,), {})
        self._stands_for[stand_in] = kind
        return stand_in

    def real(self, value: Any) -> Any:
        """With instances in the place of stand-ins."""
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
        """As it would be read from JSON."""
        if type(value) in _SCALARS:
            return value
        if type(value) in (tuple, list):
            return [self._plain(item) for item in value]
        if type(value) is dict:
            return {key: self._plain(item) for key, item in value.items()}
        return {name: self._plain(item) for name, item in vars(value).items() if name != "_args"}
