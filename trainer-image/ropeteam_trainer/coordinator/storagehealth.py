"""Health of the coordinator's state folder. A thread of its own touches it: a disk that hangs blocks no loop.

Limits: a disk that is merely slow counts as healthy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

EVERY_SECONDS = 5.0
PATIENCE_SECONDS = 30.0


class StorageHealth:
    """Liveness of `folder`, where boots are counted. It counts as healthy until PATIENCE_SECONDS after its
    construction, and since then for as long after each touch. `clock`: monotonic seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = folder / "alive", clock
        self._touched_at, self._error = clock(), ""

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._run, name="storage-health", daemon=True).start()

    def problem(self) -> str:
        """Why the folder counts as unhealthy, in a sentence; "": it does not. Never blocks."""
        silent = self._clock() - self._touched_at
        if silent <= PATIENCE_SECONDS:
            return ""
        return (
            f"the state folder {self._file.parent} has not been writable for {silent:.0f} s"
            f"{self._error or ' (no error: a write hangs)'}"
        )

    def _run(self) -> None:
        while True:
            self.touch()
            time.sleep(EVERY_SECONDS)

    def touch(self) -> None:
        """Touch the file once, and record when that succeeded, or its error. Blocks as long as the disk."""
        try:
            self._file.touch()
        except OSError as error:
            self._error = f": {error}"
        else:
            self._touched_at, self._error = self._clock(), ""
