"""Since when a coordinator answers no former pod, by the clock of this process."""

from __future__ import annotations

from dataclasses import replace

from tests.builders import a_report, a_running_job

from ropeteam.controller.reconcile.holders import Holders
from ropeteam_trainer.contract.desired import Desired, SlotDesired

SEEN = a_running_job(workers=2)
STATUS = SEEN.status.model_copy(
    update={
        "slots": tuple(slot.model_copy(update={"previous_pod_fenced": False}) for slot in SEEN.status.slots)
    }
)
DESIRED = Desired(1, 1, 1, {"0": SlotDesired(1), "1": SlotDesired(2)})
REPORT = a_report(SEEN)


def seconds(holders: Holders, now: float) -> list[tuple[int, int, float]]:
    return [(each.slot, each.incarnation, each.seconds) for each in holders.held_slots(STATUS, now)]


def test_it_counts_from_the_first_answer_and_anew_for_another_pod():
    holders = Holders()
    assert seconds(holders, 5.0) == []
    holders.record(DESIRED, REPORT, 10.0)
    holders.record(DESIRED, REPORT, 20.0)
    assert seconds(holders, 25.0) == [(0, 1, 15.0), (1, 2, 15.0)]
    holders.record(replace(DESIRED, slots={**DESIRED.slots, "1": SlotDesired(3)}), REPORT, 30.0)
    assert seconds(holders, 35.0) == [(0, 1, 25.0), (1, 3, 5.0)]
    assert holders.held_slots(SEEN.status, 35.0) == (), "whose former pod is gone needs none"


def test_another_coordinator_or_boot_may_have_answered_anybody_before():
    holders = Holders()
    holders.record(DESIRED, REPORT, 10.0)
    holders.record(DESIRED, replace(REPORT, boot=1), 20.0)
    assert seconds(holders, 25.0) == [(0, 1, 5.0), (1, 2, 5.0)]
    holders.record(DESIRED, replace(REPORT, term=2), 24.0)
    assert seconds(holders, 25.0) == [(0, 1, 1.0), (1, 2, 1.0)]


def test_how_long_a_coordinator_has_answered_is_counted_anew_for_each_boot():
    holders = Holders()
    assert holders.reachable_seconds(5.0) == 0.0
    holders.record(DESIRED, REPORT, 10.0)
    holders.record(DESIRED, REPORT, 20.0)
    assert holders.reachable_seconds(25.0) == 15.0
    holders.record(DESIRED, replace(REPORT, boot=1), 30.0)
    assert holders.reachable_seconds(35.0) == 5.0
    holders.forget()
    assert holders.reachable_seconds(40.0) == 0.0
