"""Grants in parts. A grant names every file of a checkpoint: too many for one frame from about 4,000 ranks
on. So its files are sent before it, in parts, once per connection; the orders then carry only their number.

Only for agents that support LEASES. Limit: a part has FILES files, whose names may have 400 bytes on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.messages import Grant, Orders
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile

FILES = 1024
_MARK = b"F"
"""First byte of a part. Other messages are JSON objects, answers or leases."""


@dataclass(frozen=True)
class GrantFiles:
    """Some files of a grant, in order."""

    ref: CheckpointRef
    files: tuple[ShardFile, ...]


def encoded_parts(grant: Grant) -> Iterator[bytes]:
    """Bodies of the messages that carry the files of a grant, in order; for parse_part()."""
    for first in range(0, len(grant.files), FILES):
        yield _MARK + codec.encode(GrantFiles(grant.ref, grant.files[first : first + FILES]))


def without_files(orders: Orders) -> Orders:
    """Orders to send after the parts of their grant: with the number of its files in the place of the files.
    Orders without a grant are returned as they are."""
    grant = orders.grant
    if grant is None:
        return orders
    return replace(orders, grant=replace(grant, files=(), files_before=len(grant.files)))


def parse_part(body: bytes) -> GrantFiles | None:
    """Part of a grant. None: `body` is another message. Raises DecodeError."""
    return codec.decode(GrantFiles, body[len(_MARK) :]) if body.startswith(_MARK) else None


def with_part(known: GrantFiles | None, new: GrantFiles) -> GrantFiles:
    """All received files of the newest grant: `known`, those before, and `new`. A part of another grant
    replaces them."""
    if known is None or known.ref != new.ref:
        return new
    return replace(known, files=known.files + new.files)


def with_files(orders: Orders, received: GrantFiles | None) -> Orders:
    """Inverse of without_files(). `received`: all parts before these orders. Raises DecodeError if files are
    missing."""
    grant = orders.grant
    if grant is None or not grant.files_before:
        return orders
    files = received.files if received and received.ref == grant.ref else ()
    if len(files) != grant.files_before:
        raise codec.DecodeError(
            f"the grant of step {grant.ref.step} came with {len(files)} of its {grant.files_before} files"
        )
    return replace(orders, grant=replace(grant, files=files, files_before=0))
