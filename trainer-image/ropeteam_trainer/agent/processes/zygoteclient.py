"""The agent's end of the zygote: start it when needed, request forks, detect its exit.

A zygote that is not ready is no error: ranks are exec'ed then. A store can only be forked, and waits for it.
The agent reads the output of the zygote and its stores, so that none of them blocks on a slow reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.processes.output import Output
from ropeteam_trainer.agent.processes.proc import send_signal
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.spawn import spawn
from ropeteam_trainer.agent.processes.waiting import within
from ropeteam_trainer.agent.script import zygote
from ropeteam_trainer.system.background import start_task

_ANSWER_SECONDS = 30.0
"""Limit of the answer to a fork."""
_END_SECONDS = 5.0
"""Limit until a killed zygote has exited; one that hangs in the kernel forks nothing any more."""
_IMPORT_SECONDS = 600.0
"""Limit of importing torch, and of warming up: a cold disk or a network file system is slow."""
_MAX_WARM_UP_WAIT = 60.0
"""Longest wait of ranks for an import; one that hangs must not keep the agent from what follows."""
_MAX_FAILED_IMPORTS = 3
"""Exits in a row, without torch imported, after which `on_broken` is called."""


class ZygoteClient:
    """A zygote. `command`: the interpreter with its flags, and the shim. `environment`: the user's.

    States: not started (`pid` None) -> importing torch -> ready to fork stores -> warm: ranks can be forked,
    too. After an exit it is not started again before the next request. `on_broken` is called once, when the
    zygote has exited _MAX_FAILED_IMPORTS times in a row without being ready.
    """

    def __init__(
        self,
        reaper: Reaper,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_broken: Callable[[], None],
    ) -> None:
        self._reaper, self._command = reaper, tuple(command)
        self._environment = {**environment, **dict.fromkeys(zygote.THREADS, "1"), "PYTHONUNBUFFERED": "1"}
        self._socket: socket.socket | None = None
        self._lock, self._exited = asyncio.Lock(), asyncio.Event()
        self._on_broken, self._failed_imports = on_broken, 0
        self.pid: int | None = None
        self.is_warm = self._stopped = False
        self._warming: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the zygote, which imports torch, unless it runs. Raises OSError."""
        if self.pid is not None:
            return
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        self._output = Output(read_end, "zygote")
        try:
            with theirs:
                command = (*self._command, str(theirs.fileno()))
                self.pid = spawn(command, self._environment, write_end, (theirs.fileno(),))
        except OSError:
            ours.close()
            self._output.close()
            raise
        finally:
            os.close(write_end)
        ours.setblocking(False)
        self._socket, self._lock, self.is_warm = ours, asyncio.Lock(), False
        self._stopped = False
        self._exited = asyncio.Event()
        self._reaper.watch(self.pid, self._record_exit)
        self._ready = start_task(self._await_ready(ours))

    async def warm_up(self) -> None:
        """Import the rest, so that ranks can be forked; starts the zygote if needed. Callers share one
        attempt, and one that is cancelled does not cancel it. Raises OSError."""
        if self._warming is None or self._warming.done():
            self._warming = start_task(self._warm_up())
        await asyncio.shield(self._warming)

    async def _warm_up(self) -> None:
        """One attempt. Raises OSError."""
        self.start()
        if not self.is_warm:
            await self._request({"op": "warm"}, ())
            self.is_warm = True

    async def may_fork_ranks(self) -> bool:
        """Whether ranks can be forked. Waits while the zygote warms up, at most _MAX_WARM_UP_WAIT: an exec'ed
        rank would start later."""
        if self._warming is not None:
            with contextlib.suppress(OSError):
                await within(_MAX_WARM_UP_WAIT, asyncio.shield(self._warming))
        return self.is_warm

    async def fork(self, op: str, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Fork a process, and return its pid: a new child of the agent. Call inside reaper.expecting().

        `op`, `request`: see zygote.py. `fds`: descriptors that the child gets as copies. Starts the zygote if
        needed. Raises OSError: the zygote refuses or has ended, or gave no answer. After no answer the child
        may exist nevertheless.
        """
        self.start()
        answer = await self._request({"op": op, "agent": os.getpid(), **request}, fds)
        if error := answer.get("error"):
            raise OSError(error)
        return int(answer["pid"])

    def stop(self) -> None:
        """Kill the zygote, if it runs; its exit is not logged. A later request starts another."""
        self._stopped = True
        if self.pid is not None:
            send_signal(self.pid)

    async def _request(self, request: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """The answer to a request; one at a time, once the zygote is ready. Raises OSError.

        If there is no answer, or the caller is cancelled, the zygote is killed: a late answer would be taken
        for that of the next request.
        """
        peer, lock = self._socket, self._lock
        if peer is None:
            raise ConnectionError("the zygote has ended")
        async with lock:
            limit = _IMPORT_SECONDS if request["op"] == "warm" else _ANSWER_SECONDS
            try:
                await within(_IMPORT_SECONDS, asyncio.shield(self._ready))
                return await within(limit, self._exchange(peer, request, fds))
            except (TimeoutError, asyncio.CancelledError):
                self.stop()
                with contextlib.suppress(TimeoutError):
                    await within(_END_SECONDS, self._exited.wait())
                raise

    async def _exchange(
        self, peer: socket.socket, request: dict[str, Any], fds: Sequence[int]
    ) -> dict[str, Any]:
        """Send a request and its descriptors, and receive the answer. The byte carries the descriptors."""
        socket.send_fds(peer, [b"r"], list(fds))
        body = json.dumps(request).encode()
        await asyncio.get_running_loop().sock_sendall(peer, struct.pack(">I", len(body)) + body)
        return await self._receive_answer(peer)

    async def _await_ready(self, peer: socket.socket) -> None:
        """Wait for the first message: torch is imported. Raises OSError."""
        await self._receive_answer(peer)
        self._failed_imports = 0

    async def _receive_answer(self, peer: socket.socket) -> dict[str, Any]:
        """Receive one message, of which none may follow before the next request. Raises OSError."""
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">I", data)[0]:
            more = await loop.sock_recv(peer, 1 << 16)
            if not more:
                raise ConnectionError("the zygote has ended")
            data += more
        return dict(json.loads(data[4:]))

    def _record_exit(self, status: int) -> None:
        """Close all of this zygote; called by the reaper, once. Requests that wait raise ConnectionError."""
        if not self._stopped:
            code = os.waitstatus_to_exitcode(status)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            log(f"the zygote has ended ({how}), so ranks start more slowly; its output above may say why")
        self._exited.set()
        self.pid, self.is_warm = None, False
        self._output.close()
        self._failed_imports += 1
        if self._failed_imports == _MAX_FAILED_IMPORTS:
            self._on_broken()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
