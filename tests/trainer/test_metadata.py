"""`.metadata` is a pickle of somebody: what it names is not looked for, and what it writes ends with it."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
import torch

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
