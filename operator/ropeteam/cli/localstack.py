"""The local cluster and the operator as two processes; an operator that dies is started again.

Both import their modules while their starter imports its own, and wait: the cluster for `begin`, the operator
for the cluster. Both end with us, however we end: orderly by SIGTERM, and by the kernel if we are killed.
Their output goes to `<home>/cluster.log` and `<home>/operator.log`.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from ropeteam.cli.errors import Trouble

_PATIENCE_SECONDS = 30.0
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Say = Callable[[str], None]


def _die_with_us() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class LocalStack:
    """`async with LocalStack(home) as local`, then `await local.begin(say)`: a cluster whose API answers, and
    an operator that is kept alive."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.kubeconfig = self.home / "kubeconfig"
        self._cluster: asyncio.subprocess.Process | None = None
        self._operator: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._logs: list[IO[bytes]] = []

    async def __aenter__(self) -> Self:
        self.home.mkdir(0o700, parents=True, exist_ok=True)
        pipe = asyncio.subprocess.PIPE
        try:
            self._operator = await self._spawn_operator("--wait", stdin=pipe)
            arguments = ("ropeteam.local", "--home", str(self.home), "--wait")
            self._cluster = await self._spawn("cluster", *arguments, stdin=pipe, stdout=pipe)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def begin(self, say: Say) -> None:
        """Returns when the API answers; `say` is told of what happens to the operator. Raises Trouble."""
        assert self._cluster is not None
        assert self._operator is not None
        _go(self._cluster)
        assert self._cluster.stdout is not None
        async with asyncio.timeout(_PATIENCE_SECONDS):
            first = await self._cluster.stdout.readline()
        if not first:
            await self._cluster.wait()
            raise Trouble(self.log_tail("cluster").removeprefix("error: "))
        self._keeper = asyncio.create_task(self._keep_operator(self._operator, say))

    async def cluster_ended(self) -> int:
        """The cluster's exit code, when it has ended (it should not)."""
        assert self._cluster is not None
        return await self._cluster.wait()

    def log_tail(self, name: str) -> str:
        """The last line of a log, to say why something did not start."""
        file = self.home / f"{name}.log"
        lines = file.read_text(errors="replace").split("\n") if file.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    async def _keep_operator(self, operator: asyncio.subprocess.Process, say: Say) -> None:
        _go(operator)
        wait, loop = _FIRST_WAIT, asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await operator.wait()
            wait = _FIRST_WAIT if loop.time() - began > _LONGEST_WAIT else min(wait * 2, _LONGEST_WAIT)
            say(f"the operator ended ({_ending(code)}: {self.log_tail('operator')}); starting it again")
            await asyncio.sleep(wait)
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
            start_new_session=True,  # Ctrl-C is for us; we end them in order
            preexec_fn=_die_with_us,
        )

    async def _stop(self) -> None:
        """The operator first: it would mourn every pod of the ending cluster."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        for process in (self._operator, self._cluster):
            if process is not None:
                await _end(process)
        for log in self._logs:
            log.close()


def _go(process: asyncio.subprocess.Process) -> None:
    """One that has ended says why in its log."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _PATIENCE_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
