"""For how long no operator can have received a report of a job's coordinator, by the clock of this process.

A coordinator with a lease counts from when it sent the newest report that an operator acknowledges to it.
That was before the operator received it; so an operator that counts from that receipt, or from its own start
for reports to an operator before it, knows when the lease has expired, however late messages arrive.
Limits: of one job. Counted from zero after a restart of the operator, and by the next leader.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ropeteam.api.status import JobStatus
from ropeteam.core.seen.observation import SilentCoordinator
from ropeteam_trainer.contract.desired import Desired, JobReport


@dataclass
class Leases:
    """Receipts of reports of one job's coordinators. `now` is by a clock of this process."""

    began: float
    """Since when this operator has known the job, and led."""
    newest: tuple[int, int, float] | None = None
    """Term, boot and `sent` of the report that was received last."""
    at: dict[int, float] = field(default_factory=dict)
    """When the newest report of each term was received."""

    def with_acknowledgement(self, desired: Desired) -> Desired:
        """`desired` with an acknowledgement of the last report of that coordinator; unchanged if none of its
        term was received last."""
        if self.newest is None or self.newest[0] != desired.term:
            return desired
        _, boot, sent = self.newest
        return replace(desired, acknowledged_boot=boot, acknowledged_sent=sent)

    def record(self, report: JobReport, now: float) -> None:
        """Record the receipt of a report."""
        self.newest = report.term, report.boot, report.sent
        self.at[report.term] = now

    def silent_coordinators(self, status: JobStatus, now: float) -> tuple[SilentCoordinator, ...]:
        """Seconds without a report, of each coordinator in `status` with a lease, current and previous ones,
        by term. One that has never answered this operator counts from `began`."""
        current = status.coordinator
        terms = {each.term for each in current.previous if each.lease_seconds}
        terms |= {current.term} if current.lease_seconds else set()
        return tuple(
            SilentCoordinator(term=term, seconds=now - self.at.get(term, self.began))
            for term in sorted(terms)
        )
