"""Processes that outlive whoever started them, known by name in a folder of pid files.

A pid alone may belong to another process after a crash; each file holds the start time too, and a process
with another is not touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

TIMEOUT_SECONDS = 10.0
START_SECONDS = 60.0
"""Until a process of a cluster serves."""


class Daemons:
    """`folder`: holds pids/ and log/."""

    def __init__(self, folder: Path) -> None:
        self._pids, self._logs = folder / "pids", folder / "log"

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start one, and return its pid. What it prints is added to log/NAME."""
        self._pids.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        with open(self.log(name), "ab") as output:
            process = subprocess.Popen(
                [str(argument) for argument in argv],
                cwd=cwd,
                env=None if environment is None else {**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process.returncode = 0  # whoever ends it later is not us
        started_at = psutil.Process(process.pid).create_time()
        (self._pids / name).write_text(f"{process.pid} {started_at}")
        return process.pid

    def find(self, name: str) -> psutil.Process | None:
        """The living process of that name."""
        try:
            pid, started_at = (self._pids / name).read_text().split()
            process = psutil.Process(int(pid))
            is_ours = process.create_time() == float(started_at)
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        return process if is_ours and _lives(process) else None

    def names(self) -> list[str]:
        return sorted(path.name for path in self._pids.iterdir()) if self._pids.exists() else []

    def log(self, name: str) -> Path:
        return self._logs / name

    def send(self, name: str, number: int) -> None:
        """To it and all that it started."""
        if process := self.find(name):
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """Gone when this returns: SIGKILL follows the first signal."""
        process = self.find(name)
        if process is not None:
            family = [process, *process.children(recursive=True)]
            self.send(name, number)
            alive = _wait(family)
            for each in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            _wait(alive)
        (self._pids / name).unlink(missing_ok=True)


def _wait(family: list[psutil.Process]) -> list[psutil.Process]:
    """Processes that still live after a while. Zombies are dead: their parent may reap them at any time."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (alive := [each for each in family if _lives(each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        # Of a program with threads the first may be a zombie while others still hold its sockets.
        is_dead = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        return process.is_running() and not is_dead
    except psutil.NoSuchProcess:
        return False
