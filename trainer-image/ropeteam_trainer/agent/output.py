"""What a rank prints: each line goes on to the agent's own output after `[rank N] `; the last are kept.

Limits: the last 20 lines, at most 4 KiB in all, travel in reports. Bytes that are not UTF-8 are replaced
there, never in what is forwarded. A line without end is cut every 64 KiB.
"""

from __future__ import annotations

import os
from collections import deque

LAST_LINES = 20
LAST_BYTES = 4096
_LONGEST_LINE = 1 << 16


class Output:
    """The read end of a rank's stdout and stderr. Non-blocking: read() takes what is there."""

    def __init__(self, fd: int, prefix: str, sink: int = 1) -> None:
        self.fd, self._prefix, self._sink = fd, prefix.encode(), sink
        self._partial = b""
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Forward what has come. False: nothing more will."""
        while True:
            try:
                data = os.read(self.fd, _LONGEST_LINE)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) >= _LONGEST_LINE:
                lines, self._partial = [*lines, self._partial], b""
            self._forward(lines)

    def close(self) -> None:
        """Read what is left and let go."""
        self.read()
        if self._partial:
            self._forward([self._partial])
        os.close(self.fd)

    def last_lines(self) -> tuple[str, ...]:
        """Newest last."""
        lines: deque[str] = deque()
        room = LAST_BYTES
        for line in reversed(self._last):
            text = line[-LAST_BYTES:].decode(errors="replace")
            room -= len(text.encode())
            if room < 0:
                break
            lines.appendleft(text)
        return tuple(lines)

    def _forward(self, lines: list[bytes]) -> None:
        self._last.extend(lines)
        data = memoryview(b"".join(self._prefix + line + b"\n" for line in lines))
        while data:
            try:
                data = data[os.write(self._sink, data) :]
            except OSError:
                return  # nobody reads our output any more; the ranks go on
