"""Heartbeats of a server, and its counters for the agent."""

from __future__ import annotations

import time
from collections.abc import Callable

from ropeteam_trainer.contract.local import FromRank, Served
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, NoAgent
from ropeteam_trainer.strategies.parameterserver.service import Server

REPORT_SECONDS = 1.0
"""Minimum interval between reports of counters to the agent."""


class ServerProgress:
    """dropped: gradients that came too late for their step, which the chief knows; None on other servers."""

    def __init__(
        self,
        heart: HeartbeatWriter,
        link: AgentLink | NoAgent,
        server: Server,
        dropped: Callable[[], int | None],
    ) -> None:
        self.heart, self._link, self._server, self._dropped = heart, link, server, dropped
        self._next_report = 0.0

    def reached(self, step: int) -> None:
        """The job has done `step` steps."""
        self.heart.steps_here += max(step - self.heart.step, 0)
        self.heart.step = step
        self.heart.write()
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_SECONDS
            self._link.send(FromRank(served=self._counters()))

    def drained(self, step: int) -> None:
        """The job has saved `step`, and waits to be killed."""
        self._link.send(FromRank(drained=step))

    def _counters(self) -> Served:
        with self._server.changed:  # gradients are counted in other threads
            stale = dict(self._server.staleness)
        return Served(
            sum(stale.values()), sum(steps * often for steps, often in stale.items()), self._dropped()
        )
