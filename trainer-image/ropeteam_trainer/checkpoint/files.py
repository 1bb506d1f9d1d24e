"""Files of a checkpoint: write-once, hashed while they are written, durable when they are done."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch

from ropeteam_trainer.contract.world import ShardFile
from ropeteam_trainer.system.folders import Folder


class HashedStream:
    """A file that is being written, with hash and size so far. Has the methods that torch.save and DCP call.
    `error` keeps the OSError, for which torch.save raises a vague one."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._sha256, self._size = stream, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write all of `data`, a bytes-like object of any item size; returns its bytes. Raises OSError."""
        view = rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            self.error = error
            raise
        self._sha256.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        """Do nothing: the function that opened the file closes it."""

    def described_as(self, name: str) -> ShardFile:
        """Entry of the manifest for what was written so far."""
        return ShardFile(name, self._size, self._sha256.hexdigest())


@contextmanager
def new_file(folder: Folder, name: str) -> Iterator[HashedStream]:
    """Create a file to write in the `with`. The content is synced at the end of it; the name is durable once
    the caller has synced the folder. An error in the `with` removes the file; an OSError of a write is raised
    in place of what torch makes of it."""
    with folder.open_new(name, buffering=0) as raw:
        stream = HashedStream(raw)
        try:
            yield stream
            os.fsync(raw.fileno())
        except Exception as error:
            folder.remove(name)  # free the space of a full disk
            raise stream.error or error from None


def write_tree(folder: Folder, name: str, tree: Any) -> ShardFile:
    """Write plain values and tensors, by torch.save, and sync the content. Raises OSError, and leaves no file
    behind then."""
    with new_file(folder, name) as stream:
        torch.save(tree, stream)  # type: ignore[arg-type]  # all it uses is write and flush
    return stream.described_as(name)
