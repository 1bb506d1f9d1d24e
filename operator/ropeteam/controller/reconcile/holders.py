"""Since when a job's coordinator answers, and no older pod of a slot, by the clock of this process.

A fence that is counted by the wall clock of status ends early when that clock steps, or when an operator with
another clock takes over; and until a coordinator has received that a pod was replaced, it renews the lease of
that pod. Limits: counted from zero after a restart of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ropeteam.api.status import JobStatus
from ropeteam.core.seen.observation import HeldSlot
from ropeteam_trainer.contract.desired import Desired, JobReport


@dataclass
class Holders:
    """Since when the coordinator that answers has known which incarnation holds each slot. `now` is by a
    clock of this process. Another coordinator, or another boot, knows nothing at first: it may have answered
    any pod.
    """

    who: tuple[int, int] = (0, 0)
    """Term and boot."""
    began: float = 0.0
    """Time of its first answer."""
    since: dict[str, tuple[int, float]] = field(default_factory=dict)

    def forget(self) -> None:
        """Start from zero: another coordinator may answer too."""
        self.who, self.since = (0, 0), {}

    def record(self, desired: Desired, report: JobReport, now: float) -> None:
        """Record the report that answers `desired`."""
        if self.who != (report.term, report.boot):
            self.who, self.began, self.since = (report.term, report.boot), now, {}
        for slot, wanted in desired.slots.items():
            if self.since.get(slot, (-1, 0.0))[0] != wanted.incarnation:
                self.since[slot] = wanted.incarnation, now

    def reachable_seconds(self, now: float) -> float:
        """Seconds since the first answer. 0: no answer, or this is the first one."""
        return now - self.began if self.who != (0, 0) else 0.0

    def of(self, status: JobStatus, now: float) -> tuple[HeldSlot, ...]:
        """The holders of slots whose previous pod may still write."""
        waiting = (str(slot.slot) for slot in status.slots if not slot.previous_pod_fenced)
        found = ((slot, *self.since[slot]) for slot in waiting if slot in self.since)
        return tuple(
            HeldSlot(slot=int(slot), incarnation=number, seconds=now - at) for slot, number, at in found
        )
