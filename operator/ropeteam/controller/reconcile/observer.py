"""The input of `decide` for one job, put together into one frozen Observation.

Nothing is sent from here: answers of the job's coordinator and of the API server are arguments, or were
recorded by the steps that requested them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ropeteam.api.defaults import Defaults
from ropeteam.api.status import JobStatus
from ropeteam.controller.cache.caches import Caches
from ropeteam.controller.reconcile.jobread import JobRead
from ropeteam.controller.reconcile.jobstates import JobState
from ropeteam.controller.settings import OperatorKeys
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Observation
from ropeteam_trainer.contract.desired import JobReport
from ropeteam_trainer.system.clocks import boot_seconds


@dataclass(frozen=True)
class Observer:
    """The parts of all Observations of this operator process that do not come from one job."""

    caches: Caches
    keys: OperatorKeys
    defaults: Defaults
    clock: Callable[[], datetime]
    """The wall clock."""
    own_clock: Callable[[], float] = boot_seconds
    """Seconds, by a clock of this process that no step of a wall clock moves."""
    predecessor_ahead_seconds: Callable[[], float] = float
    """As of Elector; 0.0, which `float()` returns, if it is not known."""
    deletion_proves_end: bool = False
    """Whether a node whose object is gone counts as a node on which nothing runs any more."""

    def observe(self, read: JobRead, job: JobState, report: JobReport | None, error: str) -> Observation:
        """The Observation of one job, all but `refusal`, which the dry run of its pod adds. `report`,
        `error`: of the exchange that followed `read`. Starts the job's clock with the first call
        (jobclock.py).
        """
        now, own_now, status = self.clock(), self.own_clock(), read.status
        key = self.keys.key_or_current(read.key_id)
        return Observation(
            now=now,
            job_time=job.clock.time(status, now, own_now, self.predecessor_ahead_seconds()),
            metadata=read.metadata,
            spec=read.spec,
            spec_error=read.spec_error,
            status=status,
            pods=read.pods,
            service=read.service,
            policy=job.created.policy,
            secret_exists=job.created.secret == names.secret(read.metadata, key.id),
            secret_age=own_now - job.created.secret_at,
            key_id=key.id,
            written_at=job.last.written_at,
            report=report,
            report_error=error,
            dead_nodes=self._dead_nodes(status),
            ended_pods=self._ended_pods(status),
            reachable_seconds=job.exchange.holders.reachable_seconds(own_now),
            held_slots=job.exchange.holders.held_slots(status, own_now),
            silent_coordinators=job.exchange.leases.silent_coordinators(status, own_now),
            defaults=self.defaults,
        )

    def _dead_nodes(self, status: JobStatus) -> tuple[str, ...]:
        """Names of the nodes of previous coordinators on which nothing runs any more."""
        nodes = sorted({each.node for each in status.coordinator.previous if each.node})
        return tuple(node for node in nodes if self.caches.node_has_ended(node, self.deletion_proves_end))

    def _ended_pods(self, status: JobStatus) -> tuple[str, ...]:
        """UIDs of previous pods that were deleted after the kubelet had reported their end."""
        previous = [each.pod_uid for each in status.coordinator.previous]
        previous += [slot.previous_pod_uid for slot in status.slots]
        return tuple(uid for uid in previous if uid in self.caches.ended)
