"""Lines for a container's stdout and stderr, written by a thread: whoever adds one never waits.

A container runtime that is down, or a node's disk that is full, stops reading; a write then blocks for ever,
and with it the one loop that renews leases and fences. So lines wait here, 1 MiB of them at most; what is
more is dropped, by whole lines, and told once somebody reads again. The descriptor stays blocking, because
other processes share it (O_NONBLOCK is a property of the pipe's end, not of one holder).
Limits: at exit what is left has `EXIT_SECONDS` to go out. A process that ends otherwise loses what waits.
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
"""A reader that has taken nothing for so long is not waited for."""
EXIT_SECONDS = 2.0
_PIECE = 4096
"""PIPE_BUF: so much goes into a pipe as a whole, whoever else writes there."""


class Lines:
    """For one file descriptor. Its thread begins with the first line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._moved_at = 0.0
        """When something was written last, or began to wait."""
        self._dropped: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, source: str, lines: list[bytes]) -> None:
        """Without their ends. `source`: whose they are, for the word about those that were dropped."""
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
            self._tell_dropped()
            self._put(b"".join(line + b"\n" for line in lines))

    @property
    def crowded(self) -> bool:
        """Somebody reads, but more slowly than lines come: who can wait may wait a moment."""
        with self._changed:
            is_read = time.monotonic() < self._moved_at + PATIENCE_SECONDS
            return is_read and self._size > MOST_BYTES // 2

    def flush(self, seconds: float) -> bool:
        """Wait until all is written. False: it was not, in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, seconds)

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self._size += len(data)
        self._changed.notify_all()

    def _tell_dropped(self) -> None:
        for source, count in self._dropped.items():
            text = f"ropeteam: {count} lines of {source} were dropped, nobody read this container's output\n"
            self._put(text.encode())
        self._dropped.clear()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                data = self._queue.popleft()
            for begin in range(0, len(data), _PIECE):
                self._write(data[begin : begin + _PIECE])
                self._moved_at = time.monotonic()
            with self._changed:
                self._size -= len(data)
                if not self._size:
                    self._tell_dropped()
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # somebody who shares it made it so
                _wait_for(self._fd)
            except OSError:
                return  # it was closed: nobody will ever read this


def _wait_for(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


class Words(io.TextIOBase):
    """In place of sys.stdout or sys.stderr."""

    def __init__(self, lines: Lines, source: str) -> None:
        self._lines, self._source, self._partial = lines, source, ""

    def write(self, text: str) -> int:
        *lines, self._partial = (self._partial + text).split("\n")
        if lines:
            self._lines.add(self._source, [line.encode(errors="backslashreplace") for line in lines])
        return len(text)


STDOUT, STDERR = Lines(1), Lines(2)


def take_over(source: str) -> None:
    """From now on nothing that this process says makes it wait: prints, warnings, tracebacks, logging."""
    sys.stdout, sys.stderr = Words(STDOUT, source), Words(STDERR, source)
