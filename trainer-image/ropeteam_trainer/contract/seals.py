"""Manifests and journal entries are signed: who can write a checkpoint folder does not choose the weights.

A key is one folder's: it comes of the operator's key and of (namespace, volume, path), not of the job, so a
job that is made anew knows what the one before it saved. Pods get it beside the job's token, as a file:

    checkpoint-keys    hex, one key a line: the first one signs, all of them are accepted

A signed text is the JSON object that it was, with one field more at its end, so who knows of no signatures
reads it too:

    {...,"signature":"<HMAC-SHA256 of `use`, a line break and {...}, hex>"}

Without keys nothing is signed, and nothing is known to be. Limits: whoever reads the file can sign, a job's
own script too; an older text in the place of a newer one is not noticed.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

FILE = "checkpoint-keys"
Keys = tuple[bytes, ...]
_FIELD, _END = b',"signature":"', b'"}'


def folder_key(operator_key: bytes, folder: str) -> bytes:
    """`folder`: namespace, volume and path, as one text."""
    return hmac.new(operator_key, b"checkpoints:" + folder.encode(), hashlib.sha256).digest()


def of_run(keys: Keys, run: str) -> Keys:
    """For the journal of one run: an entry of another one does not hold there."""
    return tuple(hmac.new(key, b"run:" + run.encode(), hashlib.sha256).digest() for key in keys)


def to_text(keys: Keys) -> str:
    return "\n".join(key.hex() for key in keys)


def read(file: str) -> Keys:
    """The keys in `file`; "": there are none. Raises OSError, ValueError."""
    return tuple(bytes.fromhex(line) for line in Path(file).read_text("ascii").split()) if file else ()


def signed(use: str, text: bytes, keys: Keys) -> bytes:
    """`text`: a JSON object with fields. `use`: what it is; signed as something else it would not hold."""
    return text[:-1] + _FIELD + _mac(keys[0], use, text) + _END if keys else text


def holds(use: str, text: bytes, keys: Keys) -> bool:
    """Is this text as somebody with one of these keys has signed it?"""
    head, _, tail = text.rpartition(_FIELD)
    given = tail.removesuffix(_END)
    macs = (_mac(key, use, head + b"}") for key in keys)
    return given + _END == tail and any(hmac.compare_digest(given, mac) for mac in macs)


def _mac(key: bytes, use: str, text: bytes) -> bytes:
    return hmac.new(key, f"{use}\n".encode() + text, hashlib.sha256).hexdigest().encode()
