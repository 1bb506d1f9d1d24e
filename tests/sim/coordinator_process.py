"""A coordinator as a process: the real membership/step.py, and a server around it in simulated time.

Orders go out whenever they differ from the last ones sent on that connection, and again for a report that
has not seen them. Only the newest connection of a pod counts. A frozen process handles everything on
waking, late. A restart of its container begins again with boot + 1 and no memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.sim.agent_process import pod_environment
from tests.sim.clock import Timer
from tests.sim.kubelet import Pod
from tests.sim.network import Connection

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport, WorldPhase
from ropeteam_trainer.contract.fence import answer_seconds
from ropeteam_trainer.contract.messages import AgentReport, Orders
from ropeteam_trainer.coordinator.membership import step as membership

if TYPE_CHECKING:
    from tests.sim.world import World

START_UNIX_MS = 1_767_225_600_000
RESEND_SECONDS = 1.0


@dataclass
class AgentConnection:
    """The server's state of one connection."""

    report: AgentReport | None = None
    sent: Orders | None = None
    """As projected: its number is 0."""
    sent_at: float = 0.0
    spoke_at: float = float("-inf")
    number: int = 0


class Coordinator:
    def __init__(self, world: World, pod: Pod, boot: int) -> None:
        self._world, self.pod, self.site = world, pod, pod.uid
        settings = codec.decode(CoordinatorConfig, pod_environment(pod)[config.CONFIG])
        self.state = membership.initial_state(settings, boot, world.clock.now)
        self.running, self.frozen = True, False
        self._lines: dict[Connection, AgentConnection] = {}
        self._backlog: deque[tuple[Connection, AgentReport]] = deque()
        self._timer: Timer | None = None

    # ---- life, as a Container of the kubelet

    def terminate(self) -> None:
        """Stop at once."""
        self.kill()
        if self.pod.kubelet:
            self.pod.kubelet.exited(self.pod, 143)

    def kill(self) -> None:
        self._end()
        for connection in self._lines:
            connection.close(by=self)

    def vanish(self) -> None:
        self._end()
        for connection in self._lines:
            connection.vanish()

    def _end(self) -> None:
        self.running = False
        if self._timer:
            self._timer.cancel()

    def freeze(self, seconds: float) -> None:
        if self.running and not self.frozen:
            self.frozen = True
            self._world.clock.after(seconds, self.thaw)

    def thaw(self) -> None:
        self.frozen = False
        while self._backlog and self.running:
            self._received(*self._backlog.popleft())
        self._tick()

    # ---- the server

    def accepted(self, connection: Connection) -> None:
        self._lines[connection] = AgentConnection()

    def closed(self, connection: Connection) -> None:
        self._lines.pop(connection, None)

    def received(self, connection: Connection, message: Any) -> None:
        report = codec.decode(AgentReport, message) if isinstance(message, bytes) else message
        if self.frozen:
            self._backlog.append((connection, report))
        elif self.running:
            self._received(connection, report)

    def _received(self, connection: Connection, report: AgentReport) -> None:
        line = self._lines.get(connection)
        if line is None:
            return
        if line.report is None:
            self._forget_older(connection, report)
        line.report = report
        applied = report.applied_orders == line.number
        if not applied and self._world.clock.now > line.sent_at + RESEND_SECONDS:
            line.sent = None
        self._step(membership.ReportReceived(report, applied))
        settings, now = self.state.config, self._world.clock.now
        patience = answer_seconds(settings.timeouts.lost)
        if membership.may_answer(self.state, now) and now - line.spoke_at >= patience:
            self._write(connection, line, Orders(settings.term, self.state.boot, line.number, same=True))

    def _forget_older(self, newest: Connection, report: AgentReport) -> None:
        """A new connection of the same pod took its place."""
        for connection, line in list(self._lines.items()):
            if connection is not newest and line.report and line.report.pod_uid == report.pod_uid:
                del self._lines[connection]
                connection.close(by=self)

    def put_desired(self, desired: Desired) -> JobReport:
        self._step(membership.DesiredReceived(desired))
        return membership.job_report(self.state, self._world.clock.now)

    def _tick(self) -> None:
        if self.running and not self.frozen:
            self._step(membership.Tick())

    def _step(self, event: membership.Event) -> None:
        now, before = self._world.clock.now, self.state
        self.state = membership.step(before, event, now, START_UNIX_MS + int(now * 1000))
        self._note_moments(before)
        self._film()
        for connection, line in list(self._lines.items()):
            if line.report is not None:
                self._send(connection, line, membership.orders_for_sender(self.state, line.report, now))
        if self._timer:
            self._timer.cancel()
        wake = membership.wake_at(self.state, now)
        self._timer = None if wake is None else self._world.clock.at(max(wake, now + 0.01), self._tick)

    def _send(self, connection: Connection, line: AgentConnection, orders: Orders | None) -> None:
        if orders is None or orders == line.sent:
            return
        line.sent, line.sent_at, line.number = orders, self._world.clock.now, line.number + 1
        self._write(connection, line, replace(orders, number=line.number))

    def _write(self, connection: Connection, line: AgentConnection, orders: Orders) -> None:
        assert line.report is not None
        line.spoke_at = self._world.clock.now
        numbered = replace(orders, answers=line.report.number)
        connection.send(self, codec.encode(numbered) if self._world.codec else numbered)

    def _note_moments(self, before: membership.CoordinatorState) -> None:
        moments, after = self._world.moments, self.state
        deputizes = after.deputized != before.deputized
        moments["plan"] += after.numbers_used != before.numbers_used and not deputizes
        moments["deputy"] += deputizes
        moments["grant"] += after.grant is not None and after.grant is not before.grant
        moments["stop"] += after.phase is not before.phase and after.phase is WorldPhase.STOPPING
        moments["pause"] += after.phase is not before.phase and after.phase is WorldPhase.DRAINING
        moments["complete"] += after.phase is not before.phase and after.phase is WorldPhase.COMPLETING

    def _film(self) -> None:
        film = self._world.film
        if film.on:
            report = membership.job_report(self.state, self._world.clock.now)
            film.line(self.pod.name, f"[{report.phase.value} {report.world_id or ''}] {report.why}")
