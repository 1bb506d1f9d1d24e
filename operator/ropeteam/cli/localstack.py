"""Local cluster and operator as two processes; an operator that exits is restarted.

Both import their modules while their starter imports its own, and wait: the cluster for `begin`, the operator
for the cluster. Both end with us, however we end: gracefully by SIGTERM, and by the kernel if we are killed.
Their output goes to `<home>/cluster.log` and `<home>/operator.log`.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from ropeteam.cli.errors import CommandFailed

_TIMEOUT_SECONDS = 30.0
_MIN_BACKOFF, _MAX_BACKOFF = 0.2, 10.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

MISSING = (
    "the local cluster is not installed (the operator's image leaves it out); use the image ropeteam-local, "
    "docker build --target local"
)

PrintLine = Callable[[str], None]


def is_installed() -> bool:
    return importlib.util.find_spec("ropeteam.local") is not None


def _set_parent_death_signal() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class LocalStack:
    """A cluster whose API answers, and an operator that is kept alive: `async with LocalStack(home) as
    local`, then `await local.begin(say)`."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.kubeconfig = self.home / "kubeconfig"
        self._cluster: asyncio.subprocess.Process | None = None
        self._operator: asyncio.subprocess.Process | None = None
        self._restarter: asyncio.Task[None] | None = None
        self._logs: list[IO[bytes]] = []

    async def __aenter__(self) -> Self:
        if not is_installed():
            raise CommandFailed(MISSING)
        self.home.mkdir(0o700, parents=True, exist_ok=True)
        pipe = asyncio.subprocess.PIPE
        try:
            self._operator = await self._spawn_operator("--wait-for-stdin", stdin=pipe)
            arguments = ("ropeteam.local", "--home", str(self.home), "--wait-for-stdin")
            self._cluster = await self._spawn("cluster", *arguments, stdin=pipe, stdout=pipe)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def begin(self, print_line: PrintLine) -> None:
        """Start both. Returns when the API answers; restarts of the operator go to `print_line`. Raises
        CommandFailed."""
        assert self._cluster is not None
        assert self._operator is not None
        _send_go(self._cluster)
        assert self._cluster.stdout is not None
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            first = await self._cluster.stdout.readline()
        if not first:
            await self._cluster.wait()
            raise CommandFailed(self.log_tail("cluster").removeprefix("error: "))
        self._restarter = asyncio.create_task(self._restart_operator(self._operator, print_line))

    async def cluster_ended(self) -> int:
        """Wait for the cluster's exit code (it should not exit)."""
        assert self._cluster is not None
        return await self._cluster.wait()

    def log_tail(self, name: str) -> str:
        """Last line of a log, to report why a process did not start."""
        file = self.home / f"{name}.log"
        lines = file.read_text(errors="replace").split("\n") if file.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "no output")

    async def _restart_operator(self, operator: asyncio.subprocess.Process, print_line: PrintLine) -> None:
        _send_go(operator)
        backoff, loop = _MIN_BACKOFF, asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            code = await operator.wait()
            backoff = (
                _MIN_BACKOFF if loop.time() - started_at > _MAX_BACKOFF else min(backoff * 2, _MAX_BACKOFF)
            )
            print_line(f"the operator ended ({_exit_text(code)}: {self.log_tail('operator')}); restarting it")
            await asyncio.sleep(backoff)
            operator = self._operator = await self._spawn_operator()

    async def _spawn_operator(
        self, *more: str, stdin: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        arguments = ("--kubeconfig", str(self.kubeconfig), "--home", str(self.home), *more)
        return await self._spawn("operator", "ropeteam.controller", *arguments, stdin=stdin)

    async def _spawn(
        self,
        name: str,
        module: str,
        *arguments: str,
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> asyncio.subprocess.Process:
        log = (self.home / f"{name}.log").open("ab")
        self._logs.append(log)
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=stdin,
            stdout=log if stdout is None else stdout,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us; we stop them gracefully
            preexec_fn=_set_parent_death_signal,
        )

    async def _stop(self) -> None:
        """Stop the operator first: it would report every pod of the ending cluster as lost."""
        if self._restarter is not None:
            self._restarter.cancel()
            with suppress(asyncio.CancelledError):
                await self._restarter
        for process in (self._operator, self._cluster):
            if process is not None:
                await _terminate(process)
        for log in self._logs:
            log.close()


def _send_go(process: asyncio.subprocess.Process) -> None:
    """Let a waiting process start. One that has exited has the reason in its log."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def _terminate(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _TIMEOUT_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
