"""Texts for the columns, and the few questions that the models answer about themselves."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from ropeteam.api.columns import duration, with_columns
from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.status import (
    CheckpointStatus,
    FailuresStatus,
    IncidentStatus,
    JobStatus,
    ProgressStatus,
    WorkersStatus,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2030, 1, 1, 13, tzinfo=UTC)


def a_condition(kind: ConditionType, status: str = "True", reason: str = "Because") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message="so", last_transition_time=NOON)


def a_status() -> JobStatus:
    return JobStatus(
        state="Recovering",
        conditions=(
            a_condition(ConditionType.RUNNING, "False", "NotAllReady"),
            a_condition(ConditionType.RECOVERING, "True", "RankFailed"),
        ),
        workers=WorkersStatus(desired=3, ready=2),
        progress=ProgressStatus(step=40, total_steps=100, percent=40, eta_seconds=125),
        checkpoint=CheckpointStatus(step=30),
        failures=FailuresStatus(charged=1, allowed=10),
        incidents=(IncidentStatus(id="1.0.1", time=NOON, cause="Signal", slot=1),),
    )


def test_texts_are_made_once_and_stay() -> None:
    status = with_columns(a_status())
    assert with_columns(status) == status


def test_a_job_without_anything_yet_has_short_texts() -> None:
    status = with_columns(JobStatus())
    assert (status.reason, status.last_incident, status.workers.summary) == ("", "", "0/0")
    assert status.failures.summary == "0/0"
    assert status.progress is None


def test_progress_without_an_end_has_no_percent_and_no_eta() -> None:
    progress = with_columns(JobStatus(progress=ProgressStatus(step=7))).progress
    assert progress is not None
    assert (progress.summary, progress.eta) == ("", "")


ORDER = (
    ConditionType.COMPLETE,
    ConditionType.FAILED,
    ConditionType.ACCEPTED,
    ConditionType.STALLED,
    ConditionType.RECOVERING,
    ConditionType.SUSPENDED,
    ConditionType.DEGRADED,
)


@pytest.mark.parametrize("number", range(len(ORDER)))
def test_the_reason_is_that_of_the_condition_that_explains_the_state(number: int) -> None:
    """Of the conditions from this one on, each of which would explain it, the first does."""
    conditions = [a_condition(ConditionType.RUNNING, "False")]
    for kind in ORDER[number:]:
        status = "False" if kind is ConditionType.ACCEPTED else "True"
        conditions.append(a_condition(kind, status, reason=f"As{kind}"))
    assert with_columns(JobStatus(conditions=tuple(conditions))).reason == f"As{ORDER[number]}"


@pytest.mark.parametrize("running", ["True", "False"])
def test_where_nothing_else_explains_the_state_running_does(running: str) -> None:
    absent = [a_condition(kind, "False") for kind in ORDER if kind is not ConditionType.ACCEPTED]
    accepted = a_condition(ConditionType.ACCEPTED, "True")
    waits = a_condition(ConditionType.RUNNING, running, "PodsStarting")
    assert with_columns(JobStatus(conditions=(*absent, accepted, waits))).reason == "PodsStarting"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (125, "2m5s"),
        (3600, "1h"),
        (7500, "2h5m"),
        (86_400, "1d"),
        (356_400, "4d3h"),
    ],
)
def test_durations_are_written_as_kubectl_writes_ages(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_since_moves_only_when_the_fact_flips() -> None:
    old = a_condition(ConditionType.RUNNING)
    reworded = old.model_copy(update={"message": "other words", "last_transition_time": LATER})
    flipped = reworded.model_copy(update={"status": "False"})
    assert old.replaced_by(reworded) == reworded.model_copy(update={"last_transition_time": NOON})
    assert old.replaced_by(flipped) == flipped


@pytest.mark.parametrize("kind", [ConditionType.COMPLETE, ConditionType.FAILED])
def test_complete_and_failed_are_final(kind: ConditionType) -> None:
    assert JobStatus(conditions=(a_condition(kind),)).finished
    assert not JobStatus(conditions=(a_condition(kind, "False"),)).finished
    assert not JobStatus().finished


def test_ranks_per_worker_are_as_declared_else_one_for_each_gpu_else_one() -> None:
    assert TrainingJobSpec(workers=1, gpus_per_worker=8, processes_per_worker=4).processes == 4
    assert TrainingJobSpec(workers=1, gpus_per_worker=8).processes == 8
    assert TrainingJobSpec(workers=1).processes == 1


def test_a_status_of_a_newer_operator_is_read() -> None:
    assert JobStatus.model_validate({"state": "Running", "invented": 1}).to_json()["state"] == "Running"


def test_of_the_conditions_of_a_newer_operator_those_that_are_known_are_read() -> None:
    time = "2026-11-20T12:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": time}
        for kind in ("New", "Running")
    ]
    status = JobStatus.model_validate({"conditions": conditions})
    assert [each.type for each in status.conditions] == [ConditionType.RUNNING]
    for wrong in (5, ["True"]):
        with pytest.raises(ValidationError):
            JobStatus.model_validate({"conditions": wrong})
