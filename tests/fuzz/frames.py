"""Frames, and what is none, on the sockets of agents (29401) and of ranks.

A case is a way to speak, and the bytes. `agents`: the coordinator's own protocol and decisions, on a
transport in memory; time passes at the end, and an agent of the other slot is served all the same.
`agents-live`: the same cases over its real port. `ranks`: lines on a rank's real socket, and the agent's
state machine behind it. Frames with the job's token are not trusted either: a rank of the job can read it.
"""

from __future__ import annotations

import asyncio
import io
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, redirect_stderr, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from lab.coordinator.link import TOKEN
from lab.coordinator.reports import agent, config, raised
from tests.agent.life import Life, world_id
from tests.fuzz import mutations
from tests.fuzz.campaign import Attempt, Campaign

from ropeteam_trainer.agent.machine import metrics as agent_metrics
from ropeteam_trainer.agent.machine.events import RankMessage
from ropeteam_trainer.agent.processes.ranksocket import RankSocket
from ropeteam_trainer.contract import LEASES, codec, wire
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.desired import Desired, SlotDesired
from ropeteam_trainer.contract.local import FromRank, Served, ToRank
from ropeteam_trainer.contract.messages import (
    LEASE,
    Problem,
    RankPhase,
    RankReport,
    Shard,
    StoreOffer,
)
from ropeteam_trainer.contract.world import CheckpointRef, FailReason, Member, Plan, ShardFile, WorldId
from ropeteam_trainer.coordinator.agentconnection import AgentConnection
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.metrics import render
from ropeteam_trainer.coordinator.server import Coordinator, listen

_BETWEEN = b"\0|\0"
_WITH_TOKEN, _OLDER, _OTHER_TOKEN, _ALTERED, _UNAUTHENTICATED = b"T", b"O", b"W", b"A", b"S"
_WAYS = (*(_WITH_TOKEN,) * 6, _OLDER, _OTHER_TOKEN, _ALTERED, _UNAUTHENTICATED)
DESIRED = Desired(1, 1, 1, {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in (0, 1)}, allowance=5)
REF, FILE = CheckpointRef(3, WorldId(1, 0, 1), "d" * 64, "run"), ShardFile("__0_0.distcp", 9, "f" * 64)


@cache
def reports() -> tuple[Any, ...]:
    """Of an agent that registers, trains, has saved, and lost a rank."""
    members = tuple(Member(slot, 1, f"pod-{slot}-1", f"10.0.0.{slot + 1}", 1) for slot in (0, 1))
    plan = Plan(WorldId(1, 0, 1), 1, members, "10.0.0.1", 29500, (REF,))
    first = agent(0, contract=LEASES, number=1)
    trains = replace(
        first,
        plan=plan,
        stopped=False,
        ranks=(RankReport(0, RankPhase.RUNNING, 7, 4),),
        store=StoreOffer(plan.world_id, "10.0.0.1", 29500),
        feature_level=2,
        restored=REF,
        ancestors=(REF,),
    )
    saved = replace(trains, shards=(Shard(0, plan.world_id, 10, (FILE,)),), granted=REF, committed=REF)
    lost = replace(
        trains,
        stopped=True,
        ranks=(RankReport(0, RankPhase.EXITED, 7, 4, raised()),),
        problem=Problem(FailReason.CHECKPOINT_NOT_WRITABLE, "no space", transient=True),
        terminating=True,
        superseded=WorldId(2, 0, 1),
        completed=plan.world_id,
    )
    return tuple(
        codec.to_plain(each) for each in (first, trains, saved, lost, replace(trains, plan=plan.part(0)))
    )


def draw(chance: Random) -> bytes:
    bodies = []
    for _ in range(chance.choice((1, 4, 16))):
        plain = chance.choice(reports())
        match chance.choice(("bent", "bent", "bent", "good", "lease", "damaged")):
            case "bent":
                bodies.append(
                    mutations.written(
                        mutations.bent(chance, plain, lambda path: len(path) == 1 and _names(chance, path))
                    )
                )
            case "good":
                bodies.append(mutations.written(plain))
            case "lease":
                bodies.append(LEASE)
            case _:
                bodies.append(mutations.damaged(chance, mutations.written(plain)))
    return chance.choice(_WAYS) + _BETWEEN.join(bodies)


def _names(chance: Random, path: mutations.Path) -> bool:
    """Mostly it is this job's: else nothing else of a report is looked at."""
    return (
        path[0] in ("slot", "incarnation", "pod_uid", "job_uid", "term", "contract") and chance.random() < 0.9
    )


class Speech:
    """Bytes over one connection. `nonce`: the coordinator's."""

    def __init__(self, case: bytes, nonce: bytes) -> None:
        self.way, self._chance = case[:1], Random(case)
        mine, key = b"m" * wire.NONCE_SIZE, b"other" if self.way == _OTHER_TOKEN else TOKEN
        self.greeting = b"" if self.way in (_OLDER, _UNAUTHENTICATED) else wire.ANSWER + mine
        key = wire.session_key(key, mine) if self.greeting else key
        self._sealer = wire.Sealer(key, nonce, wire.TO_COORDINATOR)

    def frame(self, body: bytes) -> bytes:
        if self.way == _UNAUTHENTICATED:
            return body
        frame = self._sealer.seal(body[: wire.MAX_BODY])
        return (
            mutations.damaged(self._chance, frame)
            if self.way == _ALTERED and self._chance.random() < 0.5
            else frame
        )


def bodies_of(case: bytes) -> list[bytes]:
    return case[1:].split(_BETWEEN)


class Pipe(asyncio.Transport):
    """A connection in memory."""

    def __init__(self, coordinator: Coordinator, case: bytes) -> None:
        super().__init__({"peername": ("10.0.0.9", 1)})
        self.protocol, self.sent, self.is_open = AgentConnection(coordinator), b"", True
        self.protocol.connection_made(self)
        self.speech = Speech(case, self.sent[len(wire.HELLO) :])
        self.feed(self.speech.greeting)

    def write(self, data: Any) -> None:
        self.sent = bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_open = False

    def feed(self, data: bytes) -> None:
        while data and self.is_open:
            buffer = self.protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size], data = data[:size], data[size:]
            self.protocol.buffer_updated(size)


class Clock:
    """`slept`: time that passed beside the loop's."""

    slept = 0.0

    def __call__(self) -> float:
        return self.slept


async def in_memory(case: bytes) -> list[str]:
    clock = Clock()
    coordinator = _coordinator(clock)
    pipe, ended = Pipe(coordinator, case), list[str]()
    for body in bodies_of(case):
        pipe.feed(pipe.speech.frame(body))
        ended.append("taken" if pipe.is_open else "refused")
        if not pipe.is_open:
            pipe = Pipe(coordinator, case)
    await asyncio.sleep(0)
    served(coordinator)
    for clock.slept in (3.0, 60.0):
        coordinator._tick()
    encode_report(coordinator)
    coordinator.stop()
    return ended


def _coordinator(clock: Clock) -> Coordinator:
    settings = config(checkpoint=True, timeouts=config().timeouts)
    log = Log(lambda _: None)
    coordinator = Coordinator(settings, 0, TOKEN, log, lambda: 1.7e9, Random(0), clock)
    coordinator.apply_desired(DESIRED)
    return coordinator


def served(coordinator: Coordinator) -> None:
    """The agent of the other slot stays, whether or not there are orders yet: an agent that knows of a world,
    or of a later term, waits."""
    pipe = Pipe(coordinator, _WITH_TOKEN)
    pipe.feed(pipe.speech.frame(codec.encode(agent(1, contract=LEASES, number=1))))
    coordinator._process_reports()
    assert pipe.is_open


def encode_report(coordinator: Coordinator) -> None:
    """Answers to the operator and to Prometheus."""
    report = coordinator.job_report()
    codec.encode(report)
    render(report, coordinator.state.config)


@asynccontextmanager
async def _memory() -> AsyncIterator[Attempt]:
    yield in_memory


@asynccontextmanager
async def _live() -> AsyncIterator[Attempt]:
    async def attempt(case: bytes) -> list[str]:
        coordinator = _coordinator(Clock())
        server, port = await listen(lambda: AgentConnection(coordinator), "127.0.0.1", 0)
        try:
            for body in bodies_of(case):
                await _send(port, case, body)
            served(coordinator)
            encode_report(coordinator)
        finally:
            server.close()
            coordinator.stop()
        return ["sent"] * len(bodies_of(case))

    yield attempt


async def _send(port: int, case: bytes, body: bytes) -> None:
    """Each over a connection of its own, to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hello = await reader.readexactly(len(wire.HELLO) + wire.NONCE_SIZE)
    speech = Speech(case, hello[len(wire.HELLO) :])
    with suppress(ConnectionError):
        writer.write(speech.greeting + speech.frame(body))
        writer.write_eof()
        await reader.read()
    writer.transport.abort()


LINES = tuple(
    codec.to_plain(each)
    for each in (
        FromRank(hello_pid=7, rank=0, feature_level=2),
        FromRank(total_steps=90, loss="0.5", restored=REF),
        FromRank(shard_step=10, shard_files=(FILE,)),
        FromRank(paused=3, drained=3, left=True, served=Served(1, 2, 3)),
        FromRank(error_type="ValueError", error_class="builtins.ValueError", fingerprint="x", message="bad"),
    )
)


def draw_lines(chance: Random) -> bytes:
    lines = []
    for _ in range(chance.choice((1, 4, 16))):
        text = mutations.written(mutations.bent(chance, chance.choice(LINES)))
        lines.append(mutations.damaged(chance, text) if chance.random() < 0.1 else text)
    return b"\n".join(lines)


@asynccontextmanager
async def _ranks() -> AsyncIterator[Attempt]:
    loop = asyncio.get_running_loop()

    async def attempt(case: bytes) -> list[str]:
        life = Life(checkpoint=CheckpointConfig("/c")).running()
        received, ended = list[FromRank](), list[str]()
        with closing(RankSocket(folder / "rank.sock", received.append)) as rank_socket:
            for line in case.split(b"\n"):
                with socket.socket(socket.AF_UNIX) as rank:
                    rank.connect(str(folder / "rank.sock"))
                    rank.setblocking(False)
                    with suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
                        await loop.sock_sendall(rank, line + b"\n")
                    rank_socket.send(ToRank(pause=True))
                    rank_socket.drain()
                    ended.append("taken" if rank_socket._buffers else "refused")
                rank_socket.drain()
        for each in received:
            life.receives(RankMessage(world_id(1), 0, each))
        life.wait(1)
        codec.encode(life.died(0, 1).report)
        agent_metrics.render(life.state, agent_metrics.updated_counts({}, life.state), 0.0)
        return ended

    with tempfile.TemporaryDirectory() as name, redirect_stderr(io.StringIO()):
        folder = Path(name)
        yield attempt


CAMPAIGNS = (
    Campaign("agents", "frames", 1_000_000, draw, _memory),
    Campaign("agents-live", "frames", 20_000, draw, _live),
    Campaign("ranks", "frames", 1_000_000, draw_lines, _ranks),
)
