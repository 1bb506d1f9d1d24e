"""For how long no operator can have received anything of a coordinator, by the clock of this process."""

from __future__ import annotations

from dataclasses import replace

from tests.builders import a_report, a_running_job

from ropeteam.api.status import CoordinatorStatus, PreviousCoordinatorStatus
from ropeteam.controller.reconcile.leases import Leases
from ropeteam_trainer.contract.desired import Desired

SEEN = a_running_job(workers=2)
DESIRED = Desired(1, 1, 1, {})
REPORT = replace(a_report(SEEN), boot=3, sent=77.5)
PREVIOUS = (PreviousCoordinatorStatus(term=1, lease_seconds=20), PreviousCoordinatorStatus(term=0))
STATUS = SEEN.status.model_copy(
    update={"coordinator": CoordinatorStatus(term=2, lease_seconds=20, previous=PREVIOUS)}
)


def seconds(leases: Leases, now: float) -> list[tuple[int, float]]:
    return [(each.term, each.seconds) for each in leases.silent_coordinators(STATUS, now)]


def test_what_was_received_last_is_acknowledged_to_that_coordinator_only():
    leases = Leases(5.0)
    assert leases.with_acknowledgement(DESIRED) == DESIRED
    leases.record(REPORT, 6.0)
    acknowledged = leases.with_acknowledgement(DESIRED)
    assert (acknowledged.acknowledged_boot, acknowledged.acknowledged_sent) == (3, 77.5)
    other = replace(DESIRED, term=2)
    assert leases.with_acknowledgement(other) == other


def test_it_counts_from_its_own_beginning_and_from_what_it_receives():
    leases = Leases(5.0)
    assert seconds(leases, 9.0) == [(1, 4.0), (2, 4.0)]
    leases.record(REPORT, 7.0)
    leases.record(replace(REPORT, term=2), 8.0)
    assert seconds(leases, 9.0) == [(1, 2.0), (2, 1.0)]
    assert Leases(5.0).silent_coordinators(SEEN.status, 9.0) == (), (
        "without a promise there is nothing to count"
    )
