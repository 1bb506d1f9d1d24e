"""Summary of a job that has ended: the incidents with cause, seconds and steps lost, and the checkpoint's
location.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ropeteam.api.columns import duration
from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.status import IncidentStatus, JobStatus
from ropeteam.cli.show.jobview import recovery_seconds
from ropeteam.controller.client.apiclient import Object


def summary_lines(job: Object, home: Path | None) -> Iterator[str]:
    """Lines of the summary, for a job in any state. `home`: of the local cluster, to show the checkpoint's
    path on this machine; None: the path in the pods."""
    status, name = JobStatus.model_validate(job.get("status") or {}), job["metadata"]["name"]
    took = _after_text(status.start_time, status.completion_time)
    progress = status.progress
    trained = f", {progress.step} steps" if progress else ""
    loss = f", loss {progress.loss}" if progress and progress.loss else ""
    yield f"{name}: {status.state}{took}{trained}{loss}"
    yield from _incident_table(status.incidents)
    failures = status.failures
    if status.incidents:
        budget = f"{failures.charged} of {failures.allowed} allowed failures charged"
        yield f"  {budget}, {failures.not_charged} incidents not charged"
    if status.checkpoint:
        yield f"  checkpoint of step {status.checkpoint.step}: {_checkpoint_path(job, status, home)}"


def _incident_table(incidents: tuple[IncidentStatus, ...]) -> Iterator[str]:
    """Head and one line for each incident; `-` where a value is not known."""
    if not incidents:
        yield "  no incidents"
        return
    yield f"  {'INCIDENT':<10} {'CAUSE':<14} {'SLOT':>4} {'SECONDS':>8} {'STEPS LOST':>11}  WHAT"
    for incident in incidents:
        seconds = recovery_seconds(incident)
        lost = "-" if incident.steps_lost is None else str(incident.steps_lost)
        took = "-" if seconds is None else f"{seconds:.1f}"
        what = incident.message.split("\n")[0]
        yield (
            f"  {incident.id:<10} {incident.cause:<14} {incident.slot:>4} {took:>8} {lost:>11}  {what}"
        ).rstrip()


def _after_text(start: datetime | None, end: datetime | None) -> str:
    """` after 2m5s`; empty if the job has not started or not ended."""
    return f" after {duration(round((end - start).total_seconds()))}" if start and end else ""


def _checkpoint_path(job: Object, status: JobStatus, home: Path | None) -> str:
    """Path of the newest checkpoint, which status must have: on this machine if it is in a claim of the local
    cluster, else in the container."""
    assert status.checkpoint is not None
    inside = status.checkpoint.location
    checkpoint = TrainingJobSpec.model_validate(job["spec"]).checkpoint
    claim = (checkpoint.volume.get("persistentVolumeClaim") or {}).get("claimName") if checkpoint else None
    if home is None or claim is None or checkpoint is None:
        return inside
    folder = home / "claims" / job["metadata"]["namespace"] / claim
    return str(folder / Path(inside).relative_to("/checkpoints"))
