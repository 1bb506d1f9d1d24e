"""The agent's end of a heartbeat page: make the file, map it, look at it."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, read_beat

_LOOKS = 3


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        """Raises OSError."""
        path.write_bytes(bytes(PAGE_SIZE))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), PAGE_SIZE)

    def read(self) -> Beat | None:
        """None: nothing written yet, or no look gave a whole beat. Then nothing new is known of the rank."""
        with memoryview(self._map) as view:
            for _ in range(_LOOKS):
                if beat := read_beat(view):
                    return beat
        return None

    def close(self) -> None:
        self._map.close()
        with contextlib.suppress(OSError):  # a disk that takes no changes any more keeps a file, nothing else
            self.path.unlink()
