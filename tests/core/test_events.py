"""An event is one line: what a script wrote is in status, not in events."""

from __future__ import annotations

from tests.builders import a_running_job, an_incident, edited, reporting, seconds, written

from ropeteam.api.conditions import ConditionType
from ropeteam.core.decide import decide
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import Cause, FailReason, ProcessExit

OUTPUT = tuple(f"line {number} of the script" for number in range(20))
KILLED = an_incident(
    Cause.SIGNAL, message="rank 0 ended by SIGKILL", exit=ProcessExit(None, 9, last_lines=OUTPUT)
)


def test_the_event_of_an_incident_is_without_the_scripts_output() -> None:
    seen = a_running_job().after(reporting(incidents=(KILLED,)))
    decision = decide(seen)
    assert [(each.reason, each.message) for each in decision.announcements] == [
        ("Signal", "1.0.1: slot 0, rank 0: rank 0 ended by SIGKILL")
    ]
    (incident,) = decision.status.incidents
    assert incident.message.splitlines() == ["rank 0 ended by SIGKILL", *OUTPUT]
    assert decision.status.last_incident == "Signal in slot 0"


def test_every_other_event_is_one_line_too() -> None:
    announced = Problem(FailReason.REPEATED_ERROR, "\n\n  Traceback (most recent call last):\n  File x")
    (event,) = decide(a_running_job().after(reporting(failure=announced))).announcements
    assert event.message == "Traceback (most recent call last):"


def test_a_spent_budget_names_the_last_fault_in_one_line_and_then_what_to_do() -> None:
    seen = a_running_job(recovery={"maxFailures": 0}).after(reporting(incidents=(KILLED,)), written)
    seen = seen.after(seconds(3600), written)
    failed = seen.status.condition(ConditionType.FAILED)
    assert failed is not None
    assert "The last: rank 0 ended by SIGKILL. Fix the cause, or raise" in failed.message


def test_a_spent_budget_without_a_charged_incident_in_status_names_none() -> None:
    seen = a_running_job(recovery={"maxFailures": 1}).after(reporting(incidents=(KILLED,)), written)
    seen = seen.after(seconds(3600), written, reporting(incidents=()), edited(recovery={"maxFailures": 0}))
    pushed_out = seen.status.model_copy(update={"incidents": ()})
    failed = seen.but(status=pushed_out).after(written).status.condition(ConditionType.FAILED)
    assert failed is not None
    assert "and 0 are allowed. Fix the cause, or raise" in failed.message
