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
    """Liveness of `folder`, where boots are counted. No file is touched before `start`."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = folder / "alive", clock
        self._touched_at, self._error = clock(), ""

    def start(self) -> None:
        threading.Thread(target=self._run, name="storage-health", daemon=True).start()

    def problem(self) -> str:
        """The problem, in a sentence; "": none."""
        silent = self._clock() - self._touched_at
        if silent <= PATIENCE_SECONDS:
            return ""
        return f"{self._file.parent} has not answered for {silent:.0f} s{self._error}"

    def _run(self) -> None:
        while True:
            self.touch()
            time.sleep(EVERY_SECONDS)

    def touch(self) -> None:
        """Touch the file once, however long it takes."""
        try:
            self._file.touch()
        except OSError as error:
            self._error = f": {error}"
        else:
            self._touched_at, self._error = self._clock(), ""
