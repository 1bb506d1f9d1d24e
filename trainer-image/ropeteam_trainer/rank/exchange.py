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
    """Pickle of `value`. Raises PicklingError for an instance of a class that is not in `names`."""
    content = io.BytesIO()
    _Packer(content, names).dump(value)
    return content.getvalue()


def unpack(content: bytes, names: Vocabulary = PLAIN) -> Any:
    """Inverse of pack(). Raises BadMessage for anything else, and for a class that is not in `names`."""
    try:
        message = _Message(content, names)
        return message.with_instances(message.load())
    except Exception as error:  # a pickle can go wrong in any way
        raise BadMessage(f"{type(error).__name__}: {str(error)[:200]}") from None


def is_sendable(error: Exception, names: Vocabulary) -> bool:
    """Whether the error's class is in `names`, or one of Python's own."""
    kind = type(error)
    return kind in names.values() or _builtin_exception(kind.__module__, kind.__qualname__) is not None


def _builtin_exception(module: str, name: str) -> type | None:
    """Python's own exception of this name. None: there is none."""
    found = vars(builtins).get(name) if module == "builtins" else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


class _StandIn:
    """Stand-in for an instance while a message is loaded. Its attributes are the state that the pickle
    sets."""

    _args: tuple[Any, ...]
    """Arguments of the constructor in the pickle."""

    def __new__(cls, *args: Any) -> _StandIn:
        """Instance that keeps the arguments; the unpickler calls this for every class."""
        stand_in = super().__new__(cls)
        stand_in._args = args
        return stand_in


_PythonPickler: Any = pickle._Pickler


class _Packer(_PythonPickler):  # type: ignore[misc]
    """Pickler that writes the names of a vocabulary. It is the one in Python: the one in C looks each class
    up under the name that it writes."""

    def __init__(self, content: io.BytesIO, names: Vocabulary) -> None:
        super().__init__(content)
        self._names = {kind: name for name, kind in names.items()}

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write a class by its name in the vocabulary. Raises PicklingError for any other."""
        if isinstance(obj, type) and _builtin_exception(obj.__module__, obj.__qualname__) is obj:
            super().save_global(obj, name)
            return
        if obj not in self._names:
            raise pickle.PicklingError(
                f"{obj} cannot be sent to other ranks: it is not in the vocabulary of this exchange"
            )
        module, _, kind = self._names[obj].rpartition(".")
        self.save(sys.intern(module))  # one object, which a pickle holds once
        self.save(kind)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    def reducer_override(self, obj: Any) -> Any:
        """Reduced form of a dataclass, with its fields under their names in JSON; NotImplemented for all
        others."""
        if isinstance(obj, type) or not dataclasses.is_dataclass(obj):
            return NotImplemented
        reduced: Any = obj.__reduce_ex__(self.proto)  # type: ignore[call-arg]
        new, arguments, state, *_ = reduced
        names = {field.name: codec.json_name(field) for field in dataclasses.fields(obj)}
        return new, arguments, {names[name]: value for name, value in state.items()}


class _Message(pickle.Unpickler):
    """Message of a peer, loaded into stand-ins: no class that it names is called."""

    def __init__(self, content: bytes, names: Vocabulary) -> None:
        super().__init__(io.BytesIO(content))
        self._names = names
        self._kind_of: dict[type, type] = {}
        """The class that each stand-in class of this message is for."""

    def find_class(self, module: str, name: str) -> Any:
        """New stand-in class for a class that the message names. Raises UnpicklingError for one that is not
        known."""
        kind = self._names.get(f"{module}.{name}") or _builtin_exception(module, name)
        if kind is None:
            raise pickle.UnpicklingError(
                f"the message names {module}.{name}, which ranks do not send to each other"
            )
        stand_in = type(name, (_StandIn,), {})
        self._kind_of[stand_in] = kind
        return stand_in

    def with_instances(self, value: Any) -> Any:
        """`value` with real instances in the place of stand-ins. Raises DecodeError for fields of other
        types, KeyError for other classes."""
        if type(value) in _SCALARS:
            return value
        if type(value) in (tuple, list, set):
            return type(value)(self.with_instances(item) for item in value)
        if type(value) is dict:
            return {self.with_instances(key): self.with_instances(item) for key, item in value.items()}
        kind = self._kind_of[type(value)]
        if dataclasses.is_dataclass(kind):
            return codec.from_plain(kind, self._json_value(value))
        return kind(*self.with_instances(value._args))

    def _json_value(self, value: Any) -> Any:
        """`value` as it would be read from JSON: a stand-in is an object of its fields, for the codec to
        check."""
        if type(value) in _SCALARS:
            return value
        if type(value) in (tuple, list):
            return [self._json_value(item) for item in value]
        if type(value) is dict:
            return {key: self._json_value(item) for key, item in value.items()}
        return {name: self._json_value(item) for name, item in vars(value).items() if name != "_args"}
