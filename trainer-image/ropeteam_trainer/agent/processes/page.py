"""The agent's end of a heartbeat page: create the file, map it, read it."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, read_beat

_READS = 3
"""Attempts of one read: a record that is being written is torn."""


class Page:
    """One rank's page, for one world: a file of zeros until the rank writes its first heartbeat."""

    def __init__(self, path: Path) -> None:
        """Create the file and map it. Raises OSError."""
        self.path = path
        path.write_bytes(bytes(PAGE_SIZE))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), PAGE_SIZE)

    def read(self) -> Beat | None:
        """The newest heartbeat. None: none was written yet, or all reads were torn; nothing new is known of
        the rank."""
        with memoryview(self._map) as view:
            for _ in range(_READS):
                if heartbeat := read_beat(view):
                    return heartbeat
        return None

    def close(self) -> None:
        """Unmap and remove the file."""
        self._map.close()
        with contextlib.suppress(OSError):  # on a disk that became read-only the file stays, no more
            self.path.unlink()
