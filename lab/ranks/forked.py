"""A stand-in for subprocess.Popen that forks Python from a process which has imported torch once.

For `ropeteam plan` of many scripts: each of them would spend nearly all of its time on that import. The
process that it starts by exec is tested in tests/cli/test_plan.py.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NoReturn

from lab.ranks.forkserver import forkserver

_server = forkserver("ropeteam_trainer.planning.measure")


def prepare() -> None:
    """Start that process before the tests do: a test that kills its own children does not kill it."""
    multiprocessing.forkserver.ensure_running()


class Forked:
    """`python -m MODULE ARGUMENTS...` as a process of its own session."""

    def __init__(
        self, command: list[str], *, cwd: Path, env: dict[str, str], stdout: IO[bytes], **_: Any
    ) -> None:
        arguments = command, str(cwd), env, stdout.name
        self._process = _server.Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("python", seconds or 0)
        return code


def _run(command: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    os.setsid()
    written = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.execvp = _exec  # type: ignore[assignment]
    _, _, module, *sys.argv[1:] = command
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _exec(_: str, argv: list[str]) -> NoReturn:
    """`python SCRIPT ARGUMENTS...` in this process."""
    sys.argv = argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)
