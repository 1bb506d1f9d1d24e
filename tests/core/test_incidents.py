"""One fault is one incident: what the coordinator reports and what Kubernetes saw, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.builders import (
    NOON,
    Change,
    Scene,
    a_request,
    a_running_job,
    an_incident,
    deleted,
    ended,
    evicted,
    force_deleted,
    on_a_lost_node,
    reporting,
    seconds,
    silent,
    written,
)

from ropeteam.api.job import Recovery
from ropeteam.api.status import IncidentStatus, JobStatus, SlotStatus
from ropeteam.core.decide import decide
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import Incident, RecoveryTimes, WorldPhase
from ropeteam_trainer.contract.world import Cause, ProcessExit

forming = reporting(phase=WorldPhase.FORMING)


def reporting_incidents(*incidents: Incident) -> Change:
    """The coordinator reports them for the first time."""

    def change(scene: Scene) -> Scene:
        now = int(scene.now.timestamp() * 1000)
        return scene.after(reporting(incidents=tuple(replace(each, unix_ms=now) for each in incidents)))

    return change


def only(status: JobStatus) -> IncidentStatus:
    assert len(status.incidents) == 1, [each.id for each in status.incidents]
    return status.incidents[0]


def test_an_incident_is_provisional_at_first_and_charged_when_it_has_settled() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident(Cause.SIGNAL)), written)
    incident = only(seen.status)
    assert (incident.id, incident.cause, incident.charged, incident.final) == (
        "1.0.1",
        "Signal",
        True,
        False,
    )
    assert seen.status.failures.charged == 0
    later = seen.after(seconds(10), written).status
    assert (later.failures.charged, only(later).final) == (1, True)
    assert later.failures.charges[0].id == "1.0.1"


def test_the_operator_looks_again_when_an_incident_settles() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident()), written, seconds(7))
    assert decide(seen).requeue_after_seconds == 3


def test_reporting_it_twice_is_reporting_it_once() -> None:
    seen = a_running_job().after(
        reporting_incidents(an_incident()), written, seconds(10), written, seconds(60), written
    )
    assert (seen.status.failures.charged, len(seen.status.incidents)) == (1, 1)


def test_a_lost_pod_is_recorded_once_and_counted_once() -> None:
    lost = incidents.pod_incident(SlotStatus(slot=1, incarnation=2), Cause.EVICTED, "", "node-1", NOON)
    status = incidents.with_pod_incident(JobStatus(), lost, alone=True)
    assert incidents.with_pod_incident(status, lost, alone=True) == status
    settled = lost.model_copy(update={"final": True})
    twice = JobStatus(incidents=(settled, lost))
    for _ in range(3):
        twice = incidents.with_final_incidents(twice, Recovery(), NOON, NOON, final=frozenset({lost.id}))
    assert twice.failures.not_charged == 1


def test_free_causes_are_counted_apart() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident(Cause.RETRIED_FREE)), seconds(10), written)
    assert (seen.status.failures.charged, seen.status.failures.not_charged) == (0, 1)


def test_a_charge_leaves_with_its_window() -> None:
    seen = a_running_job(recovery={"windowSeconds": 60}).after(
        reporting_incidents(an_incident()), seconds(10), written
    )
    assert seen.status.failures.charged == 1
    assert decide(seen.after(seconds(47))).requeue_after_seconds == 3
    later = seen.after(seconds(50), written)
    assert (later.status.failures.charged, later.status.failures.charges) == (0, ())
    assert later.after(seconds(100), written).status.failures.charged == 0


def test_a_step_of_the_wall_clock_empties_no_window() -> None:
    seen = a_running_job(recovery={"windowSeconds": 60}).after(
        reporting_incidents(an_incident()), seconds(10), written
    )
    began = seen.now
    an_hour = seen.after(seconds(3600))
    for passed, charged in ((10, 1), (49, 1), (50, 0)):
        stepped = an_hour.but(job_time=began + timedelta(seconds=passed)).after(written)
        assert stepped.status.failures.charged == charged
    soon = decide(an_hour.but(job_time=began + timedelta(seconds=48)).after(written)).requeue_after_seconds
    assert soon == 2


def test_an_incident_that_settles_across_a_step_is_charged_about_when_it_happened() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident()), written)
    stepped = seen.but(job_time=seen.now + timedelta(seconds=10)).after(seconds(3600), written)
    (charge,) = stepped.status.failures.charges
    assert charge.time == seen.now


def test_a_message_ends_with_the_last_lines_of_the_rank() -> None:
    exit = ProcessExit(code=1, signal=None, last_lines=("Traceback ...", "ValueError: bad lr"))
    seen = a_running_job().after(reporting_incidents(an_incident(exit=exit)), written)
    assert only(seen.status).message.endswith("Traceback ...\nValueError: bad lr")


def test_the_recoverys_time_is_recorded_even_when_it_is_final() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident()), seconds(10), written)
    stages = RecoveryTimes(stopped=40, planned=90, started=200, first_step=450)
    reported = an_incident(Cause.HANG, recovery_milliseconds=stages, steps_lost=7)
    incident = only(seen.after(reporting_incidents(reported), written).status)
    assert (incident.recovery_milliseconds.first_step, incident.steps_lost) == (450, 7)
    assert incident.cause == "Error", "what has settled stays"


def test_a_better_cause_replaces_the_first_one_until_it_settles() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident(Cause.ERROR, slot=1)), written)
    seen = seen.after(reporting_incidents(an_incident(Cause.AGENT_LOST, slot=2)), written)
    assert (only(seen.status).cause, only(seen.status).slot) == ("AgentLost", 2)


@pytest.mark.parametrize(
    ("loss", "cause"), [(evicted(2), "Evicted"), (force_deleted(2), "PodDeleted"), (ended(2), "PodFailed")]
)
def test_what_kubernetes_saw_explains_a_lost_agent(loss: Change, cause: str) -> None:
    """Whichever of the two is received first."""
    lost = reporting_incidents(an_incident(Cause.AGENT_LOST, slot=2))
    first_kubernetes = a_running_job().after(loss, written, forming, lost, written)
    first_coordinator = a_running_job().after(forming, lost, written, loss, written)
    for seen in (first_kubernetes, first_coordinator):
        assert (only(seen.status).id, only(seen.status).cause) == ("1.0.1", cause)
        assert seen.after(seconds(20), written).status.failures.charged == (cause == "PodFailed")


def test_an_exception_of_the_script_is_not_explained_away() -> None:
    seen = a_running_job().after(
        reporting_incidents(an_incident(Cause.ERROR, slot=2)), written, evicted(2), written
    )
    assert only(seen.status).cause == "Error"


def test_other_pods_lost_with_their_world_are_part_of_the_same_incident() -> None:
    seen = a_running_job().after(evicted(1), evicted(2), forming, written)
    assert [each.id for each in seen.status.incidents] == ["pod-1-1", "pod-2-1"]
    seen = seen.after(reporting_incidents(an_incident(Cause.AGENT_LOST, slot=2)), written)
    assert (only(seen.status).id, only(seen.status).cause) == ("1.0.1", "Evicted")


def test_a_pod_lost_after_the_next_world_was_planned_is_another_incident() -> None:
    recovered = an_incident(recovery_milliseconds=RecoveryTimes(stopped=10, planned=20))
    seen = a_running_job().after(reporting_incidents(recovered), written, evicted(2), written)
    assert [each.id for each in seen.status.incidents] == ["1.0.1", "pod-2-1"]


def test_a_pod_that_was_in_no_world_is_charged_when_the_coordinator_has_had_time_to_report() -> None:
    seen = a_running_job().after(forming, ended(2), written, seconds(14.9), written)
    assert not only(seen.status).final
    seen = seen.after(seconds(0.1), written)
    assert (only(seen.status).id, seen.status.failures.charged) == ("pod-2-1", 1)


def test_the_end_of_a_node_is_reported_late_and_still_accepted() -> None:
    """Silent at 0 s, node NotReady at 40 s: the incident has waited."""
    reported = reporting_incidents(an_incident(Cause.AGENT_LOST, slot=2))
    request = reporting(replacement_requests=(a_request(2),))
    seen = a_running_job().after(forming, silent(2), reported, request, written, seconds(40), written)
    assert (only(seen.status).cause, only(seen.status).final) == ("AgentLost", False)
    seen = seen.after(on_a_lost_node(2), written)
    assert (only(seen.status).cause, only(seen.status).final) == ("NodeLost", True)


def test_our_own_deletion_is_no_evidence() -> None:
    reported, request = (
        reporting_incidents(an_incident(Cause.SIGNAL, slot=2)),
        reporting(replacement_requests=(a_request(2),)),
    )
    seen = a_running_job().after(reported, request, forming, written, deleted(2), ended(2, code=143), written)
    assert only(seen.status).cause == "Signal"


def test_only_ten_are_stored_and_none_is_let_off() -> None:
    reported = [an_incident(n=n) for n in range(1, 15)]
    seen = a_running_job(recovery={"maxFailures": 100}).after(reporting_incidents(*reported), written)
    assert [each.id for each in seen.status.incidents] == [f"1.0.{n}" for n in range(5, 15)]
    assert seen.status.failures.charged == 4, "those that leave the list are final"
    assert seen.after(seconds(10), written).status.failures.charged == 14


def test_a_coordinator_with_a_broken_clock_is_not_trusted() -> None:
    for unix_ms in (10**30, int((NOON.timestamp() + 999) * 1000)):
        seen = a_running_job().after(reporting(incidents=(an_incident(unix_ms=unix_ms),)))
        assert only(decide(seen).status).time == seen.now


def test_an_id_that_cannot_be_read_is_not_trusted() -> None:
    seen = a_running_job().after(reporting_incidents(replace(an_incident(), id="yesterday")), written)
    assert seen.status.incidents == ()


def desired_after(seen: Scene) -> tuple[int, tuple[str, ...]]:
    desired = decide(seen).desired
    assert desired is not None
    return desired.allowance, desired.charged_incidents


def test_the_allowance_and_the_ids_behind_it_agree() -> None:
    reported = reporting_incidents(an_incident(n=1), an_incident(Cause.RETRIED_FREE, n=2))
    seen = a_running_job(recovery={"maxFailures": 5}).after(reported, written)
    assert desired_after(seen) == (5, ()), "provisional ones are still the coordinator's to subtract"
    settled = seen.after(seconds(10), written)
    assert desired_after(settled) == (4, ("1.0.1", "1.0.2"))


def test_an_incident_outside_the_window_is_not_counted_again_by_the_coordinator() -> None:
    seen = a_running_job(recovery={"maxFailures": 5, "windowSeconds": 60}).after(
        reporting_incidents(an_incident())
    )
    seen = seen.after(seconds(10), written, seconds(60), written)
    forgotten = seen.but(status=seen.status.model_copy(update={"incidents": ()}))
    assert desired_after(forgotten) == (5, ("1.0.1",))


def test_no_restart_of_a_coordinator_refills_the_budget() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident()), seconds(10), written)
    for change in (reporting_incidents(), reporting(boot=1)):
        assert seen.after(change, written).status.failures.charged == 1


def test_an_incident_that_status_has_already_is_never_listed_twice() -> None:
    seen = a_running_job().after(reporting_incidents(an_incident(Cause.SIGNAL)), written)
    forgotten = seen.status.failures.model_copy(update={"last_world": ""})
    seen = seen.but(status=seen.status.model_copy(update={"failures": forgotten})).after(written)
    assert only(seen.status).id == "1.0.1"
    assert decide(seen).status == seen.status
