"""The coordinator around its decisions: the state, the clock, and the connections of agents.

Order: bytes -> frames (authentic or the connection ends) -> reports and leases of all readable connections
are collected -> one `membership.step` for all of them -> orders are sent at once to every agent whose orders
changed. So no lease expires while bytes of its agent are unread, and under load each report costs less.
Limits: nothing is decided here. Of several connections of one pod the newest one wins. Unauthenticated
connections take no place from authenticated ones (contract/preauth.py), and hold 64 KiB of memory per place.
asyncio sets TCP_NODELAY.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from random import Random, SystemRandom

from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.contract.preauth import BACKLOG, UnauthenticatedConnections
from ropeteam_trainer.coordinator.agentconnection import BYTES_PER_PLACE, AgentConnection
from ropeteam_trainer.coordinator.encoding import OrdersEncoder
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Pod, pod_of
from ropeteam_trainer.system.clocks import asleep_seconds

SPARE_PLACES = 64
"""Places for unauthenticated connections beyond one for each agent of the job."""
_RANDOM = SystemRandom()
READ_AT_ONCE = BYTES_PER_PLACE
"""Bytes per read. Not more: one read fills one place at most."""


class Coordinator:
    """The state of one job, and its connections. Only within a running event loop, and on its thread.

    `wall`: unix time; `chance`: for nonces; `asleep`: seconds for which the machine has been suspended, which
    the clock of the loop leaves out.
    """

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
        self._connections: dict[AgentConnection, None] = {}
        """Connections in the order in which they came."""
        self._by_slot: dict[int, dict[AgentConnection, None]] = {}
        """Connections that have sent a report, by slot."""
        self._unprocessed: dict[AgentConnection, bool] = {}
        """Connections with an unprocessed report, and whether the agent has applied its newest orders."""
        self._leases: dict[Pod, float] = {}
        """Leases that are not in the state yet: time at which the last one of each pod was received."""
        self._timer: asyncio.TimerHandle | None = None

    def job_report(self) -> JobReport:
        return membership.job_report(self.state, self.now())

    def now(self) -> float:
        """Monotonic seconds that include suspended time: leases expire during it."""
        return self._loop.time() + self._asleep()

    @property
    def is_late(self) -> bool:
        """Whether the event loop does not keep up with its agents (lateness.py)."""
        return self.state.lateness.most > 0 and self.state.lateness.is_late(self.now())

    def apply_desired(self, desired: Desired) -> JobReport:
        """Apply the operator's desired state, after all reports that were read before it. Returns the report
        that answers it."""
        self._process_reports()
        self._apply_event(membership.DesiredReceived(desired))
        return self.job_report()

    def take_report(self, connection: AgentConnection, report: AgentReport) -> None:
        """Queue the connection, which keeps the report, for the next step, and end other connections of its
        pod: the last one that reports wins."""
        others = self._by_slot.setdefault(report.slot, {})
        for other in [each for each in others if each is not connection and each.pod == connection.pod]:
            other.end("the same pod has a newer connection")
        others[connection] = None
        self._enqueue(connection, connection.check_applied_orders(report.applied_orders, self.now()))

    def take_lease(self, connection: AgentConnection, report: AgentReport) -> None:
        """Take a lease, which repeats the last report. It is queued like a report where it may
        change more than the time of the last sign of life; otherwise it costs no step of its own."""
        now, pod = self.now(), pod_of(report)
        applied = connection.check_applied_orders(report.applied_orders, now)
        if not applied or not slotindex.lease_is_enough(self.state, pod):
            self._enqueue(connection, applied)
            return
        self._leases[pod] = now
        connection.answer_if_due(self.state, now)

    def _enqueue(self, connection: AgentConnection, applied: bool) -> None:
        """Queue the connection's report. All that are queued in one turn of the loop are processed in the
        next one, in one step."""
        if not self._unprocessed:
            self._loop.call_soon(self._process_reports)
        self._unprocessed[connection] = applied

    def _process_reports(self) -> None:
        """Apply all queued reports in one step, then answer those of their senders that got no orders."""
        senders, self._unprocessed = self._unprocessed, {}
        reports = tuple(
            membership.ReportReceived(connection.report, applied)
            for connection, applied in senders.items()
            if connection.report
        )
        if reports:
            self._apply_event(membership.ReportsReceived(reports), senders)
        for connection in senders:
            connection.answer_if_due(self.state, self.now())

    def _tick(self) -> None:
        """Apply the passing of time, after all queued reports: bytes that were read in time count in time."""
        self._process_reports()
        self._apply_event(membership.Tick())

    def add_connection(self, connection: AgentConnection) -> None:
        """Register a new connection, not yet authenticated."""
        self._connections[connection] = None

    def remove_connection(self, connection: AgentConnection) -> None:
        """Forget an ended connection. Idempotent. Its agent's lease is unaffected."""
        self._connections.pop(connection, None)
        if connection.report:
            self._by_slot.get(connection.report.slot, {}).pop(connection, None)

    def stop(self) -> None:
        """End all connections and the timer. Agents keep their ranks, and reconnect to the next boot."""
        if self._timer:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.end("the coordinator stops")

    def _apply_event(self, event: membership.Event, senders: Iterable[AgentConnection] = ()) -> None:
        """Apply one event to the state: the only place that replaces it.

        Order: leases received since the last step, so that none expires in this one -> the event -> orders to
        all agents whose orders may have changed -> the decision as a line in the log -> the timer of the next
        Tick. `senders`: connections whose reports are in the event.
        """
        now, unix_ms = self.now(), int(self._wall() * 1000)
        if self._leases:
            leases, self._leases = self._leases, {}
            self.state = membership.step(self.state, membership.LeasesRenewed(leases), now, unix_ms)
        before, self.state = self.state, membership.step(self.state, event, now, unix_ms)
        replies = membership.Replies(self.state, now)
        for connection in self._affected_connections(membership.affected_slots(before, self.state), senders):
            if connection.report:
                connection.send_if_changed(replies.reply_to(connection.report), now)
        self._log_decision(now)
        if self._timer:
            self._timer.cancel()
        wake = membership.wake_at(self.state, now)
        self._timer = self._loop.call_later(wake - now, self._tick) if wake is not None else None

    def _affected_connections(
        self, slots: slotset.Slots, senders: Iterable[AgentConnection]
    ) -> list[AgentConnection]:
        """Connections of these slots, and the senders: a refused one holds no slot, but gets its refusal."""
        if slots == slotset.ALL:
            return list(self._connections)
        connections = dict.fromkeys(senders)
        for slot in slotset.each(slots):
            connections.update(self._by_slot.get(slot, {}))
        return list(connections)

    def _log_decision(self, now: float) -> None:
        """Log phase, world and reason, unless they are those of the last such line."""
        world_id = self.state.world.plan.world_id if self.state.world else None
        why = self.state.why + self.state.lateness.suffix(now)
        self.log.write_if_changed("decision", phase=self.state.phase.value, world=world_id, why=why)


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[asyncio.base_events.Server, int]:
    """Start a server for one protocol object per connection. Returns the server and its actual port, for port
    0."""
    server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=BACKLOG)
    return server, server.sockets[0].getsockname()[1]
