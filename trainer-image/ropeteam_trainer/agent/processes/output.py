"""What a rank prints: each line goes on to the agent's own output after `[rank N] `; the last are kept.

A rank that prints faster than its container's output is read waits, as without us. One whose output is not
read at all does not: its lines are dropped (lines.py), and the last of them travel in reports all the same.
A progress bar writes its line again and again, each time after a carriage return: of what it has shown, one
line a second is forwarded, and the last when its line ends.
Limits: the last 20 lines, at most 4 KiB in all, travel in reports. Bytes that are not UTF-8 are replaced
there, never in what is forwarded. A line without end is cut every 64 KiB.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from ropeteam_trainer.system.lines import STDOUT, Lines

LAST_LINES = 20
LAST_BYTES = 4096
_LAST_LINE = LAST_BYTES - 64
"""And room to say what is missing."""
MOST_NOTED = 10_000
"""The stacks of a process have so many lines at most: of 100 threads, 100 frames of each."""
_LONGEST_LINE = 1 << 16
_READS_AT_END = 256
"""Of what a dead rank left in its pipe. Only somebody who still writes there could leave more."""
_PAUSE_SECONDS = 0.02
BAR_SECONDS = 1.0


class Output:
    """The read end of a rank's stdout and stderr, for the running loop to read."""

    def __init__(self, fd: int, name: str, sink: Lines = STDOUT) -> None:
        self._fd, self._name, self._sink = fd, name, sink
        self._prefix = f"[{name}] ".encode()
        self._partial = b""
        self._bar_at = float("-inf")
        """When a line of a progress bar was forwarded last."""
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._written = 0
        self._noted: list[bytes] | None = None
        self._aside = False
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self._listen()

    def close(self) -> None:
        """Read what is left and let go."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        self._read(_READS_AT_END)
        if self._partial:
            self._forward([_shown(self._partial)])
        os.close(self._fd)

    def note(self, wanted: bool, aside: bool = False) -> None:
        """Whether lines are kept for `noted`, from now on. `aside`: they are not among the last."""
        self._noted, self._aside = [] if wanted else None, aside

    @property
    def noted(self) -> tuple[str, ...]:
        return tuple(line.decode(errors="replace") for line in self._noted or ())

    def last_lines(self) -> tuple[str, ...]:
        """Newest last; what is left out before them is said to be."""
        lines: deque[str] = deque()
        room = _LAST_LINE
        for line in reversed(self._last):
            text = line[-_LAST_LINE:].decode(errors="replace")
            room -= len(text.encode())
            if room < 0:
                break
            lines.appendleft(text)
        if self._written > len(lines):
            kept = tuple(lines)[-(LAST_LINES - 1) :]
            missing = self._written - len(kept)
            return (f"... ({missing} more line{'s' * (missing > 1)} in the pod's log)", *kept)
        return tuple(lines)

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._come)

    def _come(self) -> None:
        """One read at a time, so that a loud rank does not keep the loop for itself."""
        if self._sink.crowded:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._listen)
        elif not self._read(1):
            self._loop.remove_reader(self._fd)

    def _read(self, times: int) -> bool:
        """Forward what has come. False: nothing more will."""
        for _ in range(times):
            try:
                data = os.read(self._fd, _LONGEST_LINE)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._show_bar()
            if len(self._partial) >= _LONGEST_LINE:
                lines, self._partial = [*lines, self._partial], b""
            self._forward([_shown(line) for line in lines])
        return True

    def _show_bar(self) -> None:
        """Of a line that is written again and again, what is complete."""
        written = self._partial.rstrip(b"\r")  # the newline may be still to come
        before, _, _ = written.rpartition(b"\r")
        if not (bar := _shown(before)):
            return
        self._partial = self._partial[len(before) + 1 :]
        if (now := self._loop.time()) - self._bar_at >= BAR_SECONDS:
            self._bar_at = now
            self._sink.add(self._name, [self._prefix + bar])

    def _forward(self, lines: list[bytes]) -> None:
        if not self._aside:
            self._last.extend(lines)
            self._written += len(lines)
        if self._noted is not None:
            room = max(0, MOST_NOTED - len(self._noted))
            self._noted += [line[:LAST_BYTES] for line in lines[:room]]
        if lines:
            self._sink.add(self._name, [self._prefix + line for line in lines])


def _shown(line: bytes) -> bytes:
    """What a terminal shows in the end of a line that was written over."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"") if b"\r" in line else line
