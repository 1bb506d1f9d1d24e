"""Agents without processes, thousands in one process, for benchmarks/coordinator.py.

They speak the real protocol on real sockets, apply orders at once, and renew their lease as real ones do.
Their reports are JSON and not messages of ours, so that they cost less than what they measure.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from multiprocessing.connection import Connection
from typing import Any, cast

from lab.coordinator.link import TOKEN
from lab.coordinator.reports import KILLED, SIGKILL, agent

from ropeteam_trainer.contract import LEASES, codec, wire
from ropeteam_trainer.contract.messages import LEASE

_GREETING = len(wire.HELLO) + wire.NONCE_SIZE
_ANSWER = 24
CONNECTING = 64
"""At the same time."""


class Crowd:
    """All agents of one process. `seen`: of each mark, how many agents have reached it, and when the last
    did."""

    def __init__(self, slots: range, port: int, lease: float) -> None:
        self.port, self.lease = port, lease
        self.buffer = memoryview(bytearray(1 << 18))
        self.fakes = [Fake(slot, self) for slot in slots]
        self.seen: dict[str, tuple[int, float]] = {}
        self.commands: dict[str, float] = {}
        """When a command of the benchmark was carried out."""

    async def connect(self) -> None:
        loop, some = asyncio.get_running_loop(), asyncio.Semaphore(CONNECTING)

        async def one(fake: Fake) -> None:
            async with some:
                await loop.create_connection(lambda: fake, "127.0.0.1", self.port)

        self.commands["connect"] = time.monotonic()
        await asyncio.gather(*map(one, self.fakes))

    def note(self, mark: str) -> None:
        self.seen[mark] = (self.seen.get(mark, (0, 0.0))[0] + 1, time.monotonic())

    def carry_out(self, command: str) -> None:
        self.commands[command] = time.monotonic()
        match command:
            case "steps" | "saves":
                for fake in self.fakes:
                    getattr(fake, command)()
            case "dies":
                self.fakes[-1].dies()


class Fake(asyncio.BufferedProtocol):
    """One agent, from its only connection to the end of the benchmark."""

    def __init__(self, slot: int, crowd: Crowd) -> None:
        self.slot, self._crowd = slot, crowd
        self.report: dict[str, Any] = codec.to_plain(agent(slot, contract=LEASES))
        self._received = bytearray()
        self._opener: wire.Opener | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's name)
        return self._crowd.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._crowd.buffer[:nbytes])
        if self._opener is None:
            self._received += data
            if len(self._received) < _GREETING:
                return
            self._greet(bytes(self._received[len(wire.HELLO) : _GREETING]))
            data = bytes(self._received[_GREETING:])
        assert self._opener
        for body in self._opener.feed(data):
            if body.startswith(b"{"):
                self._apply(json.loads(body))

    def _greet(self, nonce: bytes) -> None:
        mine = os.urandom(wire.NONCE_SIZE)
        key = wire.session_key(TOKEN, mine)
        self._sealer = wire.Sealer(key, nonce, wire.TO_COORDINATOR)
        self._opener = wire.Opener(key, nonce, wire.TO_AGENT)
        self._transport.write(wire.ANSWER + mine)
        self._send()
        first = self._crowd.lease * random.random()
        asyncio.get_running_loop().call_later(first, self._renew)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's name)
        self._crowd.note("cut off")

    def _renew(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._sealer.seal(LEASE))
            asyncio.get_running_loop().call_later(self._crowd.lease, self._renew)

    def _send(self, **changes: Any) -> None:
        self.report.update(changes)
        self.report["number"] += 1
        self._transport.write(self._sealer.seal(json.dumps(self.report, separators=(",", ":")).encode()))

    def _apply(self, orders: dict[str, Any]) -> None:
        """As tests/coordinator/timeline.py, which has messages instead of JSON."""
        plan, host, grant = orders.get("plan"), orders.get("host_store"), orders.get("grant")
        if not self.report["orders_seen"]:
            self._crowd.note("registered")
        changes: dict[str, Any] = {"orders_seen": orders["number"], "store": None}
        if host:
            changes["store"] = {"epoch": host, "host": self.report["address"], "port": 29500}
        if plan is None and not self.report["stopped"]:
            changes |= {"stopped": True, "ranks": [self._ended(KILLED)]}
        elif plan and plan["epoch"] != (self.report["plan"] or {}).get("epoch"):
            self._crowd.note("{term}.{boot}.{n}".format(**plan["epoch"]))
            changes |= {"stopped": False, "plan": plan, "rung": 2, "shards": []}
            changes["ranks"] = [{"rank": self.slot, "phase": "Starting"}]
        if grant:
            ref = grant["ref"]
            changes |= {"granted": ref, "committed": ref | {"digest": f"digest-{ref['step']}"}}
        if orders.get("lineage"):
            changes["shards"] = []
        self._send(**changes)

    def steps(self) -> None:
        self._send(ranks=[{"rank": self.slot, "phase": "Running", "step": 10, "steps_here": 10}])

    def saves(self) -> None:
        files = [{"name": f"__{self.slot}_{n}.distcp", "size": 10**9, "sha256": "f" * 64} for n in range(4)]
        shard = {"rank": self.slot, "epoch": self.report["plan"]["epoch"], "step": 10, "files": files}
        self._send(shards=[shard])

    def dies(self) -> None:
        self._send(ranks=[self._ended(SIGKILL)], stopped=True)

    def _ended(self, how: Any) -> dict[str, Any]:
        """The last report of the rank, which may have ended before."""
        rank: dict[str, Any]
        (rank,) = self.report["ranks"]
        return rank if rank.get("exit") else rank | {"phase": "Exited", "exit": codec.to_plain(how)}


def live(pipe: Connection, slots: range, port: int, lease: float, cores: set[int]) -> None:
    """A process of agents: carries out commands, and answers each with what was seen and when."""
    os.sched_setaffinity(0, cores)
    asyncio.run(_live(pipe, Crowd(slots, port, lease)))


async def _live(pipe: Connection, crowd: Crowd) -> None:
    over = asyncio.Event()

    def answer() -> None:
        command = pipe.recv()
        if command == "end":
            over.set()
        else:
            crowd.carry_out(command)
            pipe.send((crowd.commands, crowd.seen))

    asyncio.get_running_loop().add_reader(pipe.fileno(), answer)
    await crowd.connect()
    await over.wait()
