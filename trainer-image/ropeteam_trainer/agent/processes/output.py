"""The output of a rank: each line is forwarded to the agent's output after `[rank N] `; the last are kept.

A rank that prints faster than its container's output is read waits, as without an agent. If the output is not
read at all, the rank does not wait: its lines are dropped (lines.py), and reports carry the last of them
anyway. A progress bar rewrites its line again and again, each time after a carriage return: one such line a
second is forwarded, and the last one when the line ends.
Limits: reports carry the last 20 lines, at most 4 KiB in all. Bytes that are not UTF-8 are replaced
there, never in forwarded lines. A line without end is cut every 64 KiB.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from ropeteam_trainer.system.lines import STDOUT, Lines

LAST_LINES = 20
LAST_BYTES = 4096
_LAST_LINE = LAST_BYTES - 64
"""The rest is room for the line that counts the missing ones."""
MOST_NOTED = 10_000
"""Most lines of the stacks of a process: 100 threads, 100 frames of each."""
_LONGEST_LINE = 1 << 16
_READS_AT_END = 256
"""Reads of what a dead rank left in its pipe. Only a process that still writes there could leave more."""
_PAUSE_SECONDS = 0.02
BAR_SECONDS = 1.0


class Output:
    """The read end of a rank's stdout and stderr, for the running loop to read."""

    def __init__(self, fd: int, name: str, sink: Lines = STDOUT) -> None:
        self._fd, self._name, self._sink = fd, name, sink
        self._prefix = f"[{name}] ".encode()
        self._partial = b""
        self._bar_at = float("-inf")
        """Time at which a line of a progress bar was last forwarded."""
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._written = 0
        self._noted: list[bytes] | None = None
        self._aside = False
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self._listen()

    def close(self) -> None:
        """Read the rest, and close."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        self._read(_READS_AT_END)
        if self._partial:
            self._forward([_shown(self._partial)])
        os.close(self._fd)

    def note(self, wanted: bool, aside: bool = False) -> None:
        """Keep lines for `noted` from now on, or stop. `aside`: they do not count as last lines."""
        self._noted, self._aside = [] if wanted else None, aside

    @property
    def noted(self) -> tuple[str, ...]:
        return tuple(line.decode(errors="replace") for line in self._noted or ())

    def last_lines(self) -> tuple[str, ...]:
        """The last lines, newest last; a line before them counts those left out."""
        lines: deque[str] = deque()
        budget = _LAST_LINE
        for line in reversed(self._last):
            text = line[-_LAST_LINE:].decode(errors="replace")
            budget -= len(text.encode())
            if budget < 0:
                break
            lines.appendleft(text)
        if self._written > len(lines):
            last = tuple(lines)[-(LAST_LINES - 1) :]
            missing = self._written - len(last)
            return (f"... ({missing} more line{'s' * (missing > 1)} in the pod's log)", *last)
        return tuple(lines)

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        """Read once at a time, so that a rank that prints much does not block the loop."""
        if self._sink.crowded:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._listen)
        elif not self._read(1):
            self._loop.remove_reader(self._fd)

    def _read(self, times: int) -> bool:
        """Forward the output read. False: end of file."""
        for _ in range(times):
            try:
                data = os.read(self._fd, _LONGEST_LINE)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._forward_bar()
            if len(self._partial) >= _LONGEST_LINE:
                lines, self._partial = [*lines, self._partial], b""
            self._forward([_shown(line) for line in lines])
        return True

    def _forward_bar(self) -> None:
        """Forward the complete part of a line that is rewritten again and again."""
        written = self._partial.rstrip(b"\r")  # the newline may still follow
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
            budget = max(0, MOST_NOTED - len(self._noted))
            self._noted += [line[:LAST_BYTES] for line in lines[:budget]]
        if lines:
            self._sink.add(self._name, [self._prefix + line for line in lines])


def _shown(line: bytes) -> bytes:
    """The final text of a rewritten line, as a terminal shows it."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"") if b"\r" in line else line
