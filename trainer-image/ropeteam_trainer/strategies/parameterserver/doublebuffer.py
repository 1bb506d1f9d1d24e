"""Tensors and a small record that are updated atomically, in memory that outlives the process.

Everything is stored twice. A change is made in the half that is not valid, and becomes valid with one write
of eight bytes: a process that is killed at any moment leaves one complete state. The other half is updated
afterwards, off the critical path.

    8-byte selector | layout (JSON) | record 0 | record 1 | half 0 | half 1

Limits: survives the process, not the machine; the file must lie in /dev/shm, so that nothing is written to a
disk. One process at a time.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ropeteam_trainer.strategies.parameterserver import flat

RECORD_BYTES = 1 << 18
_PAGE = mmap.PAGESIZE
_NO_SPACE = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
_SELECTOR, _LENGTH = struct.Struct("<Q"), struct.Struct("<Q")

Tensors = dict[str, torch.Tensor]


class DoubleBuffer:
    """Double buffer in the file `path`. None: in private memory of this process."""

    _view: mmap.mmap
    _layout: flat.Layout
    _records: tuple[int, int]
    _begins: tuple[int, int]
    _halves: tuple[Tensors, Tensors]
    _bytes: tuple[torch.Tensor, torch.Tensor]
    _valid: int
    _is_behind: bool

    def __init__(self, path: Path | None) -> None:
        """Create it empty; then call rebuild(), or use found()."""
        self._path = path
        self._readers, self._no_readers = [0, 0], threading.Condition()

    @classmethod
    def found(cls, path: Path | None) -> DoubleBuffer | None:
        """Buffer that an earlier process left in `path`. None: there is none."""
        if path is None or not path.exists():
            return None
        halves = cls(path)
        with path.open("r+b") as file:
            view = mmap.mmap(file.fileno(), 0)
        (size,) = _LENGTH.unpack_from(view, _SELECTOR.size)
        begin = _SELECTOR.size + _LENGTH.size
        halves._attach(view, flat.Layout.from_plain(json.loads(view[begin : begin + size])))
        halves.catch_up()
        return halves

    def rebuild(self, tensors: Mapping[str, torch.Tensor], record: bytes) -> None:
        """Replace the whole content and layout, atomically."""
        layout = flat.layout(tensors)
        head = json.dumps(layout.to_plain()).encode()
        size = _begin_of_halves(len(head)) + 2 * _padded(layout.size)
        new = self._path.with_suffix(".new") if self._path else None
        if new is None:
            view = mmap.mmap(-1, size)
        else:
            new.unlink(missing_ok=True)
            view = _allocated(new, size)
        _LENGTH.pack_into(view, _SELECTOR.size, len(head))
        view[_SELECTOR.size + _LENGTH.size : _SELECTOR.size + _LENGTH.size + len(head)] = head
        self._attach(view, layout)
        for half in self._halves:
            for name, tensor in tensors.items():
                half[name].copy_(tensor)
        self._write_record(0, record)
        if new is not None and self._path is not None:
            new.rename(self._path)

    @property
    def current(self) -> Tensors:
        """The valid half. Read-only."""
        return self._halves[self._valid]

    @property
    def record(self) -> bytes:
        begin = self._records[self._valid]
        (size,) = _LENGTH.unpack_from(self._view, begin)
        return self._view[begin + _LENGTH.size : begin + _LENGTH.size + size]

    def draft(self) -> Tensors:
        """The other half, with the same values, to change and commit(). Waits for its readers."""
        with self._no_readers:
            self._no_readers.wait_for(lambda: not self._readers[1 - self._valid])
        self.catch_up()
        self._is_behind = True  # until commit(), whatever becomes of the draft
        return self._halves[1 - self._valid]

    def commit(self, record: bytes) -> None:
        """Make the draft valid."""
        other = 1 - self._valid
        self._write_record(other, record)
        _SELECTOR.pack_into(self._view, 0, other)
        self._valid = other

    def catch_up(self) -> None:
        """Make the halves equal, if they are not. Called by the thread that drafts and commits; readers may
        read the valid half."""
        if not self._is_behind:
            return
        with self._no_readers:
            self._no_readers.wait_for(lambda: not self._readers[1 - self._valid])
        source, target = self._bytes[self._valid], self._bytes[1 - self._valid]
        target.copy_(source)
        self._is_behind = False

    @contextmanager
    def reading(self, names: int) -> Iterator[memoryview]:
        """Bytes of the first `names` tensors, which stay unchanged inside the context."""
        with self._no_readers:
            half = self._valid
            self._readers[half] += 1
        try:
            begin = self._begins[half]
            yield memoryview(self._view)[begin : begin + self._layout.end_of(names)]
        finally:
            with self._no_readers:
                self._readers[half] -= 1
                self._no_readers.notify_all()

    def _attach(self, view: mmap.mmap, layout: flat.Layout) -> None:
        head = len(json.dumps(layout.to_plain()).encode())
        records = _padded(_SELECTOR.size + _LENGTH.size + head)
        begin, half = _begin_of_halves(head), _padded(layout.size)
        self._view, self._layout = view, layout
        self._records = (records, records + RECORD_BYTES)
        self._begins = (begin, begin + half)
        first, second = self._begins
        self._halves = layout.tensors(view, first), layout.tensors(view, second)
        count = max(layout.size, 1)
        self._bytes = (
            torch.frombuffer(view, dtype=torch.uint8, offset=first, count=count),
            torch.frombuffer(view, dtype=torch.uint8, offset=second, count=count),
        )
        (self._valid,) = _SELECTOR.unpack_from(view, 0)
        self._is_behind = True

    def _write_record(self, half: int, record: bytes) -> None:
        if len(record) > RECORD_BYTES - _LENGTH.size:
            raise ValueError(f"a record of {len(record)} bytes does not fit into {RECORD_BYTES}")
        begin = self._records[half]
        _LENGTH.pack_into(self._view, begin, len(record))
        self._view[begin + _LENGTH.size : begin + _LENGTH.size + len(record)] = record


def remember(path: Path, content: bytes) -> None:
    """Write a small file atomically."""
    new = path.with_suffix(".new")
    try:
        new.write_bytes(content)
        new.rename(path)
    except OSError as error:
        raise _write_error(len(content), path.parent, error) from None


def _allocated(path: Path, size: int) -> mmap.mmap:
    """A new file with all its memory allocated: too little memory would be a SIGBUS later."""
    try:
        with path.open("x+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise _write_error(size, path.parent, error) from None


def _write_error(size: int, folder: Path, error: OSError) -> Exception:
    """Error for a failed write; not an OSError, which would be taken for a lost connection."""
    what = f"{size} bytes for the state of a parameter server"
    if error.errno not in _NO_SPACE:
        return RuntimeError(f"{what} cannot be kept in {folder}: {error.strerror}")
    return MemoryError(
        f"{what} do not fit into {folder}: raise spec.sharedMemory, or use more servers ({error.strerror})"
    )


def _begin_of_halves(head: int) -> int:
    return _padded(_SELECTOR.size + _LENGTH.size + head) + 2 * RECORD_BYTES


def _padded(size: int) -> int:
    return max(-(-size // _PAGE), 1) * _PAGE
