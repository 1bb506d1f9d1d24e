"""The coordinator around its decisions: the state, the clock, and one TCP connection per agent.

Order: bytes -> frames (authentic or the connection ends) -> reports and leases of all readable connections
are collected -> one `membership.step` for all of them -> orders are sent at once to every agent whose orders
changed. So no lease expires while bytes of its agent are unread, and under load each report costs less. A
malformed frame ends its own connection with a line in the log, no more.
Limits: nothing is decided here. One connection is of one pod, and the newest one wins. Unauthenticated
connections take no place from authenticated ones (contract/preauth.py), and hold 64 KiB of memory per place.
asyncio sets TCP_NODELAY.
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
from ropeteam_trainer.contract.errors import ProtocolError
from ropeteam_trainer.contract.fence import answer_seconds
from ropeteam_trainer.contract.messages import LEASE, AgentReport, Grant, Orders, answer
from ropeteam_trainer.contract.preauth import BACKLOG, UnauthenticatedConnections
from ropeteam_trainer.contract.world import CheckpointRef
from ropeteam_trainer.coordinator.encoding import OrdersEncoder
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.orders import Reply
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Pod, pod_of
from ropeteam_trainer.system.clocks import asleep_seconds

FIRST_REPORT_SECONDS = 10.0
"""A connection without a report by then is closed. Long, because agents of a whole job connect at once:
unauthenticated connections are closed earlier if their places are needed."""
SPARE_PLACES = 64
"""Places for unauthenticated connections beyond one for each agent of the job."""
BYTES_PER_PLACE = 64 << 10
"""A connection that sends more before it is authenticated takes another place: a first report can be long."""
RESEND_SECONDS = 1.0
_RANDOM = SystemRandom()
READ_AT_ONCE = 64 << 10
MOST_UNSENT = 4 << 20
"""Unsent bytes per connection, for an agent that does not read."""


class Coordinator:
    """The state of one job, and its connections. `wall`: unix time; `chance`: for nonces; `asleep`: how long
    the machine has been suspended, which the clock of the loop leaves out."""

    def __init__(
        self,
        config: CoordinatorConfig,
        boot: int,
        token: bytes,
        log: Log,
        wall: Callable[[], float] = time.time,
        chance: Random = _RANDOM,
        asleep: Callable[[], float] = asleep_seconds,
    ) -> None:
        self.token, self.log, self._wall, self.chance = token, log, wall, chance
        self.unauthenticated = UnauthenticatedConnections(config.slots + SPARE_PLACES)
        self.buffer = memoryview(bytearray(READ_AT_ONCE))
        self._loop, self._asleep = asyncio.get_running_loop(), asleep
        self.state = membership.initial_state(config, boot, self.now())
        self.encoder = OrdersEncoder()
        self._lines: dict[AgentConnection, None] = {}
        """Connections in the order in which they came."""
        self._by_slot: dict[int, dict[AgentConnection, None]] = {}
        """Connections that have sent a report, by slot."""
        self._unprocessed: dict[AgentConnection, bool] = {}
        """Connections with an unprocessed report, and whether the agent has applied its newest orders."""
        self._leases: dict[Pod, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def report(self) -> JobReport:
        return membership.job_report(self.state, self.now())

    def now(self) -> float:
        return self._loop.time() + self._asleep()

    @property
    def is_late(self) -> bool:
        return self.state.lateness.most > 0 and self.state.lateness.is_late(self.now())

    def desire(self, desired: Desired) -> JobReport:
        self._process_reports()
        self._apply(membership.DesiredReceived(desired))
        return self.report()

    def take_report(self, line: AgentConnection, report: AgentReport) -> None:
        """Take a report; the first one on a connection displaces older connections of that pod."""
        others = self._by_slot.setdefault(report.slot, {})
        for other in [each for each in others if each is not line and each.pod == line.pod]:
            other.end("the same pod has a newer connection")
        others[line] = None
        self._enqueue(line, line.note_seen(report.applied_orders, self.now()))

    def take_lease(self, line: AgentConnection, report: AgentReport) -> None:
        """Take a lease: the report has not changed. It may still affect the state."""
        now, pod = self.now(), pod_of(report)
        applied = line.note_seen(report.applied_orders, now)
        if not applied or not slotindex.lease_is_enough(self.state, pod):
            self._enqueue(line, applied)
            return
        self._leases[pod] = now
        line.answer(self.state, now)

    def _enqueue(self, line: AgentConnection, applied: bool) -> None:
        if not self._unprocessed:
            self._loop.call_soon(self._process_reports)
        self._unprocessed[line] = applied

    def _process_reports(self) -> None:
        """Process all reports that have been read."""
        senders, self._unprocessed = self._unprocessed, {}
        reports = tuple(
            membership.ReportReceived(line.report, applied)
            for line, applied in senders.items()
            if line.report
        )
        if reports:
            self._apply(membership.ReportsReceived(reports), senders)
        for line in senders:
            line.answer(self.state, self.now())

    def _tick(self) -> None:
        self._process_reports()
        self._apply(membership.Tick())

    def opened(self, line: AgentConnection) -> None:
        self._lines[line] = None

    def closed(self, line: AgentConnection) -> None:
        self._lines.pop(line, None)
        if line.report:
            self._by_slot.get(line.report.slot, {}).pop(line, None)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        for line in list(self._lines):
            line.end("the coordinator stops")

    def _apply(self, event: membership.Event, senders: Iterable[AgentConnection] = ()) -> None:
        now, unix_ms = self.now(), int(self._wall() * 1000)
        if self._leases:
            leases, self._leases = self._leases, {}
            self.state = membership.step(self.state, membership.LeasesRenewed(leases), now, unix_ms)
        before, self.state = self.state, membership.step(self.state, event, now, unix_ms)
        replies = membership.Replies(self.state, now)
        for line in self._affected_lines(membership.affected_slots(before, self.state), senders):
            if line.report:
                line.send(replies.reply_to(line.report), now)
        self._log_decision(now)
        if self._timer:
            self._timer.cancel()
        wake = membership.wake_at(self.state, now)
        self._timer = self._loop.call_later(wake - now, self._tick) if wake is not None else None

    def _affected_lines(
        self, slots: slotset.Slots, senders: Iterable[AgentConnection]
    ) -> list[AgentConnection]:
        """The connections whose orders may have changed."""
        if slots == slotset.ALL:
            return list(self._lines)
        lines = dict.fromkeys(senders)
        for slot in slotset.each(slots):
            lines.update(self._by_slot.get(slot, {}))
        return list(lines)

    def _log_decision(self, now: float) -> None:
        world_id = self.state.world.plan.world_id if self.state.world else None
        why = self.state.why + self.state.lateness.suffix(now)
        self.log.write_if_changed("decision", phase=self.state.phase.value, world=world_id, why=why)


class AgentConnection(asyncio.BufferedProtocol):
    """One connection. Unauthenticated until its first genuine frame, mostly an empty one; without a pod until
    its first report.

    All connections read into one buffer: for an asyncio.Protocol 256 KiB are allocated and freed per lease.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.report: AgentReport | None = None
        self.pod: Pod | None = None
        self._peer = ""
        self._is_closed = False
        self._sent: Reply | None = None
        self._sent_at = 0.0
        self._written_at = float("-inf")
        """Time at which the last frame of any kind was sent."""
        self._number = 0
        self._granted: CheckpointRef | None = None
        self._granted_bytes = 0
        """The grant whose files were sent on this connection, and their bytes."""
        self._report_number = 0
        """Number of the last report, or lease, on this connection."""
        self._received = b""
        """Bytes received before it was known whether the agent sends a nonce."""
        self._is_unauthenticated = True
        """No genuine frame was received yet."""
        self._size = 0
        """Bytes received until then."""
        self._opener: wire.Opener | None = None
        self._reader = codec.Reader(AgentReport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address, port = transport.get_extra_info("peername")[:2]
        self._peer = f"{self._address}:{port}"
        greeting = wire.greeting(self._coordinator.chance.randbytes(wire.NONCE_SIZE))
        self._nonce = greeting[len(wire.HELLO) :]
        loop = asyncio.get_running_loop()
        self._first_report_timer = loop.call_later(FIRST_REPORT_SECONDS, self.end, "no report was received")
        self._coordinator.opened(self)
        self._coordinator.unauthenticated.admit(self._address, self._evict)
        self._transport.write(greeting)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's name)
        return self._coordinator.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._coordinator.buffer[:nbytes])
        if self._is_unauthenticated:
            self._count_bytes(nbytes)
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
                known = self._note_genuine_frame()
                if not self._is_closed and body != LEASE:
                    self._take_report(self._reader.decode(body))
                elif not self._is_closed and known:
                    self._take_lease()
        except ProtocolError as error:
            self.end(str(error))

    def _count_bytes(self, nbytes: int) -> None:
        """Count unauthenticated bytes, and take more places: at most one per read (READ_AT_ONCE)."""
        before, self._size = self._size, self._size + nbytes
        if self._size // BYTES_PER_PLACE > before // BYTES_PER_PLACE:
            self._coordinator.unauthenticated.admit(self._address, self._evict)

    def _evict(self) -> None:
        self.end("it has not authenticated, and others need its place")

    def _note_genuine_frame(self) -> bool:
        """Note a genuine frame: the agent has the token. False: this frame was the first."""
        known, self._is_unauthenticated = not self._is_unauthenticated, False
        if not known:
            self._coordinator.unauthenticated.free(self._address, self._evict)
        return known

    def _take_report(self, report: AgentReport) -> None:
        if self.report is None:
            self._first_report_timer.cancel()
        if self.pod not in (None, pod_of(report)):
            raise wire.WireError(f"a connection of {self.pod} reported as {pod_of(report)}")
        self.report, self.pod, self._report_number = report, pod_of(report), report.number
        self._coordinator.take_report(self, report)

    def _take_lease(self) -> None:
        if self.report is None:
            raise wire.WireError("a lease was received before any report")
        self._report_number += 1
        self._coordinator.take_lease(self, self.report)

    def note_seen(self, number: int, now: float) -> bool:
        """Whether the agent has applied the newest orders. If not for RESEND_SECONDS, they are sent again."""
        applied = number == self._number
        if not applied and now > self._sent_at + RESEND_SECONDS:
            self._sent = None
        return applied

    def answer(self, state: membership.State, now: float) -> None:
        """Send a sign of life to an agent that has received nothing for a while."""
        patience = answer_seconds(state.config.timeouts.lost)
        if not self._report_number or now - self._written_at < patience or self._is_closed:
            return
        if not membership.may_answer(state, now):
            return
        orders = Orders(state.config.term, state.boot, self._number, answers=self._report_number, same=True)
        self._write(answer(orders) if self._supports_leases else codec.encode(orders), now)

    def send(self, reply: Reply | None, now: float) -> None:
        """Send orders, if they differ from the last ones. None: no orders."""
        if reply is None or reply == self._sent or self._is_closed:
            return
        refused = reply.orders.refused
        if refused and (self._sent is None or not self._sent.orders.refused):
            self._coordinator.log.write("refused", peer=self._peer, agent=self.pod, reason=refused)
        self._sent, self._sent_at, self._number = reply, now, self._number + 1
        if self._supports_leases:
            self._send_files(reply.orders.grant, now)
            reply = reply._replace(orders=grantchunks.without_files(reply.orders))
        self._write(self._coordinator.encoder.encode(reply, self._number, self._report_number or None), now)

    def _send_files(self, grant: Grant | None, now: float) -> None:
        """Send the files of a new grant, before the grant itself."""
        if grant is None or grant.ref == self._granted:
            return
        self._granted, self._granted_bytes = grant.ref, 0
        for body in grantchunks.parts(grant):
            self._granted_bytes += len(body)
            self._write(body, now)

    @property
    def _supports_leases(self) -> bool:
        return self.report is not None and self.report.contract >= LEASES

    def _write(self, body: bytes, now: float) -> None:
        self._written_at = now
        try:
            frame = self._sealer.seal(body)
        except wire.WireError as error:
            self.end(str(error))
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MOST_UNSENT + 2 * self._granted_bytes:
            self.end("it does not read")

    def end(self, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._coordinator.log.write_limited("closed", peer=self._peer, agent=self.pod, reason=reason)
        self._transport.abort()
        self._release()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's name)
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        self._first_report_timer.cancel()
        self._coordinator.unauthenticated.free(self._address, self._evict)
        self._coordinator.closed(self)


def _newest(bodies: list[bytes]) -> list[bytes]:
    """The frames without reports that a later one replaces: each carries its agent's whole state. So a
    coordinator that falls behind has less to decode.
    """
    reports = [at for at, body in enumerate(bodies) if body != LEASE]
    return bodies[reports[-1] :] if reports else bodies


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[asyncio.base_events.Server, int]:
    """Start a server. Returns the server and its port."""
    server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=BACKLOG)
    return server, server.sockets[0].getsockname()[1]
