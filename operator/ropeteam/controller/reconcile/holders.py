"""Since when a job's coordinator answers, and no older pod of a slot, by the clock of this process.

A fence that is counted by the wall clock of status ends early when that clock steps, or when an operator with
another clock takes over; and while a coordinator has not been told that a pod was replaced, it keeps that pod
alive. Limits: counted anew after a restart of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ropeteam.api.status import JobStatus
from ropeteam.core.seen.observation import HeldSeen
from ropeteam_trainer.contract.desired import Desired, JobReport


@dataclass
class Holders:
    """Since when the coordinator that answers has known which incarnation holds each slot. `now` is by a
    clock of this process. Another coordinator, or boot of it, knows nothing at first: it may have answered
    anybody.
    """

    who: tuple[int, int] = (0, 0)
    """Term and boot."""
    began: float = 0.0
    """Its first answer."""
    since: dict[str, tuple[int, float]] = field(default_factory=dict)

    def forget(self) -> None:
        """Somebody else may answer too."""
        self.who, self.since = (0, 0), {}

    def heard(self, desired: Desired, report: JobReport, now: float) -> None:
        """`report` is the answer to `desired`."""
        if self.who != (report.term, report.boot):
            self.who, self.began, self.since = (report.term, report.boot), now, {}
        for slot, word in desired.slots.items():
            if self.since.get(slot, (-1, 0.0))[0] != word.incarnation:
                self.since[slot] = word.incarnation, now

    def answered_for(self, now: float) -> float:
        """Seconds. 0: nobody answers, or for the first time."""
        return now - self.began if self.who != (0, 0) else 0.0

    def of(self, status: JobStatus, now: float) -> tuple[HeldSeen, ...]:
        """Of slots whose former pod may still write."""
        waiting = (str(slot.slot) for slot in status.slots if not slot.old_pod_gone)
        found = ((slot, *self.since[slot]) for slot in waiting if slot in self.since)
        return tuple(
            HeldSeen(slot=int(slot), incarnation=number, seconds=now - at) for slot, number, at in found
        )
