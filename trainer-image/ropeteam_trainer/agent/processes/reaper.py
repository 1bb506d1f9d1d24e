"""The only code that waits for children: SIGCHLD in, a call per watched child out. Orphans are reaped.

No other code of the agent may wait for a child: subprocess, for example, would take its status.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Reaper:
    """Reaps all children of this process, on the running loop."""

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        """By pid."""
        self._expecting = 0
        """Blocks of `expecting` that are active."""
        self._early: dict[int, int] = {}
        """By pid: wait status of children that exited before they were watched."""
        self.changed = asyncio.Event()
        """Set whenever a child has exited."""

    def install(self) -> None:
        """Handle SIGCHLD from now on; called once, before any child is started."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Watch a child: `ended(wait status)` is called once, when it has exited; at once if it has exited
        already. Call it before the loop runs again, or inside `expecting`."""
        if pid in self._early:
            ended(self._early.pop(pid))
        else:
            self._watched[pid] = ended

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Retain the status of unwatched children inside this block: one whose pid is not known yet may exit
        before it is watched."""
        self._expecting += 1
        try:
            yield
        finally:
            self._expecting -= 1
            if not self._expecting:
                self._early.clear()

    def _reap(self) -> None:
        """Reap every child that has exited: one SIGCHLD may stand for several."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if ended := self._watched.pop(pid, None):
                ended(status)
            elif self._expecting:
                self._early[pid] = status
        self.changed.set()
