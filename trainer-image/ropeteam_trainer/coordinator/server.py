"""The coordinator around its judgement: the state, the clock, and one TCP connection per agent.

Order: bytes -> frames (authentic or the connection ends) -> AgentReport -> `membership.step` -> every agent
whose orders changed gets them in the same instant. What is malformed ends its own connection with a line in
the log, nothing more.
Limits: nothing is decided here. One connection speaks for one pod, and the newest one wins. asyncio sets
TCP_NODELAY.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from ropeteam_trainer.contract import codec, wire
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.messages import AgentReport, Orders
from ropeteam_trainer.coordinator import membership
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.state import Pod, pod_of

FIRST_REPORT_SECONDS = 10.0
"""A connection that has not shown the job's token by then is closed."""
RESEND_SECONDS = 1.0
MOST_UNSENT = 4 << 20
"""Bytes that an agent may leave unread."""


class Coordinator:
    """The state of one job, and whoever is connected."""

    def __init__(self, config: CoordinatorConfig, boot: int, token: bytes, log: Log) -> None:
        self.token, self.log = token, log
        self.most_connections = 4 * config.slots + 64
        self._loop = asyncio.get_running_loop()
        self.state = membership.initial(config, boot, self._loop.time())
        self._lines: set[AgentLine] = set()
        self._timer: asyncio.TimerHandle | None = None

    def report(self) -> JobReport:
        return membership.job_report(self.state, self._loop.time())

    def desire(self, desired: Desired) -> JobReport:
        self._apply(membership.DesiredReceived(desired))
        return self.report()

    def heard(self, line: AgentLine, report: AgentReport) -> None:
        """A report came on a connection; the first one on it displaces older connections of that pod."""
        for other in [each for each in self._lines if each is not line and each.pod == line.pod]:
            other.end("the same pod came on a newer connection")
        self._apply(membership.ReportReceived(report, line.note_seen(report.orders_seen, self._loop.time())))

    def opened(self, line: AgentLine) -> bool:
        """False: there are too many already."""
        self._lines.add(line)
        return len(self._lines) <= self.most_connections

    def closed(self, line: AgentLine) -> None:
        self._lines.discard(line)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        for line in list(self._lines):
            line.end("the coordinator stops")

    def _apply(self, event: membership.Event) -> None:
        now = self._loop.time()
        self.state = membership.step(self.state, event, now, int(time.time() * 1000))
        for line in list(self._lines):
            if line.report:
                line.send(membership.reply(self.state, line.report, now), now)
        self._tell_why(now)
        if self._timer:
            self._timer.cancel()
        wake = membership.wake_at(self.state, now)
        self._timer = self._loop.call_at(wake, self._apply, membership.Tick()) if wake is not None else None

    def _tell_why(self, now: float) -> None:
        told = membership.job_report(self.state, now)
        self.log.when_new("decision", phase=told.phase.value, epoch=told.epoch, why=told.why)


class AgentLine(asyncio.Protocol):
    """One connection. Until its first genuine report it is nobody's."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.report: AgentReport | None = None
        self.pod: Pod | None = None
        self._peer = ""
        self._over = False
        self._sent: Orders | None = None
        self._sent_at = 0.0
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = "{}:{}".format(*transport.get_extra_info("peername")[:2])
        nonce, token = os.urandom(wire.NONCE_SIZE), self._coordinator.token
        self._opener = wire.Opener(token, nonce, wire.TO_COORDINATOR)
        self._sealer = wire.Sealer(token, nonce, wire.TO_AGENT)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(FIRST_REPORT_SECONDS, self.end, "no report came")
        if self._coordinator.opened(self):
            self._transport.write(wire.HELLO + nonce)
        else:
            self.end("too many connections")

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._opener.feed(data):
                if not self._over:
                    self._heard(codec.decode(AgentReport, body))
        except (wire.WireError, codec.DecodeError) as error:
            self.end(str(error))

    def _heard(self, report: AgentReport) -> None:
        self._patience.cancel()
        if self.pod not in (None, pod_of(report)):
            raise wire.WireError(f"a connection of {self.pod} reported as {pod_of(report)}")
        self.report, self.pod = report, pod_of(report)
        self._coordinator.heard(self, report)

    def note_seen(self, number: int, now: float) -> bool:
        """Has this agent applied the newest orders? If it should have long ago, they are sent again."""
        applied = number == self._number
        if not applied and now > self._sent_at + RESEND_SECONDS:
            self._sent = None
        return applied

    def send(self, orders: Orders | None, now: float) -> None:
        """Orders, if they say something new. None: nothing to say."""
        if orders is None or orders == self._sent or self._over:
            return
        if orders.refused and (self._sent is None or not self._sent.refused):
            self._coordinator.log.say("refused", peer=self._peer, agent=self.pod, reason=orders.refused)
        self._sent, self._sent_at, self._number = orders, now, self._number + 1
        try:
            frame = self._sealer.seal(codec.encode(replace(orders, number=self._number)))
        except wire.WireError as error:
            self.end(str(error))
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MOST_UNSENT:
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
        self._coordinator.closed(self)


async def listen(
    factory: Callable[[], asyncio.Protocol], host: str, port: int
) -> tuple[asyncio.base_events.Server, int]:
    """The server, and the port that it got."""
    server = await asyncio.get_running_loop().create_server(factory, host, port)
    return server, server.sockets[0].getsockname()[1]
