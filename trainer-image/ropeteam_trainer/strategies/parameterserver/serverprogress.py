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
    """Reports of one server to its agent."""

    def __init__(
        self,
        heart: HeartbeatWriter,
        link: AgentLink | NoAgent,
        server: Server,
        dropped: Callable[[], int | None],
    ) -> None:
        """dropped: returns the number of gradients that came too late for their step, on the chief; None on
        the other servers."""
        self.heart, self._link, self._server, self._dropped = heart, link, server, dropped
        self._next_report = 0.0

    def report_step(self, step: int) -> None:
        """Write a heartbeat with the job's steps, and send the counters, if REPORT_SECONDS have passed
        since the last ones. A lower step than before is written, but adds nothing to the steps done here."""
        self.heart.steps_here += max(step - self.heart.step, 0)
        self.heart.step = step
        self.heart.write()
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_SECONDS
            self._link.send(FromRank(served=self._counters()))

    def report_drained(self, step: int) -> None:
        """Report that the drain is complete: `step` is saved, and this rank waits to be killed."""
        self._link.send(FromRank(drained=step))

    def _counters(self) -> Served:
        """Counters of gradients since this process started."""
        with self._server.changed:  # gradients are counted in other threads
            gradients_by_staleness = dict(self._server.staleness)
        staleness_sum = sum(steps * count for steps, count in gradients_by_staleness.items())
        return Served(sum(gradients_by_staleness.values()), staleness_sum, self._dropped())
