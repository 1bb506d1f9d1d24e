"""One TCP connection of an agent: frames in, reports and leases to the Coordinator (server.py), orders out.

Limits: a connection is of one pod. A malformed frame ends its own connection with a line in the log, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from ropeteam_trainer.contract import LEASES, codec, grantchunks, wire
from ropeteam_trainer.contract.errors import ProtocolError
from ropeteam_trainer.contract.fence import answer_seconds
from ropeteam_trainer.contract.messages import LEASE, AgentReport, Grant, Orders, lease_answer
from ropeteam_trainer.contract.world import CheckpointRef
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.orders import Reply
from ropeteam_trainer.coordinator.membership.state.events import Pod, pod_of

if TYPE_CHECKING:
    from ropeteam_trainer.coordinator.server import Coordinator

FIRST_REPORT_SECONDS = 10.0
"""A connection without a report by then is closed. Long, because agents of a whole job connect at once:
unauthenticated connections are closed earlier if their places are needed."""
BYTES_PER_PLACE = 64 << 10
"""A connection that sends more before it is authenticated takes another place: a first report can be long."""
RESEND_SECONDS = 1.0
"""Time after which orders that the agent has not applied are sent again."""
MOST_UNSENT = 4 << 20
"""Unsent bytes per connection, for an agent that does not read."""


class AgentConnection(asyncio.BufferedProtocol):
    """One connection of an agent. Unauthenticated until its first genuine frame, mostly an empty one; without
    a pod until its first report.

    Order: greeting with our nonce -> the agent's nonce -> authentic frames, each a report or a lease ->
    orders and answers. Anything else ends the connection with a line in the log (`end`). A BufferedProtocol,
    with one buffer for all connections: for an asyncio.Protocol 256 KiB are allocated and freed per lease.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.report: AgentReport | None = None
        self.pod: Pod | None = None
        self._peer = ""
        self._is_closed = False
        self._sent: Reply | None = None
        self._sent_at = 0.0
        """Reply and time of the last orders. None: the next reply is sent even if it is equal."""
        self._written_at = float("-inf")
        """Time at which the last frame of any kind was sent."""
        self._number = 0
        """Number of the last orders on this connection."""
        self._granted: CheckpointRef | None = None
        self._granted_bytes = 0
        """The grant whose files were sent on this connection, and their bytes."""
        self._report_number = 0
        """Number of the last report, or lease, on this connection."""
        self._received = b""
        """Bytes received before it was known whether the agent sends a nonce."""
        self._is_unauthenticated = True
        """No genuine frame was received yet."""
        self._unauthenticated_bytes = 0
        """Bytes received until then."""
        self._opener: wire.Opener | None = None
        self._reader = codec.Reader(AgentReport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting, and take a place among unauthenticated connections; at their limit that ends an
        older one, or this one."""
        self._transport = cast(asyncio.Transport, transport)
        self._address, port = transport.get_extra_info("peername")[:2]
        self._peer = f"{self._address}:{port}"
        greeting = wire.greeting(self._coordinator.chance.randbytes(wire.NONCE_SIZE))
        self._nonce = greeting[len(wire.HELLO) :]
        loop = asyncio.get_running_loop()
        reason = f"no report was received for {FIRST_REPORT_SECONDS:g} s"
        self._first_report_timer = loop.call_later(FIRST_REPORT_SECONDS, self.end, reason)
        self._coordinator.add_connection(self)
        self._coordinator.unauthenticated.admit(self._address, self._evict)
        self._transport.write(greeting)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's name)
        """The shared buffer; `buffer_updated` copies from it before any other connection reads."""
        return self._coordinator.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes: nonce first, then frames. A frame may end the connection, and the rest is
        then ignored. While the coordinator is late, reports that a later one in this read replaces are not
        decoded. An empty frame is a lease, except as the first one: then it only proves the token."""
        data = bytes(self._coordinator.buffer[:nbytes])
        if self._is_unauthenticated:
            self._count_unauthenticated_bytes(nbytes)
        if self._opener is None:
            self._received += data
            if (answer := wire.parse_answer(self._coordinator.token, self._received)) is None:
                return
            key, data = answer
            self._opener = wire.Opener(key, self._nonce, wire.TO_COORDINATOR)
            self._sealer = wire.Sealer(key, self._nonce, wire.TO_AGENT)
        try:
            bodies: Iterable[bytes] = self._opener.feed(data)
            if self._coordinator.is_late:
                bodies = _without_replaced_reports(list(bodies))
            for body in bodies:
                known = self._note_genuine_frame()
                if not self._is_closed and body != LEASE:
                    self._take_report(self._reader.decode(body))
                elif not self._is_closed and known:
                    self._take_lease()
        except ProtocolError as error:
            self.end(str(error))

    def _count_unauthenticated_bytes(self, nbytes: int) -> None:
        """Count bytes, and take another place for each BYTES_PER_PLACE of them. READ_AT_ONCE is no more than
        that, so that one read takes one place at most."""
        before, self._unauthenticated_bytes = (
            self._unauthenticated_bytes,
            self._unauthenticated_bytes + nbytes,
        )
        if self._unauthenticated_bytes // BYTES_PER_PLACE > before // BYTES_PER_PLACE:
            self._coordinator.unauthenticated.admit(self._address, self._evict)

    def _evict(self) -> None:
        """End this connection, to make room for others."""
        self.end("not authenticated yet, and the limit of unauthenticated connections is reached")

    def _note_genuine_frame(self) -> bool:
        """Note a frame whose MAC is genuine: the agent has the token. Returns whether an earlier one was. The
        first frees the connection's places."""
        known, self._is_unauthenticated = not self._is_unauthenticated, False
        if not known:
            self._coordinator.unauthenticated.free(self._address, self._evict)
        return known

    def _take_report(self, report: AgentReport) -> None:
        """Take a report. Raises WireError if the pod is not that of the connection's first report."""
        if self.report is None:
            self._first_report_timer.cancel()
        pod = pod_of(report)
        if self.pod is not None and self.pod != pod:
            raise wire.WireError(
                f"a report of {_pod_text(pod)} came on the connection of {_pod_text(self.pod)}; it is "
                "closed, and the agent connects again. This is a bug of the agent, or a foreign process has "
                "the job's token"
            )
        self.report, self.pod, self._report_number = report, pod, report.number
        self._coordinator.take_report(self, report)

    def _take_lease(self) -> None:
        """Take a lease, which counts as the report of the next number. Raises WireError before any report."""
        if self.report is None:
            raise wire.WireError("a lease was received before any report")
        self._report_number += 1
        self._coordinator.take_lease(self, self.report)

    def check_applied_orders(self, number: int, now: float) -> bool:
        """Whether the agent has applied the newest orders on this connection. `number`: as it reports. If not
        for RESEND_SECONDS, the last reply is dropped: the next reply is sent even if it is equal."""
        applied = number == self._number
        if not applied and now > self._sent_at + RESEND_SECONDS:
            self._sent = None
        return applied

    def answer_if_due(self, state: membership.CoordinatorState, now: float) -> None:
        """Answer the newest report without orders, if nothing was sent for `answer_seconds`: agents without
        answers end their ranks. Not without a lease (`may_answer`)."""
        patience = answer_seconds(state.config.timeouts.lost)
        if not self._report_number or now - self._written_at < patience or self._is_closed:
            return
        if not membership.may_answer(state, now):
            return
        orders = Orders(state.config.term, state.boot, self._number, answers=self._report_number, same=True)
        self._write_frame(lease_answer(orders) if self._supports_leases else codec.encode(orders), now)

    def send_if_changed(self, reply: Reply | None, now: float) -> None:
        """Send orders, if they differ from the last ones on this connection. None: nothing is sent. The first
        refusal is logged."""
        if reply is None or reply == self._sent or self._is_closed:
            return
        refused = reply.orders.refused
        if refused and (self._sent is None or not self._sent.orders.refused):
            self._coordinator.log.write("refused", peer=self._peer, agent=self.pod, reason=refused)
        self._sent, self._sent_at, self._number = reply, now, self._number + 1
        if self._supports_leases:
            self._send_files(reply.orders.grant, now)
            reply = reply._replace(orders=grantchunks.without_files(reply.orders))
        self._write_frame(
            self._coordinator.encoder.encode(reply, self._number, self._report_number or None), now
        )

    def _send_files(self, grant: Grant | None, now: float) -> None:
        """Send the list of files of a new grant, in parts, before the orders with the grant: it may exceed
        one frame. The same grant is not sent twice on a connection."""
        if grant is None or grant.ref == self._granted:
            return
        self._granted, self._granted_bytes = grant.ref, 0
        for body in grantchunks.encoded_parts(grant):
            self._granted_bytes += len(body)
            self._write_frame(body, now)

    @property
    def _supports_leases(self) -> bool:
        """Whether the agent's release supports leases, short answers and parts of grants. False before its
        first report."""
        return self.report is not None and self.report.contract >= LEASES

    def _write_frame(self, body: bytes, now: float) -> None:
        """Send one frame. Ends the connection if the frame is too large, or the agent leaves more than
        MOST_UNSENT unread, beyond a large grant."""
        self._written_at = now
        try:
            frame = self._sealer.seal(body)
        except wire.WireError as error:
            self.end(str(error))
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MOST_UNSENT + 2 * self._granted_bytes:
            self.end("the agent does not read its orders")

    def end(self, reason: str) -> None:
        """Abort the connection, and log why. Idempotent. Its places are freed at once; `connection_lost`
        frees them again later, which changes nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._coordinator.log.write_limited("closed", peer=self._peer, agent=self.pod, reason=reason)
        self._transport.abort()
        self._release()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's name)
        """The connection has ended, by the agent, the network or `end`. Not logged: the agent's lease shows
        whether it is lost."""
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        """Cancel the timer, and remove this connection wherever it is registered. Idempotent."""
        self._first_report_timer.cancel()
        self._coordinator.unauthenticated.free(self._address, self._evict)
        self._coordinator.remove_connection(self)


def _pod_text(pod: Pod) -> str:
    return f"slot {pod.slot}, incarnation {pod.incarnation} (pod UID {pod.uid})"


def _without_replaced_reports(bodies: list[bytes]) -> list[bytes]:
    """The newest report and the leases after it; if there is no report, all. A report carries its agent's
    whole state, so a coordinator that falls behind need not decode the ones before.
    """
    reports = [at for at, body in enumerate(bodies) if body != LEASE]
    return bodies[reports[-1] :] if reports else bodies
