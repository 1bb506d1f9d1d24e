"""Lines for a container's stdout and stderr, written by a thread: a caller that adds one never blocks.

A container runtime that is down, or a node's disk that is full, stops reading; a write then blocks for ever,
and with it the one loop that renews leases and fences. So lines are queued here, 1 MiB of them at most; more
are dropped, by whole lines, and their number is logged once the output is read again. The descriptor stays
blocking, because other processes share it (O_NONBLOCK is a property of the pipe's end, not of one holder).
Limits: at exit queued lines have `EXIT_SECONDS` to be written. A process that ends otherwise loses them.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections import Counter, deque

MOST_BYTES = 1 << 20
PATIENCE_SECONDS = 5.0
"""Time after which a reader that has read nothing is not waited for."""
EXIT_SECONDS = 2.0
_ATOMIC_BYTES = 4096
"""PIPE_BUF: a write of this size into a pipe is atomic."""


class Lines:
    """Queue of lines for one file descriptor. Its thread starts with the first line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._moved_at = 0.0
        """Time of the last write, or of the first queued line."""
        self._dropped: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, source: str, lines: list[bytes]) -> None:
        """Queue lines, given without line ends; a full queue drops them all. Never blocks; any thread may
        call it. `source`: the process that wrote them, for the message about dropped lines.

        Once lines were dropped, others are only queued when half of the queue is written: so lines are
        dropped in few long runs.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name=f"lines-{self._fd}", daemon=True)
                self._thread.start()
                atexit.register(self.flush, EXIT_SECONDS)
            if self._size >= MOST_BYTES or (self._dropped and self._size > MOST_BYTES // 2):
                self._dropped[source] += len(lines)
                return
            if not self._queue:
                self._moved_at = time.monotonic()
            self._put_dropped_counts()
            self._put(b"".join(line + b"\n" for line in lines))

    @property
    def crowded(self) -> bool:
        """Whether the output is read, but more slowly than lines come: a caller that can wait should."""
        with self._changed:
            is_read = time.monotonic() < self._moved_at + PATIENCE_SECONDS
            return is_read and self._size > MOST_BYTES // 2

    def flush(self, seconds: float) -> bool:
        """Wait until all queued lines are written. False: they were not within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, seconds)

    def _put(self, data: bytes) -> None:
        """Queue bytes, whatever the limit. The caller holds the lock."""
        self._queue.append(data)
        self._size += len(data)
        self._changed.notify_all()

    def _put_dropped_counts(self) -> None:
        """Queue a message for each source of dropped lines, and forget them. The caller holds the lock."""
        for source, count in self._dropped.items():
            text = (
                f"ropeteam: {count} lines of {source} were dropped: this container's output was not read "
                "(is the container runtime stopped, or the node's disk full?)\n"
            )
            self._put(text.encode())
        self._dropped.clear()

    def _write_all(self) -> None:
        """Write queued lines for ever: the thread. No lock is held while it writes, so add() never waits for
        the output. `_size` counts lines until they are written, so flush() waits for those taken out, too."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                data = self._queue.popleft()
            for begin in range(0, len(data), _ATOMIC_BYTES):
                self._write(data[begin : begin + _ATOMIC_BYTES])
                self._moved_at = time.monotonic()
            with self._changed:
                self._size -= len(data)
                if not self._size:
                    self._put_dropped_counts()
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        """Write all bytes; blocks as long as nothing reads the output."""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # a process that shares the descriptor has set O_NONBLOCK
                _wait_until_writable(self._fd)
            except OSError:
                return  # the reader has closed it: nothing will ever read this


def _wait_until_writable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


class LineStream(io.TextIOBase):
    """Text stream in place of sys.stdout or sys.stderr: a line is queued when its line end is written."""

    def __init__(self, lines: Lines, source: str) -> None:
        self._lines, self._source, self._partial = lines, source, ""

    def write(self, text: str) -> int:
        # the text after the last line end stays in _partial
        *lines, self._partial = (self._partial + text).split("\n")
        if lines:
            self._lines.add(self._source, [line.encode(errors="backslashreplace") for line in lines])
        return len(text)


STDOUT, STDERR = Lines(1), Lines(2)


def replace_standard_streams(source: str) -> None:
    """Replace sys.stdout and sys.stderr by queues, so that no print, warning, traceback or log line blocks
    this process. `source`: its name in the message about dropped lines. Descriptors 1 and 2 stay, for
    children."""
    sys.stdout, sys.stderr = LineStream(STDOUT, source), LineStream(STDERR, source)
