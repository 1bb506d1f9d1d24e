"""Payloads that are not the raw tensors of flat.py: nested values with tensors, serialized by
torch.save()."""

from __future__ import annotations

import io
from typing import Any

import torch


def packed(value: Any) -> bytes:
    """Tensors and plain values, serialized by torch.save()."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def unpacked(payload: bytearray | bytes) -> Any:
    """Inverse of packed(). Loads tensors and plain values only, no code. Raises any exception of torch.load()
    for other bytes."""
    return torch.load(io.BytesIO(payload), weights_only=True)
