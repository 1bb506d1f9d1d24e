"""Parser of `.metadata`, the index of a checkpoint's tensors.

It is torch.distributed.checkpoint's own format, and a pickle. No name in it is imported or called here: an
allow-list puts inert stand-ins in the place of the few classes that it needs, and refuses all others. (So a
restart does not wait for the import of torch.distributed.checkpoint either.) Its objects are no larger than
its bytes (picklesizes.py).
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ropeteam_trainer.checkpoint.format.contents import MalformedCheckpoint, runs_code
from ropeteam_trainer.checkpoint.format.picklesizes import check_sizes


@dataclass(frozen=True)
class Chunk:
    """Block of a tensor, and its location: torch.save's bytes, in one of the files."""

    offsets: tuple[int, ...]
    """Begin of the block in the tensor."""
    sizes: tuple[int, ...]
    dtype: torch.dtype
    file: str
    begin: int
    """Begin of its bytes in the file."""
    length: int


@dataclass(frozen=True)
class SavedTensor:
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


Saved = Mapping[str, SavedTensor]
_LARGEST = (1 << 63) - 1
_MOST_SPLIT = 8
"""Limit on the dimensions along which a tensor is sharded: more than any mesh has."""
_MOST_DIMENSIONS = 64
"""Limit on the dimensions of a tensor: many of torch's operations accept no more."""


def parse(content: bytes, validated: bool = False) -> Saved:
    """Index in a `.metadata` file. Raises MalformedCheckpoint if DCP does not write such a file, and
    ValueError for a name that another version of DCP or Python may write, and for too little memory.
    `validated`: its sizes are verified already, which takes longer than all other checks."""
    try:
        if not validated:
            check_sizes(content)
        root = _AllowList(content).load()
        stored = {_block_key(index): info for index, info in root.storage_data.items()}
        saved = {name: _parse_tensor(name, about, stored) for name, about in root.state_dict_metadata.items()}
        _require_disjoint(saved)
        return saved
    except (_Unknown, MemoryError) as error:  # neither is proof
        why = error if isinstance(error, _Unknown) else "it needs more memory than there is"
        raise ValueError(f"the .metadata of the checkpoint cannot be read: {why}") from None
    except Exception as error:  # a pickle can go wrong in any way
        raise MalformedCheckpoint(
            f"the .metadata of the checkpoint cannot be read: {str(error)[:200]}"
        ) from None


def _block_key(index: Any) -> tuple[str, tuple[int, ...]]:
    """Key of a block. Checked before it is hashed: many blocks can share an object that takes long to
    hash."""
    if not isinstance(index.fqn, str):
        raise TypeError("an entry of storage_data names no tensor")
    return index.fqn, _checked_numbers(index.offset)


def _parse_tensor(name: str, about: Any, stored: Mapping[tuple[str, Any], Any]) -> SavedTensor:
    """Entry of one tensor. `about`: its object in the pickle. `stored`: locations of blocks by their keys.
    Raises TypeError, ValueError, LookupError or AttributeError for an entry that DCP does not write."""
    shape, dtype = _checked_numbers(about.size), about.properties.dtype
    if not isinstance(name, str) or not isinstance(dtype, torch.dtype):
        raise TypeError("a tensor has no name or no dtype")
    chunks = []
    for chunk in about.chunks:
        offsets, sizes = (
            _checked_numbers(chunk.offsets, len(shape)),
            _checked_numbers(chunk.sizes, len(shape)),
        )
        info = stored[name, offsets]
        begin, length = _checked_numbers((info.offset, info.length), 2)
        if not isinstance(info.relative_path, str):
            raise TypeError(f"the index names no file for a block of {name}")
        if any(at + size > end for at, size, end in zip(offsets, sizes, shape, strict=True)):
            raise ValueError(f"a block of {name} is outside of it")
        chunks.append(Chunk(offsets, sizes, dtype, info.relative_path, begin, length))
    if not _covers_exactly(shape, chunks):
        raise ValueError(f"the blocks of {name} do not cover it exactly once")
    return SavedTensor(shape, dtype, tuple(chunks))


def _covers_exactly(shape: tuple[int, ...], chunks: Sequence[Chunk]) -> bool:
    """Whether each element is in exactly one block, as DCP requires. Time is linear in the number of blocks.

    Proof: corners of blocks are points of the tensor; two at one point cancel each other. If only the corners
    of the whole tensor are left, each element is in an odd number of blocks. With as many elements in all
    blocks as in the tensor, that number is 1. Only dimensions in which a block is smaller than the tensor are
    looked at.
    """
    split = [dim for dim, size in enumerate(shape) if any(chunk.sizes[dim] != size for chunk in chunks)]
    if math.prod(shape) != sum(math.prod(chunk.sizes) for chunk in chunks) or len(split) > _MOST_SPLIT:
        return False
    corners: set[tuple[int, ...]] = set()
    for chunk in chunks:
        for corner in _corners(split, chunk.offsets, chunk.sizes):
            corners ^= {corner}
    return math.prod(shape) == 0 or corners == set(_corners(split, (0,) * len(shape), shape))


def _corners(
    dims: Sequence[int], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Corners of a block in the dimensions `dims`: 2 to the power of their number."""
    return itertools.product(*((offsets[dim], offsets[dim] + sizes[dim]) for dim in dims))


def _require_disjoint(saved: Saved) -> None:
    """Raise ValueError if two blocks share a byte: so reading all takes no longer than reading the files."""
    chunks = (chunk for tensor in saved.values() for chunk in tensor.chunks)
    spans = sorted((chunk.file, chunk.begin, chunk.begin + chunk.length) for chunk in chunks)
    for (file, _, end), (other, begin, _) in itertools.pairwise(spans):
        if file == other and begin < end:
            raise ValueError(f"two blocks share bytes of {file}")


def _checked_numbers(found: Any, count: int | None = None) -> tuple[int, ...]:
    """`found`, if it is a tuple of `count` numbers from 0 to 2^63 - 1. None: of any count that a tensor may
    have dimensions. Raises TypeError."""
    if not isinstance(found, tuple) or len(found) > _MOST_DIMENSIONS or count not in (None, len(found)):
        raise TypeError("a block or a tensor has no shape")
    if any(type(number) is not int or not 0 <= number <= _LARGEST for number in found):
        raise TypeError("a number of a block or a tensor is invalid")
    return found


class _Fixed(type):
    """Metaclass of read-only classes: a method that is set could make an endless iterator."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise pickle.UnpicklingError("it writes into a class")


class _Unknown(ValueError):
    """Error: a name that is none of ours, and may be another version's."""


_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


def _stand_ins() -> dict[tuple[str, str], Callable[..., Any]]:
    """Stand-ins by (module, name) in the pickle: classes without code, and functions that return plain
    values. New ones for each pickle: it may set attributes of functions."""

    class Inert(metaclass=_Fixed):
        """Stand-in for a class of torch's: attributes, and no code."""

    class Properties(metaclass=_Fixed):
        """Stand-in for TensorProperties: a tuple whose first item is the dtype."""

        def __setstate__(self, state: tuple[Any, ...]) -> None:
            self.dtype = state[0]

    def number(_value: int) -> int:
        """Stand-in for an enum, whose member is not used."""
        return 0

    def size(numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Stand-in for torch.Size. tuple() would make a tuple from a list, larger than the list."""
        return _checked_numbers(numbers)

    def member(kind: Any, _name: str) -> int:
        """Stand-in for getattr, by which some versions of Python (3.11.9) write a member of an enum; refused
        for all others."""
        if kind is not number:
            raise pickle.UnpicklingError("it requests an attribute, which no checkpoint needs")
        return 0

    def layout(_name: str) -> None:
        """Stand-in for the layout, which is not used."""

    dcp = "torch.distributed.checkpoint"
    return {
        (f"{dcp}.metadata", "Metadata"): Inert,
        (f"{dcp}.metadata", "TensorStorageMetadata"): Inert,
        (f"{dcp}.metadata", "ChunkStorageMetadata"): Inert,
        (f"{dcp}.metadata", "MetadataIndex"): Inert,
        (f"{dcp}.metadata", "TensorProperties"): Properties,
        (f"{dcp}.metadata", "_MEM_FORMAT_ENCODING"): number,
        (f"{dcp}.filesystem", "_StorageInfo"): Inert,
        ("builtins", "getattr"): member,
        ("torch", "Size"): size,
        ("torch.serialization", "_get_layout"): layout,
    }


class _AllowList(pickle.Unpickler):
    """Unpickler that finds stand-ins and dtypes, and no other name."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._allowed = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        """Stand-in for a name. Raises UnpicklingError for one that runs code (proof), _Unknown for any
        other."""
        if (module, name) in self._allowed:
            return self._allowed[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if runs_code(module, name):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
        raise _Unknown(f"it names {module}.{name}, which no checkpoint needs")
