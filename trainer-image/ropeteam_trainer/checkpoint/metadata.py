"""Read `.metadata`, which says where in the files of a checkpoint each tensor lies.

It is torch.distributed.checkpoint's own, and a pickle. Nothing of what it names is imported or called here:
an allow-list puts inert stand-ins in the place of the few classes that it needs, and refuses all others.
(So a restart does not wait for the import of torch.distributed.checkpoint either.)
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Chunk:
    """A block of a tensor, and where it is: torch.save's bytes, in one of the files."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


@dataclass(frozen=True)
class SavedTensor:
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


Saved = Mapping[str, SavedTensor]


def parse(content: bytes) -> Saved:
    """What a `.metadata` file says. Raises ValueError for anything that DCP would not have written for us."""
    try:
        root = _AllowList(io.BytesIO(content)).load()
        stored = {(index.fqn, index.offset): info for index, info in root.storage_data.items()}
        return {name: _tensor(name, about, stored) for name, about in root.state_dict_metadata.items()}
    except Exception as error:  # a pickle can go wrong in any way
        raise ValueError(f"the .metadata of the checkpoint cannot be read: {error}") from None


def _tensor(name: str, about: Any, stored: Mapping[tuple[str, Any], Any]) -> SavedTensor:
    chunks = []
    for chunk in about.chunks:
        info = stored[name, chunk.offsets]
        chunks.append(Chunk(chunk.offsets, chunk.sizes, info.relative_path, info.offset, info.length))
    return SavedTensor(about.size, about.properties.dtype, tuple(chunks))


class _Inert:
    """Stands for a class of torch's: attributes, and no code."""


class _Properties:
    """TensorProperties: a tuple, of which the first is the dtype."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = state[0]


def _number(value: int) -> int:
    """Stands for an enum."""
    return value


def _member(kind: Any, _name: str) -> int:
    """Stands for getattr, by which some versions of Python (3.11.9) write a member of an enum; for nothing
    else."""
    if kind is not _number:
        raise pickle.UnpicklingError("it asks for an attribute, which no checkpoint needs")
    return 0


_DCP = "torch.distributed.checkpoint"
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    (f"{_DCP}.metadata", "Metadata"): _Inert,
    (f"{_DCP}.metadata", "TensorStorageMetadata"): _Inert,
    (f"{_DCP}.metadata", "ChunkStorageMetadata"): _Inert,
    (f"{_DCP}.metadata", "MetadataIndex"): _Inert,
    (f"{_DCP}.metadata", "TensorProperties"): _Properties,
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"): _number,
    (f"{_DCP}.filesystem", "_StorageInfo"): _Inert,
    ("builtins", "getattr"): _member,
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): str,
}


class _AllowList(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
