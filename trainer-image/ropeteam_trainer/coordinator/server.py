"""The coordinator around its judgement: the state, the clock, and one TCP connection per agent.

Order: bytes -> frames (authentic or the connection ends) -> reports and leases are gathered from all
connections that had something to read -> one `membership.step` for all of them -> every agent whose orders
changed gets them in the same instant. So no lease is judged while words of its agent lie unread, and the more
there is to do, the less each of them costs. What is malformed ends its own connection with a line in the log,
nothing more.
Limits: nothing is decided here. One connection speaks for one pod, and the newest one wins. Who has not shown
the job's token takes no place from those who have (contract/preauth.py), and holds 64 KiB of memory per
place. asyncio sets TCP_NODELAY.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from random import Random, SystemRandom
from typing import cast

from ropeteam_trainer.contract import LEASES, codec, grantchunks, wire
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.fence import answer_seconds
from ropeteam_trainer.contract.messages import LEASE, AgentReport, Grant, Orders, answer
from ropeteam_trainer.contract.preauth import BACKLOG, Strangers
from ropeteam_trainer.contract.world import CheckpointRef
from ropeteam_trainer.coordinator.encoding import Words
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.orders import Reply
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.state import Pod, pod_of
from ropeteam_trainer.system.clocks import asleep_seconds

FIRST_REPORT_SECONDS = 10.0
"""A connection that has not shown the job's token by then is closed. Long, for agents of a whole job come at
once: strangers leave earlier where their places are needed."""
SPARE_PLACES = 64
"""Beyond one for each agent of the job, for connections that have not shown its token."""
BYTES_PER_PLACE = 64 << 10
"""Who sends more before it has shown the token takes another place: a first report can be long."""
RESEND_SECONDS = 1.0
_CHANCE = SystemRandom()
READ_AT_ONCE = 64 << 10
MOST_UNSENT = 4 << 20
"""Bytes that an agent may leave unread."""


class Coordinator:
    """The state of one job, and whoever is connected. `wall`: unix time; `chance`: for nonces; `asleep`: for
    how long the machine has been suspended, which the clock of the loop leaves out."""

    def __init__(
        self,
        config: CoordinatorConfig,
        boot: int,
        token: bytes,
        log: Log,
        wall: Callable[[], float] = time.time,
        chance: Random = _CHANCE,
        asleep: Callable[[], float] = asleep_seconds,
    ) -> None:
        self.token, self.log, self._wall, self.chance = token, log, wall, chance
        self.strangers = Strangers(config.slots + SPARE_PLACES)
        self.buffer = memoryview(bytearray(READ_AT_ONCE))
        self._loop, self._asleep = asyncio.get_running_loop(), asleep
        self.state = membership.initial(config, boot, self.now())
        self.words = Words()
        self._lines: dict[AgentLine, None] = {}
        """In the order in which they came."""
        self._by_slot: dict[int, dict[AgentLine, None]] = {}
        """Those that have reported."""
        self._told: dict[AgentLine, bool] = {}
        """Who has something new, and has it applied its newest orders."""
        self._leases: dict[Pod, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def report(self) -> JobReport:
        return membership.job_report(self.state, self.now())

    def now(self) -> float:
        return self._loop.time() + self._asleep()

    @property
    def is_late(self) -> bool:
        return self.state.lateness.most > 0 and self.state.lateness.holds(self.now())

    def desire(self, desired: Desired) -> JobReport:
        self._take_turn()
        self._apply(membership.DesiredReceived(desired))
        return self.report()

    def heard(self, line: AgentLine, report: AgentReport) -> None:
        """A report came on a connection; the first one on it displaces older connections of that pod."""
        others = self._by_slot.setdefault(report.slot, {})
        for other in [each for each in others if each is not line and each.pod == line.pod]:
            other.end("the same pod came on a newer connection")
        others[line] = None
        self._gather(line, line.note_seen(report.orders_seen, self.now()))

    def renewed(self, line: AgentLine, report: AgentReport) -> None:
        """The agent says that nothing has changed. It may matter to us all the same."""
        now, pod = self.now(), pod_of(report)
        applied = line.note_seen(report.orders_seen, now)
        if not applied or not slotindex.lease_is_enough(self.state, pod):
            self._gather(line, applied)
            return
        self._leases[pod] = now
        line.answer(self.state, now)

    def _gather(self, line: AgentLine, applied: bool) -> None:
        if not self._told:
            self._loop.call_soon(self._take_turn)
        self._told[line] = applied

    def _take_turn(self) -> None:
        """Judge all that has been read."""
        told, self._told = self._told, {}
        reports = tuple(
            membership.ReportReceived(line.report, applied) for line, applied in told.items() if line.report
        )
        if reports:
            self._apply(membership.ReportsReceived(reports), told)
        for line in told:
            line.answer(self.state, self.now())

    def _tick(self) -> None:
        self._take_turn()
        self._apply(membership.Tick())

    def opened(self, line: AgentLine) -> None:
        self._lines[line] = None

    def closed(self, line: AgentLine) -> None:
        self._lines.pop(line, None)
        if line.report:
            self._by_slot.get(line.report.slot, {}).pop(line, None)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        for line in list(self._lines):
            line.end("the coordinator stops")

    def _apply(self, event: membership.Event, told: Iterable[AgentLine] = ()) -> None:
        now, unix_ms = self.now(), int(self._wall() * 1000)
        if self._leases:
            leases, self._leases = self._leases, {}
            self.state = membership.step(self.state, membership.LeasesRenewed(leases), now, unix_ms)
        before, self.state = self.state, membership.step(self.state, event, now, unix_ms)
        replies = membership.Replies(self.state, now)
        for line in self._concerned(membership.affected(before, self.state), told):
            if line.report:
                line.send(replies.to(line.report), now)
        self._tell_why(now)
        if self._timer:
            self._timer.cancel()
        wake = membership.wake_at(self.state, now)
        self._timer = self._loop.call_later(wake - now, self._tick) if wake is not None else None

    def _concerned(self, whose: slotset.Slots, told: Iterable[AgentLine]) -> list[AgentLine]:
        """The connections whose orders may have changed."""
        if whose == slotset.ALL:
            return list(self._lines)
        lines = dict.fromkeys(told)
        for slot in slotset.each(whose):
            lines.update(self._by_slot.get(slot, {}))
        return list(lines)

    def _tell_why(self, now: float) -> None:
        epoch = self.state.world.plan.epoch if self.state.world else None
        why = membership.why(self.state, now)
        self.log.when_new("decision", phase=self.state.phase.value, world=epoch, why=why)


class AgentLine(asyncio.BufferedProtocol):
    """One connection. Until its first genuine frame, mostly an empty one, it is a stranger's, until its first
    report nobody's.

    All read into one buffer: for an asyncio.Protocol 256 KiB are allotted and freed for each lease.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.report: AgentReport | None = None
        self.pod: Pod | None = None
        self._peer = ""
        self._over = False
        self._sent: Reply | None = None
        self._sent_at = 0.0
        self._spoke_at = float("-inf")
        """When the last frame of any kind was sent."""
        self._number = 0
        self._granted: CheckpointRef | None = None
        self._large = 0
        """The grant whose files were sent on this connection, and their bytes."""
        self._told = 0
        """Number of its last report, or lease."""
        self._received = b""
        """Before its nonce, or the want of one, was known."""
        self._stranger = True
        """No frame of it was genuine yet."""
        self._size = 0
        """Bytes received while it was."""
        self._opener: wire.Opener | None = None
        self._reader = codec.Reader(AgentReport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address, port = transport.get_extra_info("peername")[:2]
        self._peer = f"{self._address}:{port}"
        greeting = wire.greeting(self._coordinator.chance.randbytes(wire.NONCE_SIZE))
        self._nonce = greeting[len(wire.HELLO) :]
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(FIRST_REPORT_SECONDS, self.end, "no report came")
        self._coordinator.opened(self)
        self._coordinator.strangers.take(self._address, self._make_room)
        self._transport.write(greeting)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's name)
        return self._coordinator.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._coordinator.buffer[:nbytes])
        if self._stranger:
            self._weigh(nbytes)
        if self._opener is None:
            self._received += data
            if (answer := wire.answered(self._coordinator.token, self._received)) is None:
                return
            key, data = answer
            self._opener = wire.Opener(key, self._nonce, wire.TO_COORDINATOR)
            self._sealer = wire.Sealer(key, self._nonce, wire.TO_AGENT)
        try:
            bodies: Iterable[bytes] = self._opener.feed(data)
            if self._coordinator.is_late:
                bodies = _newest(list(bodies))
            for body in bodies:
                known = self._known()
                if not self._over and body != LEASE:
                    self._heard(self._reader.decode(body))
                elif not self._over and known:
                    self._renewed()
        except (wire.WireError, codec.DecodeError) as error:
            self.end(str(error))

    def _weigh(self, nbytes: int) -> None:
        """READ_AT_ONCE is at most a place."""
        before, self._size = self._size, self._size + nbytes
        if self._size // BYTES_PER_PLACE > before // BYTES_PER_PLACE:
            self._coordinator.strangers.take(self._address, self._make_room)

    def _make_room(self) -> None:
        self.end("it has not shown the token, and others need its place")

    def _known(self) -> bool:
        """By a genuine frame: it has the token. False: this one was the first."""
        known, self._stranger = not self._stranger, False
        if not known:
            self._coordinator.strangers.free(self._address, self._make_room)
        return known

    def _heard(self, report: AgentReport) -> None:
        if self.report is None:
            self._patience.cancel()
        if self.pod not in (None, pod_of(report)):
            raise wire.WireError(f"a connection of {self.pod} reported as {pod_of(report)}")
        self.report, self.pod, self._told = report, pod_of(report), report.number
        self._coordinator.heard(self, report)

    def _renewed(self) -> None:
        if self.report is None:
            raise wire.WireError("a lease before any report")
        self._told += 1
        self._coordinator.renewed(self, self.report)

    def note_seen(self, number: int, now: float) -> bool:
        """Has this agent applied the newest orders? If it should have long ago, they are sent again."""
        applied = number == self._number
        if not applied and now > self._sent_at + RESEND_SECONDS:
            self._sent = None
        return applied

    def answer(self, state: membership.State, now: float) -> None:
        """A sign of life for an agent that has heard nothing for a while."""
        patience = answer_seconds(state.config.timeouts.lost)
        if not self._told or now - self._spoke_at < patience or self._over:
            return
        if not membership.may_answer(state, now):
            return
        orders = Orders(state.config.term, state.boot, self._number, answers=self._told, same=True)
        self._write(answer(orders) if self._modern else codec.encode(orders), now)

    def send(self, reply: Reply | None, now: float) -> None:
        """Orders, if they say something new. None: nothing to say."""
        if reply is None or reply == self._sent or self._over:
            return
        refused = reply.orders.refused
        if refused and (self._sent is None or not self._sent.orders.refused):
            self._coordinator.log.say("refused", peer=self._peer, agent=self.pod, reason=refused)
        self._sent, self._sent_at, self._number = reply, now, self._number + 1
        if self._modern:
            self._send_files(reply.orders.grant, now)
            reply = reply._replace(orders=grantchunks.without_files(reply.orders))
        self._write(self._coordinator.words.encode(reply, self._number, self._told or None), now)

    def _send_files(self, grant: Grant | None, now: float) -> None:
        """Those of a new grant, before it."""
        if grant is None or grant.ref == self._granted:
            return
        self._granted, self._large = grant.ref, 0
        for body in grantchunks.cut(grant):
            self._large += len(body)
            self._write(body, now)

    @property
    def _modern(self) -> bool:
        return self.report is not None and self.report.contract >= LEASES

    def _write(self, body: bytes, now: float) -> None:
        self._spoke_at = now
        try:
            frame = self._sealer.seal(body)
        except wire.WireError as error:
            self.end(str(error))
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MOST_UNSENT + 2 * self._large:
            self.end("it reads nothing")

    def end(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._coordinator.log.seldom("closed", peer=self._peer, agent=self.pod, reason=reason)
        self._transport.abort()
        self._forget()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's name)
        self._over = True
        self._forget()

    def _forget(self) -> None:
        self._patience.cancel()
        self._coordinator.strangers.free(self._address, self._make_room)
        self._coordinator.closed(self)


def _newest(bodies: list[bytes]) -> list[bytes]:
    """Without the reports that a later one replaces: each is its agent's whole truth. Whoever falls behind
    has the less to read, the more there is.
    """
    reports = [at for at, body in enumerate(bodies) if body != LEASE]
    return bodies[reports[-1] :] if reports else bodies


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[asyncio.base_events.Server, int]:
    """The server, and the port that it got."""
    server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=BACKLOG)
    return server, server.sockets[0].getsockname()[1]
