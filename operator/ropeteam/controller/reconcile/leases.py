"""For how long no operator can have heard of a job's coordinator, by the clock of this process.

A coordinator with a lease counts from when it sent the newest report that an operator says back to it. That
was before the operator received it; so whoever counts from there, or from its own beginning for what an
operator before it has received, knows when the lease has run out, however late its words arrive.
Limits: of one job. Counted anew after a restart of the operator, and by the one that leads next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ropeteam.api.status import JobStatus
from ropeteam.core.seen.observation import UnheardSeen
from ropeteam_trainer.contract.desired import Desired, JobReport


@dataclass
class Leases:
    """`now` is by a clock of this process."""

    began: float
    """This operator knew of the job, and led."""
    newest: tuple[int, int, float] | None = None
    """Term, boot and `sent` of the report that was heard last."""
    at: dict[int, float] = field(default_factory=dict)
    """When the newest report of each term was received."""

    def said_back(self, desired: Desired) -> Desired:
        """With the report of that coordinator that was heard last."""
        if self.newest is None or self.newest[0] != desired.term:
            return desired
        _, boot, sent = self.newest
        return replace(desired, boot=boot, heard=sent)

    def heard(self, report: JobReport, now: float) -> None:
        self.newest = report.term, report.boot, report.sent
        self.at[report.term] = now

    def of(self, status: JobStatus, now: float) -> tuple[UnheardSeen, ...]:
        """Of those that make a promise."""
        current = status.coordinator
        terms = {each.term for each in current.former if each.lease_seconds}
        terms |= {current.term} if current.lease_seconds else set()
        return tuple(
            UnheardSeen(term=term, seconds=now - self.at.get(term, self.began)) for term in sorted(terms)
        )
