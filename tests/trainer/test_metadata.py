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

from ropeteam_trainer.checkpoint import metadata

_METADATA = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def test_nothing_of_torch_is_looked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask torch for `_dynamo` is to import 900 modules."""
    asked: list[str] = []
    monkeypatch.setattr(torch, "__getattr__", asked.append)
    with pytest.raises(ValueError, match="it names torch"):
        metadata.parse(b"\x80\x02ctorch\nan_attribute\n.")
    assert asked == []


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
    with pytest.raises(ValueError, match=r"cannot be read: (a|object)"):
        metadata.parse(saved_as(**fields))
