"""State of each job that one operator process keeps between reconciles. All of it can be lost: it is
learned again. Each part is written by one module alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ropeteam.controller.cache.informer import Key
from ropeteam.controller.reconcile.admission import Admission
from ropeteam.controller.reconcile.created import CreatedObjects
from ropeteam.controller.reconcile.exchange import Exchange
from ropeteam.controller.reconcile.jobclock import JobClock
from ropeteam.controller.reconcile.leases import Leases
from ropeteam_trainer.contract.desired import Desired


@dataclass
class LastReconcile:
    """Results of the last reconcile of one job."""

    desired: Desired | None = None
    """The desired state of the last decision that was saved, for the coordinator."""
    written_at: datetime | None = None
    """When the status was last written, by the wall clock. None: not by this process."""
    why: str = ""
    """The reason of the last decision, as it was logged."""


@dataclass(frozen=True)
class JobState:
    """State of one job, in parts."""

    uid: str
    exchange: Exchange
    """Written by exchange.py."""
    admission: Admission = field(default_factory=Admission)
    """Written by admission.py."""
    created: CreatedObjects = field(default_factory=CreatedObjects)
    """Written by executor.py."""
    last: LastReconcile = field(default_factory=LastReconcile)
    """Written by reconciler.py."""
    clock: JobClock = field(default_factory=JobClock)
    """Started by observer.py."""


@dataclass
class JobStates:
    """The JobState of each job; a job that was deleted and created again starts empty."""

    _all: dict[Key, JobState] = field(default_factory=dict)

    def state_of(self, key: Key, uid: str, now: float) -> JobState:
        """The state of this job; a new one, if there is none for this UID. `now`: by the clock of this
        process, the begin of the leases of a new one."""
        job = self._all.get(key)
        if job is None or job.uid != uid:
            job = self._all[key] = JobState(uid, Exchange(Leases(now)))
        return job

    def forget(self, key: Key) -> None:
        """Drop the state of a job that is gone."""
        self._all.pop(key, None)
