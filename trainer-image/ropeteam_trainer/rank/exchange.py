"""Objects that ranks exchange: plain values, and instances of the few classes in the caller's vocabulary.

The wire format is a pickle, sent with torch's own collectives, because ranks of earlier releases send and
expect it: after an upgrade a world may have ranks of both. So a vocabulary has the names by which the first
release sent its classes, wherever they are now and whatever they are called.
Promise: whatever a peer sends, nothing that it names is imported or called, and attributes that it sets on a
class are gone with the message: each message is loaded into stand-in classes of its own, and real instances
are made from them, with the types of their fields.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.errors import ProtocolError
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

Vocabulary = Mapping[str, type]
"""Dataclasses, NamedTuples and exceptions of ours, by their names on the wire (module.Class). A name is never
changed. Python's own exceptions need none."""
PLAIN: Vocabulary = {}
"""Plain values only."""
CONTRACT: Vocabulary = {
    "ropeteam_trainer.contract.world.CheckpointRef": CheckpointRef,
    "ropeteam_trainer.contract.world.Epoch": WorldId,
    "ropeteam_trainer.contract.world.ShardFile": ShardFile,
}
"""Classes of the contract. A caller that sends classes of its own adds their names."""
_SCALARS = (str, bytes, int, float, bool, type(None))


class BadMessage(ProtocolError, ValueError):
    """Message of a peer that is none of those that ranks exchange."""


def pack(value: Any, names: Vocabulary = PLAIN) -> bytes:
    """Raises PicklingError for an instance of a class that is not in `names`."""
    content = io.BytesIO()
    _Packer(content, names).dump(value)
    return content.getvalue()


def unpack(content: bytes, names: Vocabulary = PLAIN) -> Any:
    """Inverse of `pack`. Raises BadMessage."""
    try:
        message = _Message(content, names)
        return message.real(message.load())
    except Exception as error:  # a pickle can go wrong in any way
        raise BadMessage(f"{type(error).__name__}: {str(error)[:200]}") from None


def is_sendable(error: Exception, names: Vocabulary) -> bool:
    kind = type(error)
    return kind in names.values() or _builtin_error(kind.__module__, kind.__qualname__) is not None


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

    def __init__(self, content: io.BytesIO, names: Vocabulary) -> None:
        super().__init__(content)
        self._names = {kind: name for name, kind in names.items()}

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, type) and _builtin_error(obj.__module__, obj.__qualname__) is obj:
            super().save_global(obj, name)
            return
        if obj not in self._names:
            raise pickle.PicklingError(f"{obj} is not in the vocabulary of this exchange")
        module, _, kind = self._names[obj].rpartition(".")
        self.save(sys.intern(module))  # one object, which a pickle holds once
        self.save(kind)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    def reducer_override(self, obj: Any) -> Any:
        """A dataclass sends its fields under their names in JSON."""
        if isinstance(obj, type) or not dataclasses.is_dataclass(obj):
            return NotImplemented
        reduced: Any = obj.__reduce_ex__(self.proto)  # type: ignore[call-arg]
        new, arguments, state, *_ = reduced
        names = {field.name: codec.json_name(field) for field in dataclasses.fields(obj)}
        return new, arguments, {names[name]: value for name, value in state.items()}


class _Message(pickle.Unpickler):
    def __init__(self, content: bytes, names: Vocabulary) -> None:
        super().__init__(io.BytesIO(content))
        self._names = names
        self._kind_of: dict[type, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        kind = self._names.get(f"{module}.{name}") or _builtin_error(module, name)
        if kind is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which ranks do not send to each other")
        stand_in = type(name, (_StandIn,), {})
        self._kind_of[stand_in] = kind
        return stand_in

    def real(self, value: Any) -> Any:
        """`value` with instances in the place of stand-ins."""
        if type(value) in _SCALARS:
            return value
        if type(value) in (tuple, list, set):
            return type(value)(self.real(item) for item in value)
        if type(value) is dict:
            return {self.real(key): self.real(item) for key, item in value.items()}
        kind = self._kind_of[type(value)]
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
