"""The output of a rank: each line is copied to the agent's output after `[rank N] `, the last are retained.

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
MOST_CAPTURED = 10_000
"""Most lines of the stacks of a process: 100 threads, 100 frames of each."""
_LONGEST_LINE = 1 << 16
_READS_AT_END = 256
"""Reads of what a dead rank left in its pipe. Only a process that still writes there could leave more."""
_PAUSE_SECONDS = 0.02
"""Pause while the agent's own output is read more slowly than ranks print."""
BAR_SECONDS = 1.0
"""Interval at which a progress bar is forwarded."""


class Output:
    """The read end of a rank's stdout and stderr, which the running loop reads."""

    def __init__(self, fd: int, name: str, sink: Lines = STDOUT) -> None:
        """`fd`: the read end of a pipe, which this object closes. `name`: as in `rank 3`."""
        self._fd, self._name, self._sink = fd, name, sink
        self._prefix = f"[{name}] ".encode()
        self._partial = b""
        """Begin of a line whose end was not read yet."""
        self._bar_at = float("-inf")
        """Time at which a line of a progress bar was last forwarded."""
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._line_count = 0
        """Lines so far that count as last lines."""
        self._captured: list[bytes] | None = None
        """None: nothing is captured now."""
        self._counts_as_last_lines = True
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self._listen()

    def close(self) -> None:
        """Forward what is left in the pipe, and close it. `last_lines` stays valid."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        self._read(_READS_AT_END)
        if self._partial:
            self._forward([_shown(self._partial)])
        os.close(self._fd)

    def start_capture(self, counts_as_last_lines: bool = True) -> None:
        """Capture all lines from now on, besides forwarding them; a previous capture is discarded."""
        self._captured, self._counts_as_last_lines = [], counts_as_last_lines

    def stop_capture(self) -> None:
        """Discard the captured lines. From now on lines count as last lines again."""
        self._captured, self._counts_as_last_lines = None, True

    @property
    def captured(self) -> tuple[str, ...]:
        """The lines of the capture that is under way, at most MOST_CAPTURED, the first ones."""
        return tuple(line.decode(errors="replace") for line in self._captured or ())

    def last_lines(self) -> tuple[str, ...]:
        """The last lines, newest last, as the module says. If there were more, the first of them counts the
        missing ones."""
        lines: deque[str] = deque()
        budget = _LAST_LINE
        for line in reversed(self._last):
            text = line[-_LAST_LINE:].decode(errors="replace")
            budget -= len(text.encode())
            if budget < 0:
                break
            lines.appendleft(text)
        if self._line_count > len(lines):
            last = tuple(lines)[-(LAST_LINES - 1) :]
            missing = self._line_count - len(last)
            return (f"... ({missing} more line{'s' * (missing > 1)} in the pod's log)", *last)
        return tuple(lines)

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        """Read once, so that a rank that prints much does not block the loop. Pauses while the agent's output
        is crowded; stops at the end of file."""
        if self._sink.crowded:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._listen)
        elif not self._read(1):
            self._loop.remove_reader(self._fd)

    def _read(self, times: int) -> bool:
        """Read up to `times` times, and forward the lines. False: end of file."""
        for _ in range(times):
            try:
                data = os.read(self._fd, _LONGEST_LINE)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._forward_progress_bar()
            if len(self._partial) >= _LONGEST_LINE:
                lines, self._partial = [*lines, self._partial], b""
            self._forward([_shown(line) for line in lines])
        return True

    def _forward_progress_bar(self) -> None:
        """Remove from the partial line what carriage returns have rewritten, and forward its final text, once
        in BAR_SECONDS. It does not count as a last line: the end of the line will."""
        written = self._partial.rstrip(b"\r")  # the newline may still follow
        before, _, _ = written.rpartition(b"\r")
        if not (bar := _shown(before)):
            return
        self._partial = self._partial[len(before) + 1 :]
        if (now := self._loop.time()) - self._bar_at >= BAR_SECONDS:
            self._bar_at = now
            self._sink.add(self._name, [self._prefix + bar])

    def _forward(self, lines: list[bytes]) -> None:
        """Add whole lines to the last lines, the capture and the agent's output."""
        if self._counts_as_last_lines:
            self._last.extend(lines)
            self._line_count += len(lines)
        if self._captured is not None:
            budget = max(0, MOST_CAPTURED - len(self._captured))
            self._captured += [line[:LAST_BYTES] for line in lines[:budget]]
        if lines:
            self._sink.add(self._name, [self._prefix + line for line in lines])


def _shown(line: bytes) -> bytes:
    """The final text of a line that carriage returns rewrite, as a terminal shows it."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"") if b"\r" in line else line
