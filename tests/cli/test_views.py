"""Views of a job: the freshest of status and report, each incident once, and the closing report."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.demo import failed_checks, failed_comparisons, final_figures
from rich.console import Console

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import (
    CheckpointStatus,
    CoordinatorStatus,
    FailuresStatus,
    IncidentStatus,
    JobStatus,
    ProgressStatus,
    RecoveryTimesStatus,
)
from ropeteam.cli.run import JobResult
from ropeteam.cli.show.jobview import Eta, JobView, incident_line, job_view
from ropeteam.cli.show.screen import LiveScreen, NewIncidents, PlainScreen, panel, plain_line, screen_for
from ropeteam.cli.show.summary import summary_lines
from ropeteam_trainer.contract.desired import JobReport, WorldPhase
from ropeteam_trainer.contract.messages import Problem, Progress
from ropeteam_trainer.contract.world import FailReason

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
KILLED = IncidentStatus(
    id="1.0.1",
    time=NOW,
    cause="Signal",
    slot=1,
    rank=1,
    recovery_milliseconds=RecoveryTimesStatus(first_step=2100),
    steps_lost=3,
    message="killed by SIGKILL\nits last lines",
)
DELETED = IncidentStatus(
    id="1.0.2",
    time=NOW,
    cause="PodDeleted",
    slot=2,
    recovery_milliseconds=RecoveryTimesStatus(first_step=4000),
    steps_lost=0,
)


def a_status(**more: Any) -> JobStatus:
    return JobStatus(state="Running", coordinator=CoordinatorStatus(term=1), **more)


def a_report(term: int = 1, **more: Any) -> JobReport:
    return JobReport(job_uid="u", term=term, boot=0, phase=WorldPhase.RUNNING, why="trains", **more)


def a_picture(**more: Any) -> JobView:
    return JobView(**{"name": "gpt", "state": "Running", "ready": "3/3", "why": "trains", **more})


def test_a_report_is_fresher_than_status() -> None:
    status = a_status(progress=ProgressStatus(step=10, loss="2.5"))
    report = a_report(
        progress=Progress(step=42, total_steps=100, loss="1.5", samples_per_second=9.5), world_size=3
    )
    seen = job_view("gpt", status, report, NOW)
    assert (seen.step, seen.total_steps, seen.loss, seen.world_size, seen.live) == (42, 100, "1.5", 3, True)


def test_a_report_of_another_term_is_not_looked_at() -> None:
    seen = job_view("gpt", a_status(), a_report(term=2, progress=Progress(step=42)), NOW)
    assert (seen.step, seen.live) == (0, False)


def test_a_refused_spec_is_shown_and_waited_for_no_longer() -> None:
    no = Condition(
        type=ConditionType.ACCEPTED,
        status="False",
        reason="PodRefused",
        message="no",
        last_transition_time=NOW,
    )
    seen = job_view("gpt", JobStatus(state="Invalid", conditions=(no,)), None, NOW)
    assert (seen.refused, seen.reason, seen.why) == (True, "PodRefused", "no")


def test_a_job_that_has_failed_shows_why_though_its_spec_was_not_accepted() -> None:
    no, end = (
        Condition(type=kind, status=status, reason=reason, message=reason, last_transition_time=NOW)
        for kind, status, reason in (
            (ConditionType.ACCEPTED, "False", "ImmutableField"),
            (ConditionType.FAILED, "True", "CommandNotFound"),
        )
    )
    seen = job_view("gpt", JobStatus(state="Failed", conditions=(no, end)), None, NOW)
    assert (seen.refused, seen.reason) == (False, "CommandNotFound")


def test_each_incident_is_printed_when_it_opens_and_when_it_is_over() -> None:
    new_incidents, open_ = (
        NewIncidents(),
        KILLED.model_copy(update={"recovery_milliseconds": RecoveryTimesStatus(), "steps_lost": None}),
    )
    lines = [
        line
        for each in (open_, open_, KILLED, KILLED)
        for line in new_incidents.take_lines(a_picture(incidents=(each,)))
    ]
    assert lines == [
        "incident 1.0.1: Signal in slot 1 (rank 1): recovering - killed by SIGKILL",
        "incident 1.0.1: Signal in slot 1 (rank 1): recovered in 2.1 s, 3 steps lost - killed by SIGKILL",
    ]


def test_steps_that_no_script_reports_are_not_waited_for() -> None:
    new_incidents, unknown = NewIncidents(), KILLED.model_copy(update={"steps_lost": None})
    assert new_incidents.take_lines(a_picture(incidents=(unknown,), step=0)) == [
        "incident 1.0.1: Signal in slot 1 (rank 1): recovered in 2.1 s - killed by SIGKILL"
    ]


def test_one_step_is_one_step() -> None:
    assert incident_line(KILLED.model_copy(update={"steps_lost": 1})).endswith("1 step lost")


def test_the_time_to_the_end_follows_the_rate() -> None:
    eta = Eta()
    steps = [(0, 0.0), (1, 4.0), (1, 5.0), (11, 10.0), (11, 11.0)]
    texts = [eta.update(a_picture(step=step, total_steps=101), now) for step, now in steps]
    assert texts == ["", "", "", "45s", "54s"]
    assert eta.update(a_picture(step=5, total_steps=101), 11.0) == "", (
        "a world that began anew has no pace yet"
    )


def test_a_plain_line_shows_what_there_is() -> None:
    seen = a_picture(step=5, total_steps=10, loss="1.5", samples_per_second="9.0", world_size=3)
    assert plain_line(seen, "5s") == (
        "gpt: Running - ready 3/3, step 5/10, loss 1.5, samples/s 9.0, ETA 5s, world 3"
    )
    assert plain_line(a_picture(state="Pending", ready="", why="no claim"), "") == "gpt: Pending - no claim"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_same_facts_on_a_terminal_and_elsewhere(terminal: bool) -> None:
    console = Console(force_terminal=terminal, record=True, width=120)
    with screen_for(console) as shown:
        assert isinstance(shown, LiveScreen if terminal else PlainScreen)
        shown.show(a_picture(step=5, total_steps=10, loss="1.5", incidents=(KILLED,)))
    texts = console.export_text()
    assert "Signal in slot 1 (rank 1)" in texts
    assert terminal or "step 5/10, loss 1.5" in texts


def test_plain_lines_show_what_is_being_waited_for() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    with PlainScreen(console) as shown:
        for why in ("", "", "no claim", "no claim"):
            shown.show(a_picture(state="Pending", ready="", why=why))
        for step in (0, 0, 1):
            shown.show(a_picture(why=f"at {step}"))
    assert console.export_text().splitlines() == [
        "gpt: Pending",
        "gpt: Pending - no claim",
        "gpt: Running - ready 3/3",
    ]


def test_a_plain_line_is_not_repeated_while_no_steps_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropeteam.cli.show.screen._PLAIN_SECONDS", 0.0)
    console = Console(record=True, width=120, file=io.StringIO())
    with PlainScreen(console) as shown:
        for state, step in (("Running", 1), ("Running", 2), ("Recovering", 2), ("Recovering", 2)):
            shown.show(a_picture(state=state, step=step, why="waits"))
    assert console.export_text().splitlines() == [
        "gpt: Running - ready 3/3, step 1",
        "gpt: Running - ready 3/3, step 2",
        "gpt: Recovering - ready 3/3, step 2 - waits",
    ]


def a_job(**status: Any) -> dict[str, Any]:
    status |= {"start_time": NOW, "completion_time": NOW + timedelta(seconds=125)}
    claim = {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}
    spec = {"workers": 3, "command": ["python"], "image": "i", "checkpoint": claim}
    written = JobStatus(state="Complete", **status).to_json()
    return {"metadata": {"name": "gpt", "namespace": "default"}, "spec": spec, "status": written}


def test_the_closing_report_lists_cause_seconds_and_steps_lost() -> None:
    saved = CheckpointStatus(step=400, location="/checkpoints/ckpt/step-400/1.0.3")
    job = a_job(
        incidents=(KILLED, DELETED),
        failures=FailuresStatus(charged=1, allowed=10, not_charged=1),
        checkpoint=saved,
        progress=ProgressStatus(step=400, loss="1.4"),
    )
    head, _, killed, deleted, budget, checkpoint = summary_lines(job, Path("/home"))
    assert head == "gpt: Complete after 2m5s, 400 steps, loss 1.4"
    assert killed.split() == ["1.0.1", "Signal", "1", "2.1", "3", "killed", "by", "SIGKILL"]
    assert deleted.split() == ["1.0.2", "PodDeleted", "2", "4.0", "0"]
    assert budget == "  1 of 10 allowed failures charged, 1 incidents not charged"
    assert checkpoint.endswith("/home/claims/default/c/ckpt/step-400/1.0.3")


def test_a_quiet_run_reports_it() -> None:
    assert list(summary_lines(a_job(), None)) == ["gpt: Complete after 2m5s", "  no incidents"]


RESULT = '[rank 0] RESULT {"validation_loss": 1.55, "weights": "2d5def"}\n'
EXACT = KILLED.model_copy(update={"steps_lost": 0})


def test_the_demo_passes_only_if_both_faults_cost_no_step_and_the_model_has_learned() -> None:
    clean = a_picture(state="Complete", complete=True, incidents=(EXACT, DELETED))
    assert list(failed_checks(JobResult(clean, {}, RESULT))) == []
    assert final_figures(RESULT) == {"validation_loss": 1.55, "weights": "2d5def"}
    bad = a_picture(state="Failed", incidents=(KILLED.model_copy(update={"steps_lost": None}),))
    problems = "\n".join(failed_checks(JobResult(bad, {}, RESULT.replace("1.55", "1.7"))))
    for text in ("the job is Failed", "deleted pod of slot 2", "has no recovery time", "loss is 1.7"):
        assert text in problems
    costly = a_picture(state="Complete", complete=True, incidents=(KILLED, DELETED))
    assert list(failed_checks(JobResult(costly, {}, RESULT))) == [
        "incident 1.0.1 (Signal) has cost 3 steps, expected 0"
    ]


@pytest.mark.parametrize(
    ("more", "log", "problem"),
    [
        ({}, RESULT, None),
        ({}, RESULT.replace("2d", "3d"), "the weights are 2d5def with both faults, and 3d5def undisturbed"),
        ({}, "", "the weights are 2d5def with both faults, and None undisturbed"),
        ({"incidents": (EXACT,)}, RESULT, "the undisturbed job has 1 incidents, expected none"),
        ({"complete": False, "state": "Failed"}, RESULT, "the undisturbed job is Failed: trains"),
    ],
)
def test_the_demo_passes_only_if_the_undisturbed_training_ends_with_the_same_weights(
    more: dict[str, Any], log: str, problem: str | None
) -> None:
    disturbed = JobResult(a_picture(complete=True, incidents=(EXACT, DELETED)), {}, RESULT)
    undisturbed = JobResult(a_picture(**{"complete": True, "state": "Complete", **more}), {}, log)
    assert list(failed_comparisons(disturbed, undisturbed)) == ([problem] if problem else [])


def test_without_a_result_of_either_training_the_demo_fails() -> None:
    silent = JobResult(a_picture(complete=True), {}, "")
    assert list(failed_comparisons(silent, silent)) == [
        "the weights are None with both faults, and None undisturbed"
    ]


def test_what_is_wrong_with_a_world_is_shown_before_what_it_does() -> None:
    text = "2 default process groups of 2 ranks"
    notice = Problem(FailReason.SPLIT_WORLD, text)
    assert job_view("gpt", a_status(), a_report(notice=notice), NOW).why == text
    times: dict[str, Any] = {"last_transition_time": NOW, "status": "True"}
    conditions = (
        Condition(type=ConditionType.RUNNING, reason="WorldRunning", message="trains", **times),
        Condition(type=ConditionType.DEGRADED, reason="SplitWorld", message=text, **times),
    )
    assert job_view("gpt", a_status(conditions=conditions), None, NOW).why == text


def test_columns_keep_their_names_beside_a_bar() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(panel(a_picture(step=5, total_steps=10, loss="1.5"), "5s"))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["ready", "step", "loss", "ETA"] in lines
    assert ["3/3", "5/10", "1.5", "5s"] in lines


@pytest.mark.parametrize("kind", [ConditionType.STALLED, ConditionType.FAILED, ConditionType.DEGRADED])
def test_what_a_person_must_act_on_wins_over_the_coordinators_sentence(kind: ConditionType) -> None:
    held = Condition(
        type=kind, status="True", reason="VolumeClaimNotBound", message="Create it.", last_transition_time=NOW
    )
    seen = job_view("gpt", a_status(conditions=(held,)), a_report(), NOW)
    assert (seen.reason, seen.why) == ("VolumeClaimNotBound", "Create it.")


def test_an_incident_that_a_job_has_ended_with_was_not_recovered_from() -> None:
    open_ = KILLED.model_copy(update={"recovery_milliseconds": RecoveryTimesStatus(), "steps_lost": None})
    (line,) = NewIncidents().take_lines(a_picture(incidents=(open_,), finished=True))
    assert line.startswith("incident 1.0.1: Signal in slot 1 (rank 1): not recovered - ")
