"""The operator's log on a file descriptor, written by a thread: logging never blocks.

A container runtime that is down, or a node's disk that is full, stops reading; a write then blocks for ever,
and with it the loop that renews the leadership. Up to `MOST_LINES` lines are queued here; more are
dropped, and counted in the log once it is read again. They are written together, every `LAG_SECONDS`: a
thread that wakes for each of them takes the interpreter from the event loop each time (a seventeenth of its
time while a thousand jobs start).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from queue import SimpleQueue

MOST_LINES = 10_000
"""Lines that are queued and not written yet; further ones are dropped."""
FLUSH_SECONDS = 2.0
LAG_SECONDS = 0.02
_FORMAT = "%(asctime)s %(levelname).1s %(message)s"


class Output(logging.Handler):
    """A handler with its own thread. A process that ends waits `FLUSH_SECONDS` for queued lines, and loses
    the rest. `fd`: a file descriptor, which stays open.

    Any thread may log: `logging` calls `emit` with the handler's lock held. The thread of this handler alone
    changes `_written`; all else is changed under that lock, or at the end, when nothing else logs.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._fd = fd
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._queued = self._written = 0
        """Number of lines since the start."""
        self._dropped = 0
        """Number of lines that were dropped, and are not reported yet."""
        threading.Thread(target=self._write_forever, name="output", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record; called by `logging`."""
        self.write_line(self.format(record))

    def write_line(self, line: str) -> None:
        """Queue a line, also one that is no record of the log; drop it if too many are queued. Never
        blocks."""
        if self._queued - self._written >= MOST_LINES:
            self._dropped += 1
            return
        if self._dropped:
            line = f"{self._dropped} lines of this log were dropped: its reader does not keep up\n{line}"
            self._dropped = 0
        self._queued += 1
        self._lines.put(f"{line}\n".encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Wait until all queued lines are written, or for `FLUSH_SECONDS`. `logging` calls it at exit."""
        end = time.monotonic() + FLUSH_SECONDS
        while self._written < self._queued and time.monotonic() < end:
            time.sleep(0.01)

    def _write_forever(self) -> None:
        """Write lines as they come, for the life of the process: wait for one, then `LAG_SECONDS` for more,
        and write all of them together. Lines that cannot be written are lost."""
        while True:
            lines = [self._lines.get()]
            time.sleep(LAG_SECONDS)
            lines += (self._lines.get() for _ in range(self._lines.qsize()))
            unwritten = b"".join(lines)
            try:
                while unwritten:
                    unwritten = unwritten[os.write(self._fd, unwritten) :]
            except OSError:
                pass  # the reader has closed it
            self._written += len(lines)
