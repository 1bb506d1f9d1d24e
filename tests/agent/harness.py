"""A pod for tests: one real agent process and, in the test itself, the coordinator that it talks to.

The coordinator here has no judgement: a test gives orders and waits for reports. Whatever a pod started is
found by a marker in its environment, so a test can find whether anything is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.waiting import wait_until_async, within

from ropeteam_trainer.contract import codec, config, wire
from ropeteam_trainer.contract.config import Timeouts, WorkerConfig
from ropeteam_trainer.contract.messages import AgentReport, Orders, RankReport
from ropeteam_trainer.contract.world import Member, Plan, ProcessExit, WorldId

TOKEN = bytes(range(32))
DEADLINE_SECONDS = 180.0
JOB_UID = "uid-j"
MARKER = "ROPETEAM_TEST_POD"


class _Reader(asyncio.StreamReader):
    """Data received before a reset counts, as in the coordinator's own protocol: an agent that ends with
    orders unread resets the connection, and the last report may still wait here."""

    def set_exception(self, exc: Exception) -> None:  # noqa: ARG002
        self.feed_eof()


class Coordinator:
    """Listens, remembers the newest report, sends what the test orders."""

    def __init__(self) -> None:
        self.report: AgentReport | None = None
        self.history: list[AgentReport] = []
        self.connections = 0
        self.silent = False
        """Receive, and send nothing."""
        self.dropped_links = False
        """Ends each connection at its first report."""
        self.older = False
        """Of a release that takes no nonce of the agent's."""
        self.looks = True
        """For an empty frame before the first report; False: of the release before."""
        self.shown = 0
        """How often one came."""
        self.sent = b""
        """All bytes that the newest connection was sent."""
        self.explain: Callable[[], str] = str
        """More text for a wait that is without effect."""
        self.port = 0
        self._orders: Orders | None = None
        self._number = 0
        self._sealer: wire.Sealer | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._place = socket.socket()
        """Bound and never listening: the port is nobody else's while the coordinator is away."""
        self._changed = asyncio.Condition()

    async def start(self, port: int = 0) -> None:
        if not self.port:
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", port))
            self.port = int(self._place.getsockname()[1])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(_Reader(), self._serve), "127.0.0.1", self.port
        )

    async def stop(self) -> None:
        """As if it had died: connections are cut, nobody listens."""
        assert self._server is not None
        self._server.close()
        await self.drop_link()
        await asyncio.sleep(0)  # connections see their end before the loop closes

    def give_back(self) -> None:
        """The port. It never comes again."""
        self._place.close()

    async def drop_link(self) -> None:
        """The connection is lost; the agent may come again."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    def order(self, **changes: Any) -> int:
        """Orders of term 1, boot 0 unless named otherwise; what is not named stays as it was ordered last.
        Returns their number."""
        self._orders = replace(self._orders or Orders(term=1, boot=0, number=0), **changes)
        self._send()
        return self._number

    async def wait_for(self, holds: Callable[[AgentReport], object]) -> AgentReport:
        """The newest report, as soon as `holds` is true of it."""
        async with self._changed:
            await within(
                lambda: f"a report; the last: {self.report}\n{self.explain()}",
                self._changed.wait_for(lambda: self.report is not None and holds(self.report)),
                DEADLINE_SECONDS,
            )
        assert self.report is not None
        return self.report

    def _send(self) -> None:
        if self._writer is None or self._sealer is None or self._orders is None or self.silent:
            return
        self._number += 1
        self._write(replace(self._orders, number=self._number))

    def _write(self, orders: Orders) -> None:
        assert self._writer
        assert self._sealer
        answers = self.report.number if self.report else 0
        frame = self._sealer.seal(codec.encode(replace(orders, answers=answers)))
        self.sent += frame
        self._writer.write(frame)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> wire.Opener:
        chance = os.urandom(wire.NONCE_SIZE)
        self.sent = wire.HELLO + chance if self.older else wire.greeting(chance)
        if not self.looks:
            self.sent = self.sent.replace(wire.EXPECTS_EMPTY_FRAME, wire.ACCEPTS_ANSWER + chance[:2])
        nonce, key = self.sent[len(wire.HELLO) :], TOKEN
        writer.write(self.sent)
        if not self.older:
            answer = await reader.readexactly(len(wire.ANSWER) + wire.NONCE_SIZE)
            key, _ = wire.parse_answer(TOKEN, answer) or (b"", b"")
        self._sealer, self._writer = wire.Sealer(key, nonce, wire.TO_AGENT), writer
        return wire.Opener(key, nonce, wire.TO_COORDINATOR)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            opener = await self._greet(reader, writer)
            self._number = 0
            self.connections += 1
            self._send()
            first = True
            while data := await reader.read(1 << 16):
                for body in opener.feed(data):
                    if first and not body:
                        self.shown += 1
                    else:
                        await self._take(codec.decode(AgentReport, body))
                    first = False
        except (ConnectionError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None

    async def _take(self, report: AgentReport) -> None:
        self.report = report
        if self.dropped_links:
            await self.drop_link()
            return
        if report.applied_orders == 0:  # else it has not read the newest yet
            self._send()
        elif self._orders and self._writer and not self.silent:
            self._write(Orders(self._orders.term, self._orders.boot, self._number, same=True))
        async with self._changed:
            self.history.append(report)
            self._changed.notify_all()


class Pod:
    """One agent process. `folder`: for its scratch files and its output."""

    def __init__(self, folder: Path, coordinator_port: int, **settings: Any) -> None:
        self.folder = folder
        values: dict[str, Any] = {
            "job": "j",
            "namespace": "n",
            "job_uid": JOB_UID,
            "attempt": 1,
            "workers": 1,
            "processes": 1,
            "coordinator": f"127.0.0.1:{coordinator_port}",
            "timeouts": Timeouts(lost=2),
        }
        self.settings = WorkerConfig(**values | settings)
        self.process: subprocess.Popen[bytes] | None = None
        self.output = folder / "output.txt"
        self.sink: int | None = None
        """Where its output goes instead."""

    def start(
        self,
        *command: str,
        agent: tuple[str, ...] = (),
        dashes: tuple[str, ...] = ("--",),
        **environment: str,
    ) -> None:
        (self.folder / "token").write_text(TOKEN.hex())
        base = {k: v for k, v in os.environ.items() if not k.startswith(("ROPETEAM_", "COV_", "COVERAGE_"))}
        env = base | {
            config.CONFIG: codec.encode(self.settings).decode(),
            config.SLOT: "0",
            config.INCARNATION: "1",
            config.POD_UID: "pod-0",
            config.POD_IP: "127.0.0.1",
            config.TOKEN_FILE: str(self.folder / "token"),
            config.AGENT_STATE_DIR: str(self.folder / "state"),
            "ROPETEAM_STORE": "none",
            # `python3` is ours, not a wrapper that the machine may have
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            MARKER: str(self.folder),
            **environment,
        }
        starter = agent or (sys.executable, "-m", "ropeteam_trainer.agent")
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [*starter, *dashes, *command],
                cwd=self.folder,
                env=env,
                stdout=self.sink or output,
                stderr=self.sink or output,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        assert self.process is not None
        return await within("the agent exits", asyncio.to_thread(self.process.wait), DEADLINE_SECONDS)

    def text(self) -> str:
        """Output so far. It has a thread of its own: reports may be ahead of it while the pod
        lives."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    async def printed(self, text: str) -> None:
        """Wait until this has come out."""
        await wait_until_async(lambda: f"{text!r} is not in:\n{self.text()}", lambda: text in self.text())

    def living(self) -> dict[int, str]:
        """Processes that this pod has started, the agent among them, with their command lines."""
        marker = f"{MARKER}={self.folder}".encode()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if marker in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {pid: line for pid, line in found.items() if line}

    async def nothing_lives(self) -> None:
        await wait_until_async(lambda: f"still alive: {self.living()}", lambda: not self.living())

    def destroy(self) -> None:
        """SIGKILL whatever is left, so that a failing test leaves nothing."""
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def a_plan(n: int = 1, *, processes: int = 1, term: int = 1, boot: int = 0, **changes: Any) -> Plan:
    """A world of this one pod."""
    member = Member(slot=0, incarnation=1, pod_uid="pod-0", address="127.0.0.1", processes=processes)
    values: dict[str, Any] = {"attempt": 1, "members": (member,), "store_host": "127.0.0.1", "store_port": 1}
    return Plan(world_id=WorldId(term, boot, n), **values | changes)


def rank(report: AgentReport, number: int) -> RankReport:
    return next(rank for rank in report.ranks if rank.rank == number)


def exit_of(report: AgentReport, number: int = 0) -> ProcessExit:
    found = rank(report, number).exit
    assert found is not None
    return found
