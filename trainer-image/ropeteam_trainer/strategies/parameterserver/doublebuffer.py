"""Tensors and a small record that are updated atomically, in memory that outlives the process.

Everything is stored twice. A change is made in the half that is not valid, and becomes valid with one write
of eight bytes: a process that is killed at any moment leaves one complete state. The other half is updated
afterwards, off the critical path.

    8-byte selector | layout (JSON) | record 0 | record 1 | half 0 | half 1

Limits: survives the process, not the machine; the file must lie in /dev/shm, so that nothing is written to a
disk. One process at a time. Order of calls: open_existing() or rebuild(), then begin_draft() and commit() for
each change. One thread at a time changes; any thread may read.
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
"""Size of each record in the file, with its length; a longer record is refused."""
_PAGE = mmap.PAGESIZE
_NO_SPACE = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)
_SELECTOR, _LENGTH = struct.Struct("<Q"), struct.Struct("<Q")

Tensors = dict[str, torch.Tensor]


class DoubleBuffer:
    """Double buffer in the file `path`. None: in private memory of this process.

    The attributes below are set by rebuild() and open_existing().
    """

    _memory: mmap.mmap
    _layout: flat.Layout
    _record_offsets: tuple[int, int]
    _half_offsets: tuple[int, int]
    _halves: tuple[Tensors, Tensors]
    _bytes: tuple[torch.Tensor, torch.Tensor]
    _valid: int
    """Index of the valid half and record: 0 or 1."""
    _halves_differ: bool
    """Whether the half that is not valid may have other values than the valid one."""

    def __init__(self, path: Path | None) -> None:
        """Buffer without content: call rebuild() next. open_existing() returns one with content."""
        self._path = path
        self._readers, self._readers_changed = [0, 0], threading.Condition()

    @classmethod
    def open_existing(cls, path: Path | None) -> DoubleBuffer | None:
        """Buffer with the content that an earlier process left in `path`. None: no file, or no path."""
        if path is None or not path.exists():
            return None
        halves = cls(path)
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        (size,) = _LENGTH.unpack_from(memory, _SELECTOR.size)
        begin = _SELECTOR.size + _LENGTH.size
        halves._map(memory, flat.Layout.from_plain(json.loads(memory[begin : begin + size])))
        halves.synchronize_halves()
        return halves

    def rebuild(self, tensors: Mapping[str, torch.Tensor], record: bytes) -> None:
        """Replace the whole content and layout, atomically. Afterwards `current` has other tensors. Raises
        MemoryError if the file does not fit, ValueError for a record that is too long; then the file stays as
        it was."""
        layout = flat.layout_of(tensors)  # both halves begin with these values
        head = json.dumps(layout.to_plain()).encode()
        size = _halves_offset(len(head)) + 2 * _padded(layout.size)
        new = self._path.with_suffix(".new") if self._path else None
        if new is None:
            memory = mmap.mmap(-1, size)
        else:
            new.unlink(missing_ok=True)
            memory = _allocated(new, size)
        _LENGTH.pack_into(memory, _SELECTOR.size, len(head))
        memory[_SELECTOR.size + _LENGTH.size : _SELECTOR.size + _LENGTH.size + len(head)] = head
        self._map(memory, layout)
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
        """The valid record."""
        begin = self._record_offsets[self._valid]
        (size,) = _LENGTH.unpack_from(self._memory, begin)
        return self._memory[begin + _LENGTH.size : begin + _LENGTH.size + size]

    def begin_draft(self) -> Tensors:
        """The other half, with the same values as `current`, to change in place and then commit(). Waits for
        its readers. An earlier draft that was not committed is discarded."""
        with self._readers_changed:
            self._readers_changed.wait_for(lambda: not self._readers[1 - self._valid])
        self.synchronize_halves()
        self._halves_differ = True  # until commit(), whatever becomes of the draft
        return self._halves[1 - self._valid]

    def commit(self, record: bytes) -> None:
        """Make the draft valid, with this record. Raises ValueError for a record that is too long."""
        other = 1 - self._valid
        self._write_record(other, record)
        _SELECTOR.pack_into(self._memory, 0, other)
        self._valid = other

    def synchronize_halves(self) -> None:
        """Copy the valid half to the other one, if they may differ. Waits for readers of the other half. Not
        while another thread changes the draft: that would discard its changes."""
        if not self._halves_differ:
            return
        with self._readers_changed:
            self._readers_changed.wait_for(lambda: not self._readers[1 - self._valid])
        source, target = self._bytes[self._valid], self._bytes[1 - self._valid]
        target.copy_(source)
        self._halves_differ = False

    @contextmanager
    def reading(self, count: int) -> Iterator[memoryview]:
        """Context with the bytes of the first `count` tensors of the valid half. They stay unchanged in it: a
        second change waits for its end."""
        with self._readers_changed:
            half = self._valid
            self._readers[half] += 1
        try:
            begin = self._half_offsets[half]
            yield memoryview(self._memory)[begin : begin + self._layout.end_of_first(count)]
        finally:
            with self._readers_changed:
                self._readers[half] -= 1
                self._readers_changed.notify_all()

    def _map(self, memory: mmap.mmap, layout: flat.Layout) -> None:
        """Use this memory: compute the offsets of records and halves, and create the tensors in it."""
        head = len(json.dumps(layout.to_plain()).encode())
        records = _padded(_SELECTOR.size + _LENGTH.size + head)
        begin, half = _halves_offset(head), _padded(layout.size)
        self._memory, self._layout = memory, layout
        self._record_offsets = (records, records + RECORD_BYTES)
        self._half_offsets = (begin, begin + half)
        first, second = self._half_offsets
        self._halves = layout.tensors(memory, first), layout.tensors(memory, second)
        count = max(layout.size, 1)
        self._bytes = (
            torch.frombuffer(memory, dtype=torch.uint8, offset=first, count=count),
            torch.frombuffer(memory, dtype=torch.uint8, offset=second, count=count),
        )
        (self._valid,) = _SELECTOR.unpack_from(memory, 0)
        self._halves_differ = True

    def _write_record(self, half: int, record: bytes) -> None:
        """Write the record of a half. Raises ValueError for one that is too long."""
        if len(record) > RECORD_BYTES - _LENGTH.size:
            raise ValueError(
                f"a record of {len(record)} bytes does not fit into the {RECORD_BYTES} that a parameter "
                "server has for its optimizer's scalar state and the ledger; use more servers"
            )
        begin = self._record_offsets[half]
        _LENGTH.pack_into(self._memory, begin, len(record))
        self._memory[begin + _LENGTH.size : begin + _LENGTH.size + len(record)] = record


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file atomically. Raises RuntimeError, MemoryError if it does not fit."""
    new = path.with_suffix(".new")
    try:
        new.write_bytes(content)
        new.rename(path)
    except OSError as error:
        raise _write_error(len(content), path.parent, error) from None


def _allocated(path: Path, size: int) -> mmap.mmap:
    """New file, with all its memory allocated: too little memory would be a SIGBUS later. Raises
    RuntimeError, MemoryError if it does not fit."""
    try:
        with path.open("x+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise _write_error(size, path.parent, error) from None


def _write_error(size: int, folder: Path, error: OSError) -> Exception:
    """Error for a failed write; not an OSError, which the server would take for a lost connection."""
    if error.errno not in _NO_SPACE:
        return RuntimeError(
            f"{size} bytes of a parameter server's state cannot be kept in {folder}: {error.strerror}"
        )
    return MemoryError(
        f"{size} bytes of a parameter server's state do not fit into {folder}: raise spec.sharedMemory, or "
        f"use more servers ({error.strerror})"
    )


def _halves_offset(head: int) -> int:
    """Offset of the first half in the file. head: bytes of the layout in JSON."""
    return _padded(_SELECTOR.size + _LENGTH.size + head) + 2 * RECORD_BYTES


def _padded(size: int) -> int:
    """`size` rounded up to whole pages, at least one."""
    return max(-(-size // _PAGE), 1) * _PAGE
