"""Signatures of manifests and journal entries: write access to a checkpoint folder does not choose the
weights.

There is one key per folder: it is derived from the operator's key and from (namespace, volume, path), not
from the job, so a job that is created again accepts the checkpoints of the one before it. Pods receive it
beside the job's token, as a file:

    checkpoint-keys    hex, one key a line: the first one signs, all of them are accepted

A Secret that the job names (`spec.checkpoint.signing`) has an entry of the same name and form, and its keys
are valid in every folder. They come before the folder's own, which are accepted all the same.

A signed text is the JSON object with one field more at its end, so a reader that knows no signatures reads it
too:

    {...,"signature":"<HMAC-SHA256 of `use`, a line break and {...}, hex>"}

Without keys nothing is signed, and no signature can be verified. Limits: every process that can read the file
can sign, a job's own script too; an older text in the place of a newer one is not noticed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

FILE = "checkpoint-keys"
Keys = tuple[bytes, ...]
_FIELD, _END = b',"signature":"', b'"}'
_EVERY_FOLDER = ""
"""Folder that a key of the job's Secret is derived for. Derived, because a Secret may be used elsewhere too:
its bytes themselves are no key here."""
_NAMED = re.compile(rb"(?:[0-9a-fA-F]{2}){32,}")
_SECRET = "the Secret of spec.checkpoint.signing.secretName"
_FORM = "one key a line, each of 64 hexadecimal digits or more (openssl rand -hex 32)"


def folder_key(operator_key: bytes, folder: str) -> bytes:
    """Key of a checkpoint folder. `folder`: namespace, volume and path, as one text."""
    return hmac.new(operator_key, b"checkpoints:" + folder.encode(), hashlib.sha256).digest()


def run_keys(keys: Keys, run: str) -> Keys:
    """Keys for the journal of one run: entries of another run are not valid there."""
    return tuple(hmac.new(key, b"run:" + run.encode(), hashlib.sha256).digest() for key in keys)


def keys_text(keys: Keys) -> str:
    """Content of the file FILE with these keys: inverse of read_keys()."""
    return "\n".join(key.hex() for key in keys)


def read_keys(file: str) -> Keys:
    """Keys in the file at this path; none for "". Raises OSError, ValueError."""
    return tuple(bytes.fromhex(line) for line in Path(file).read_text("ascii").split()) if file else ()


def read_secret_keys(file: str) -> Keys:
    """Keys derived from the mounted entry of the Secret that the job names; none for "": it names none.
    Raises OSError, and ValueError whose text names the fault of the Secret, but not its content."""
    if not file:
        return ()
    try:
        lines = Path(file).read_bytes().splitlines()
    except FileNotFoundError:
        raise ValueError(f"{_SECRET} has no entry {FILE}; it needs one with {_FORM}") from None
    given = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not given:
        raise ValueError(f"{_SECRET}: its entry {FILE} is empty; it needs {_FORM}")
    if wrong := next((number for number, line in given if not _NAMED.fullmatch(line)), 0):
        raise ValueError(f"{_SECRET}: line {wrong} of its entry {FILE} is not a key; it needs {_FORM}")
    return tuple(folder_key(bytes.fromhex(line.decode()), _EVERY_FOLDER) for _, line in given)


def signed(use: str, text: bytes, keys: Keys) -> bytes:
    """`text` with its signature by the first key; unchanged if there are no keys. `text`: a JSON object with
    at least one field. `use`: the kind of the text, such as a file's name; the signature is valid for this
    kind only."""
    return text[:-1] + _FIELD + _mac(keys[0], use, text) + _END if keys else text


def is_valid(use: str, text: bytes, keys: Keys) -> bool:
    """Whether the text has a signature for this kind by one of these keys. False without keys."""
    head, _, tail = text.rpartition(_FIELD)
    given = tail.removesuffix(_END)
    macs = (_mac(key, use, head + b"}") for key in keys)
    return given + _END == tail and any(hmac.compare_digest(given, mac) for mac in macs)


def _mac(key: bytes, use: str, text: bytes) -> bytes:
    return hmac.new(key, f"{use}\n".encode() + text, hashlib.sha256).hexdigest().encode()
