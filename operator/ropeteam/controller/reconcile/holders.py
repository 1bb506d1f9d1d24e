"""Since when a job's coordinator answers us, and since when it answers no older pod of a slot: both by the
clock of this process.

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

    coordinator: tuple[int, int] = (0, 0)
    """Term and boot of the coordinator that answered last; (0, 0): none."""
    began: float = 0.0
    """Time of its first answer."""
    since: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By slot: the incarnation that the coordinator received last, and when it first answered to that."""

    def forget(self) -> None:
        """Start from zero: a previous coordinator may still run, and renew the leases of older pods."""
        self.coordinator, self.since = (0, 0), {}

    def record(self, desired: Desired, report: JobReport, now: float) -> None:
        """Record the report that answers `desired`: its coordinator knows the incarnations in there."""
        if self.coordinator != (report.term, report.boot):
            self.coordinator, self.began, self.since = (report.term, report.boot), now, {}
        for slot, wanted in desired.slots.items():
            if self.since.get(slot, (-1, 0.0))[0] != wanted.incarnation:
                self.since[slot] = wanted.incarnation, now

    def reachable_seconds(self, now: float) -> float:
        """Seconds since the first answer of the coordinator that answered last. 0: none did, or just now."""
        return now - self.began if self.coordinator != (0, 0) else 0.0

    def held_slots(self, status: JobStatus, now: float) -> tuple[HeldSlot, ...]:
        """The holders of slots whose previous pod may still write: its fence is not over. Slots of which the
        coordinator knows no incarnation yet are left out.
        """
        waiting = (str(slot.slot) for slot in status.slots if not slot.previous_pod_fenced)
        found = ((slot, *self.since[slot]) for slot in waiting if slot in self.since)
        return tuple(
            HeldSlot(slot=int(slot), incarnation=number, seconds=now - at) for slot, number, at in found
        )
