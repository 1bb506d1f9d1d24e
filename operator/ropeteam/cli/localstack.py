"""Local cluster and operator as two processes; an operator that exits is restarted.

Both are started early, import their modules while this process imports its own, and then wait for a line on
stdin: the cluster until `start`, the operator until the cluster is ready. Both end with this process:
gracefully by SIGTERM, and by the kernel if it is killed. Their output is appended to `<home>/cluster.log` and
`<home>/operator.log`.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from ropeteam.cli.errors import CommandFailed

_TIMEOUT_SECONDS = 30.0
"""Limit of the cluster's start, and of the graceful end of each process before it is killed."""
_MIN_BACKOFF, _MAX_BACKOFF = 0.2, 10.0
"""Seconds before another start of the operator."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

MISSING = (
    "the local cluster is not installed (the operator's image leaves it out); use the image ropeteam-local, "
    "docker build --target local"
)

PrintLine = Callable[[str], None]


def is_installed() -> bool:
    """Whether this installation has the package of the local cluster; MISSING if not."""
    return importlib.util.find_spec("ropeteam.local") is not None


def _set_parent_death_signal() -> None:
    """In a child, before exec: the kernel sends it SIGTERM when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class LocalStack:
    """A local cluster and its operator: `async with LocalStack(home) as local`, then
    `await local.start(print_line)`. All is stopped at the end of the `async with`."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.kubeconfig = self.home / "kubeconfig"
        self._cluster: asyncio.subprocess.Process | None = None
        self._operator: asyncio.subprocess.Process | None = None
        self._restarter: asyncio.Task[None] | None = None
        self._log_files: list[IO[bytes]] = []
        self._log_starts: dict[str, int] = {}
        """Size of each log before the first process of this object wrote to it."""

    async def __aenter__(self) -> Self:
        """Start both processes, which import and wait. Raises CommandFailed: not installed."""
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

    async def start(self, print_line: PrintLine) -> None:
        """Let both processes begin. Returns when the API server answers; then the operator may still start.

        Each later exit of the operator is printed, and it is started again. Raises CommandFailed: the cluster
        exits, or is not ready in time.
        """
        assert self._cluster is not None
        assert self._operator is not None
        _send_go(self._cluster)
        assert self._cluster.stdout is not None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                ready_line = await self._cluster.stdout.readline()
        except TimeoutError:
            raise CommandFailed(
                f"the local cluster was not ready within {_TIMEOUT_SECONDS:g} s; {self._log_hint('cluster')}"
            ) from None
        if not ready_line:  # end of file: it has exited
            raise self._start_error(await self._cluster.wait())
        self._restarter = asyncio.create_task(self._keep_operator_running(self._operator, print_line))

    def _start_error(self, code: int) -> CommandFailed:
        """Error with the cluster's own sentence, which it has logged, or else with its exit code."""
        line = self._last_line("cluster")
        if code == 1 and line.startswith("error: "):
            return CommandFailed(line.removeprefix("error: "))
        return CommandFailed(
            f"the local cluster did not start ({_exit_text(code)}); {self._log_hint('cluster')}"
        )

    async def wait_for_cluster_exit(self) -> CommandFailed:
        """Wait until the cluster process exits, which it does only on a fault or a signal. Returns the error
        to raise."""
        assert self._cluster is not None
        code = await self._cluster.wait()
        return CommandFailed(
            f"the local cluster ended unexpectedly ({_exit_text(code)}), and its pods with it; "
            f"{self._log_hint('cluster')}"
        )

    def _log_hint(self, name: str) -> str:
        """Part of a message: the log of a process, and the last line in it."""
        return f"see {self.home / f'{name}.log'}, whose last line is: {self._last_line(name)}"

    def _last_line(self, name: str) -> str:
        """Last line that processes of this object have logged, not those of an earlier run."""
        with (self.home / f"{name}.log").open("rb") as log:
            log.seek(self._log_starts[name])
            lines = log.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "no output")

    async def _keep_operator_running(
        self, operator: asyncio.subprocess.Process, print_line: PrintLine
    ) -> None:
        """Let the operator begin, and start another one after each exit, until cancelled. The pause doubles,
        unless the one that ended had run for longer than the longest pause."""
        _send_go(operator)
        backoff, loop = _MIN_BACKOFF, asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            code = await operator.wait()
            backoff = (
                _MIN_BACKOFF if loop.time() - started_at > _MAX_BACKOFF else min(backoff * 2, _MAX_BACKOFF)
            )
            print_line(
                f"the operator ended ({_exit_text(code)}) and is started again in {backoff:g} s; "
                f"{self._log_hint('operator')}"
            )
            await asyncio.sleep(backoff)
            operator = self._operator = await self._spawn_operator()

    async def _spawn_operator(
        self, *more: str, stdin: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        """Start an operator of this cluster. `more`: further options of its command line."""
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
        """Start a module in a process whose stderr, and stdout if not given, go to `<home>/<name>.log`."""
        log = (self.home / f"{name}.log").open("ab")
        self._log_files.append(log)
        self._log_starts.setdefault(name, log.seek(0, os.SEEK_END))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=stdin,
            stdout=log if stdout is None else stdout,
            stderr=log,
            start_new_session=True,  # a terminal sends Ctrl-C to its session: _stop ends them in order
            preexec_fn=_set_parent_death_signal,
        )

    async def _stop(self) -> None:
        """Stop both, the operator first: it would report every pod of the ending cluster as lost."""
        if self._restarter is not None:
            self._restarter.cancel()
            with suppress(asyncio.CancelledError):
                await self._restarter
        for process in (self._operator, self._cluster):
            if process is not None:
                await _terminate(process)
        for log in self._log_files:
            log.close()


def _send_go(process: asyncio.subprocess.Process) -> None:
    """Let a process that waits for stdin begin. If it has exited, this has no effect: see its log."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM and wait for the exit; after _TIMEOUT_SECONDS, SIGKILL."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _TIMEOUT_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _exit_text(code: int) -> str:
    """`signal 9` or `exit code 1`, from the return code of a subprocess."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
