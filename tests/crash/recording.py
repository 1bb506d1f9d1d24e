"""Trace of changes to a folder: each change of a name, each change of content, each fsync, in order.

Calls of the system that can change names or make them durable are wrapped. Before and after each one the
whole folder is looked at, and what differs is what was done. So nothing can be missed: a change of a name
that no wrapped call made shows at the next look, and is an error. Contents change in calls that are not
wrapped; they are seen at the next look. One thread at a time.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

Entry = tuple[int, str]
"""A name in a folder. Folders and files are numbered by the recording; 0 is the folder that is recorded."""
_NAMING = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "open", "link", "symlink")
_SYNCING = ("fsync", "fdatasync")


@dataclass(frozen=True)
class Named:
    """Names changed, in one call: to what they point now (None: they are gone)."""

    changes: tuple[tuple[Entry, int | None], ...]
    made: int | None = None
    is_folder: bool = False


@dataclass(frozen=True)
class Wrote:
    what: int
    content: bytes


@dataclass(frozen=True)
class Synced:
    what: int
    caller: str
    """Our function that requested it."""


@dataclass(frozen=True)
class Noted:
    """Something was promised to somebody else."""

    note: Any


Operation = Named | Wrote | Synced | Noted


class Observation(NamedTuple):
    names: dict[tuple[int, str], int]
    """(inode of the folder, name) -> inode."""
    contents: dict[int, bytes]
    """Of files."""


class Recording:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.operations: list[Operation] = []
        self._seen = Observation({}, {})
        self._numbers = {root.stat().st_ino: 0}
        self._made = 0
        self._looking = False
        self.look(most=sys.maxsize)
        self.before = len(self.operations)
        """So many operations describe what was there, durable, before the recording began."""

    def note(self, note: Any) -> None:
        self.look(0)
        self.operations.append(Noted(note))

    def look(self, most: int = 1) -> None:
        """Note what has changed: at most so many changes of names."""
        old, self._seen = self._seen, _look(self._root)
        new = self._seen
        gone = {entry: ino for entry, ino in old.names.items() if entry not in new.names}
        come = {entry: ino for entry, ino in new.names.items() if old.names.get(entry) != ino}
        assert len(come) <= most, f"names changed in a call that is not recorded: {come}"
        for entry, ino in come.items():
            moved = [previous for previous, inode in gone.items() if inode == ino]
            for previous in moved:
                del gone[previous]
            self._name(entry, ino, moved)
        assert len(gone) + len(come) <= most, f"names went in a call that is not recorded: {gone}"
        for folder, name in gone:
            self.operations.append(Named((((self._numbers[folder], name), None),)))
        for ino, content in new.contents.items():
            if content != old.contents.get(ino, b"") or (ino in come.values() and content and not moved):
                self.operations.append(Wrote(self._numbers[ino], content))

    def _name(self, entry: tuple[int, str], ino: int, moved: list[tuple[int, str]]) -> None:
        if not moved:  # an inode may be used again
            self._made += 1
            self._numbers[ino] = self._made
        places = ((self._numbers[folder], name) for folder, name in moved)
        changes = (
            *((place, None) for place in places),
            ((self._numbers[entry[0]], entry[1]), self._numbers[ino]),
        )
        made = None if moved else self._numbers[ino]
        self.operations.append(Named(changes, made, ino not in self._seen.contents))

    def synced(self, ino: int) -> None:
        if ino in self._numbers:
            self.operations.append(Synced(self._numbers[ino], _caller()))

    def wrap(self, real: Callable[..., Any], syncs: bool) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            if self._looking:
                return real(*args, **keywords)
            self._looking = True
            try:
                self.look(0)
                try:
                    return real(*args, **keywords)
                finally:
                    self.look(0 if syncs else 1)
                    if syncs:
                        file = args[0]
                        self.synced(os.fstat(file if isinstance(file, int) else file.fileno()).st_ino)
            finally:
                self._looking = False

        return call


def _look(root: Path) -> Observation:
    observation = Observation({}, {})
    folders = [(str(root), root.stat().st_ino)]
    for path, ino in folders:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                observation.names[ino, entry.name] = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, entry.inode()))
                else:
                    with io.FileIO(entry.path) as file:
                        observation.contents[entry.inode()] = file.readall()
    return observation


def _caller() -> str:
    """Our function that requested it, and the caller of that one."""
    frame, found = sys._getframe(2), []
    while frame.f_back:
        frame, code = frame.f_back, frame.f_code
        if "ropeteam_trainer" in code.co_filename:
            found.append(f"{Path(code.co_filename).stem}.{code.co_name}")
    return " for ".join(found[:2])


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    recording = Recording(root)
    with ExitStack() as patches:
        for name in (*_NAMING, *_SYNCING):
            wrapped = recording.wrap(getattr(os, name), name in _SYNCING)
            patches.enter_context(patch.object(os, name, wrapped))
        opened = recording.wrap(builtins.open, False)
        patches.enter_context(patch.object(builtins, "open", opened))
        patches.enter_context(patch.object(io, "open", opened))
        yield recording
    recording.look(0)
