"""`.metadata` is a pickle of somebody: what it names is not looked for, and what it writes ends with it."""

from __future__ import annotations

import pickle
import struct
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ropeteam_trainer.checkpoint.format import metadata
from ropeteam_trainer.checkpoint.format.contents import MalformedCheckpoint

_METADATA = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def test_nothing_of_torch_is_looked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Access to `torch._dynamo` imports 900 modules."""
    requested: list[str] = []
    monkeypatch.setattr(torch, "__getattr__", requested.append)
    with pytest.raises(ValueError, match="it names torch"):
        metadata.parse(b"\x80\x02ctorch\nan_attribute\n.")
    assert requested == []


def test_what_a_pickle_writes_into_a_class_is_gone_with_it() -> None:
    fields = b"}" + text("storage_data") + b"}s" + text("state_dict_metadata") + b"}s"
    with suppress(ValueError):
        metadata.parse(b"\x80\x02" + _METADATA + b"N" + fields + b"\x86b.")
    with pytest.raises(ValueError, match="no attribute"):
        metadata.parse(b"\x80\x02" + _METADATA + b")\x81.")


def saved_as(**fields: Any) -> bytes:
    """One tensor, as DCP writes it but for these fields of where it is."""
    zero, size = torch.Size((0,)), torch.Size((3,))
    chunk = ChunkStorageMetadata(zero, fields.get("sizes", size))
    about = TensorStorageMetadata(TensorProperties(torch.float32), fields.get("shape", size), [chunk])
    where: dict[str, Any] = {"relative_path": "__0_0.distcp", "offset": 0, "length": 9} | fields
    info = _StorageInfo(where["relative_path"], where["offset"], where["length"])
    return pickle.dumps(Metadata({"a": about}, None, {MetadataIndex("a", zero): info}))


@pytest.mark.parametrize(
    "fields",
    [
        {"relative_path": {}},
        {"relative_path": 5},
        {"offset": "0"},
        {"length": 9.0},
        {"shape": 3},
        {"sizes": ("x",)},
    ],
)
def test_where_a_tensor_is_is_a_file_and_numbers(fields: dict[str, Any]) -> None:
    assert metadata.parse(saved_as())["a"].shape == (3,)
    with pytest.raises(ValueError, match=r"cannot be read: (a|the index|object)"):
        metadata.parse(saved_as(**fields))


def saved_in(shape: tuple[int, ...], *blocks: tuple[tuple[int, ...], tuple[int, ...]]) -> bytes:
    """One tensor, of blocks at these offsets and of these sizes."""
    chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, sizes in blocks]
    about = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), chunks)
    places = {
        MetadataIndex("a", chunk.offsets): _StorageInfo("__0_0.distcp", 9 * n, 9)
        for n, chunk in enumerate(chunks)
    }
    return pickle.dumps(Metadata({"a": about}, None, places))


GRID = tuple(((2 * row, column), (2, 1)) for row in range(3) for column in range(2))
BRICKS = ((0, 0), (1, 2)), ((0, 2), (2, 1)), ((1, 0), (2, 1)), ((2, 1), (1, 2)), ((1, 1), (1, 1))


def test_blocks_that_are_the_whole_are_taken() -> None:
    for shape, blocks in (
        ((), (((), ()),)),
        ((0, 3), (((0, 0), (0, 3)),)),
        ((0, 3), ()),
        ((5,), (((0,), (3,)), ((3,), (2,)))),
        ((6, 2), GRID),
        ((3, 3), BRICKS),  # none of their edges goes through
    ):
        assert len(metadata.parse(saved_in(shape, *blocks))["a"].chunks) == len(blocks)


def test_blocks_that_are_not_the_whole_are_none() -> None:
    for shape, blocks in (
        ((), ()),
        ((5,), (((0,), (3,)),)),
        ((5,), (((0,), (3,)), ((2,), (2,)))),
        ((6, 2), GRID[:-1]),
        ((6, 2), (*GRID[:-1], ((0, 0), (2, 1)))),
        ((3, 3), (*BRICKS[:-1], ((2, 2), (1, 1)))),
    ):
        with pytest.raises(MalformedCheckpoint, match="the blocks of a do not cover it exactly once"):
            metadata.parse(saved_in(shape, *blocks))


def test_validated_metadata_is_not_validated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation takes longer than to read it, and a restart waits for it."""
    content = pickle.dumps(Metadata({}, None, {}))
    searched: list[bytes] = []
    monkeypatch.setattr(metadata, "check_sizes", searched.append)
    assert metadata.parse(content, validated=True) == {}
    assert searched == []
    assert metadata.parse(content) == {}
    assert searched == [content]
