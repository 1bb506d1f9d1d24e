"""Write this rank's files of a checkpoint, in a thread, while training goes on.

Order: copy (training thread) -> serialise, hash, fsync (writer thread) -> `written(step, files)`. Never two
at once: a save that comes while the last one is still being written waits, and the wait is counted. Promise:
files are write-once; a full or read-only disk costs a message and this checkpoint, never the training.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ropeteam_trainer.checkpoint.manifest import MANIFEST, folder
from ropeteam_trainer.checkpoint.snapshot import Snapshot
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, ShardFile

Written = Callable[[int, tuple[ShardFile, ...]], None]


class ShardWriter:
    def __init__(self, directory: Path, epoch: Epoch, written: Written) -> None:
        """`written` is called in the writer thread, only when all files are synced."""
        self._directory, self._epoch, self._written = directory, epoch, written
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self.stalls = 0
        self.stalled_seconds = 0.0

    def start(self, step: int, contents: dict[str, Any]) -> None:
        """Copy `contents` (file name -> tree) and begin to write it."""
        if self._thread is not None and self._thread.is_alive():
            self.stalls += 1
            began = time.monotonic()
            self._thread.join()
            self.stalled_seconds += time.monotonic() - began
        copy = self._snapshot.copy(contents)
        self._thread = threading.Thread(
            target=self._write, args=(step, copy), daemon=True, name="ropeteam-save"
        )
        self._thread.start()

    def wait(self) -> None:
        """Until the last save is on disk, or has failed."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, step: int, contents: dict[str, Any]) -> None:
        place = self._directory / folder(CheckpointRef(step, self._epoch))
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / MANIFEST).unlink(missing_ok=True)  # of another job that used this folder before
            files = tuple(_write_file(place / name, tree) for name, tree in contents.items())
            for path in (place, place.parent, self._directory):
                sync_folder(path)
        except Exception as error:
            print(
                f"ropeteam: the checkpoint of step {step} was not written: {error}. Training goes on; "
                "the next one is tried at its time.",
                file=sys.stderr,
                flush=True,
            )
            return
        self._written(step, files)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_file(path: Path, tree: Any) -> ShardFile:
    """Raises OSError, and leaves nothing behind then."""
    path.unlink(missing_ok=True)
    with path.open("xb", buffering=0) as stream:
        target = _Hashing(stream)
        try:
            torch.save(tree, target)  # type: ignore[arg-type]  # all it uses is write and flush
            os.fsync(stream.fileno())
        except Exception as error:
            path.unlink()  # a full disk needs the room
            raise target.error or error from None
    return ShardFile(path.name, target.size, target.sha256.hexdigest())


class _Hashing:
    """Hashes what is written to a file. Keeps the OSError, which torch.save turns into something vague."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.sha256, self.size = stream, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        pass
