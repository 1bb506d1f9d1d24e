"""Fields of a job that are shown to a person, from its status and, where it is newer, the coordinator's
report. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ropeteam.api.columns import duration, explaining_condition, is_refused
from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import IncidentStatus, JobStatus
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import JobReport

TO_ACT_ON = (ConditionType.FAILED, ConditionType.STALLED, ConditionType.DEGRADED)
"""Conditions that a person must act on: where one holds, its message replaces the coordinator's sentence."""


@dataclass(frozen=True)
class JobView:
    """View of a job at one moment. An empty text is not known, or not reported by the script."""

    name: str
    state: str
    """As in `kubectl get`."""
    ready: str
    """Ready and desired pods: `2/3`."""
    why: str
    """Sentence that explains the state."""
    step: int = 0
    """0: none is reported."""
    total_steps: int | None = None
    loss: str = ""
    samples_per_second: str = ""
    world_size: int = 0
    """Number of ranks; 0: not known."""
    world: str = ""
    """Number of the world: `1.0.1`."""
    checkpoint_step: int | None = None
    incidents: tuple[IncidentStatus, ...] = ()
    """Oldest first."""
    finished: bool = False
    """Complete or Failed."""
    complete: bool = False
    refused: bool = False
    """The spec was not accepted: nothing will happen before it is changed."""
    reason: str = ""
    """Reason of the condition that explains the state, in one word."""
    since: datetime | None = None
    """Time of the last transition of that condition."""
    live: bool = False
    """Whether the coordinator's report is included."""


def job_view(name: str, status: JobStatus, report: JobReport | None, now: datetime) -> JobView:
    """View of a job from its status and, where it is newer, the report. A report of another term than in the
    status is stale, and one of a job that has ended is older than its status: both are ignored."""
    if report is not None and (report.term != status.coordinator.term or status.finished):
        report = None
    if report is not None:
        status = incidents.with_reported_incidents(status, report.incidents, now)
    refused, shown = is_refused(status), explaining_condition(status)
    progress = status.progress
    view = JobView(
        name=name,
        state=status.state or "Pending",
        ready=status.workers.summary,
        why=shown.message if shown else "",
        step=progress.step if progress else 0,
        total_steps=progress.total_steps if progress else None,
        loss=progress.loss if progress else "",
        samples_per_second=progress.samples_per_second if progress else "",
        checkpoint_step=status.checkpoint.step if status.checkpoint else None,
        incidents=status.incidents,
        finished=status.finished,
        complete=status.holds(ConditionType.COMPLETE),
        refused=refused and not status.finished,
        reason=shown.reason if shown else "",
        since=shown.last_transition_time if shown else None,
    )
    needs_action = refused or (shown is not None and shown.holds and shown.type in TO_ACT_ON)
    return _with_report(view, report, needs_action) if report else view


def _with_report(view: JobView, report: JobReport, needs_action: bool) -> JobView:
    """View with the report's fields where it has them. needs_action: the status has a condition for a person
    to act on, and its sentence stays."""
    latest, lineage = report.progress, report.lineage
    why = report.notice.message if report.notice else report.why
    return JobView(
        **{
            **view.__dict__,
            "step": max(latest.step, 0) or view.step,
            "total_steps": latest.total_steps or view.total_steps,
            "loss": latest.loss or view.loss,
            "samples_per_second": f"{latest.samples_per_second:.1f}" if latest.samples_per_second > 0 else "",
            "world_size": report.world_size,
            "world": str(report.world_id) if report.world_id else "",
            "checkpoint_step": lineage[0].step if lineage else view.checkpoint_step,
            "why": view.why if needs_action else why or view.why,
            "live": True,
        }
    )


def recovery_seconds(incident: IncidentStatus) -> float | None:
    """Seconds from the fault to the first step of all ranks; None: not recovered yet."""
    milliseconds = incident.recovery_milliseconds.first_step
    return None if milliseconds is None else milliseconds / 1000


def incident_line(incident: IncidentStatus, over: bool = False) -> str:
    """`Signal in slot 1 (rank 1): recovered in 2.1 s, 3 steps lost`. over: the job has ended, so that what is
    not recovered will never be."""
    rank = "" if incident.rank is None else f" (rank {incident.rank})"
    seconds = recovery_seconds(incident)
    what = f"{incident.cause} in slot {incident.slot}{rank}"
    if over and seconds is None:
        return f"{what}: not recovered"
    after = "recovering" if seconds is None else f"recovered in {seconds:.1f} s"
    lost = incident.steps_lost
    return f"{what}: {after}" + ("" if lost is None else f", {lost} step{'' if lost == 1 else 's'} lost")


class Eta:
    """Estimate of the time to the end, from the rate of steps in the last seconds."""

    def __init__(self, window_seconds: float = 20.0) -> None:
        self._window, self._world = window_seconds, ""
        self._samples = list[tuple[float, int]]()
        """Time and step of the views in the window, all of one world."""

    def update(self, view: JobView, now: float) -> str:
        """Add a sample, and return the estimate: `1m20s`, or "" while the rate or the total is not known.

        Samples start again in a new world, and until _has_rate. `now`: seconds of a monotonic clock.
        """
        if view.world != self._world or not self._has_rate(view.step):
            self._world, self._samples = view.world, []
        self._samples = [each for each in self._samples if now - each[0] < self._window]
        self._samples.append((now, view.step))
        passed, steps = now - self._samples[0][0], view.step - self._samples[0][1]
        if view.total_steps is None or steps <= 0 or passed < 1:
            return ""
        return duration(max(0, round((view.total_steps - view.step) * passed / steps)))

    def _has_rate(self, step: int) -> bool:
        """Whether this step continues the samples, and is beyond their first, which is not step 0. Time until
        the first step, and until the one after it, would make the rate too low."""
        return bool(self._samples) and step >= self._samples[-1][1] and step > self._samples[0][1] > 0
