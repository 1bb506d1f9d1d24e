"""What a person wants to see of a job, from its status and, where it is fresher, the coordinator's report.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ropeteam.api.columns import duration
from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import IncidentStatus, JobStatus
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import JobReport

TO_ACT_ON = (ConditionType.FAILED, ConditionType.STALLED, ConditionType.DEGRADED)
"""Where one of them holds, it says what a person must know, and the coordinator's own sentence does not."""
_EXPLAINS = (
    ConditionType.FAILED,
    ConditionType.COMPLETE,
    ConditionType.STALLED,
    ConditionType.RECOVERING,
    ConditionType.SUSPENDED,
    ConditionType.DEGRADED,
    ConditionType.RUNNING,
)


@dataclass(frozen=True)
class JobView:
    """One look at a job."""

    name: str
    state: str
    ready: str
    why: str
    step: int = 0
    total_steps: int | None = None
    loss: str = ""
    samples_per_second: str = ""
    world_size: int = 0
    epoch: str = ""
    checkpoint_step: int | None = None
    incidents: tuple[IncidentStatus, ...] = ()
    finished: bool = False
    complete: bool = False
    refused: bool = False
    """The spec was not accepted: nothing will happen before it is changed."""
    reason: str = ""
    since: datetime | None = None
    """When that became so."""
    live: bool = False
    """The coordinator was asked."""


def job_view(name: str, status: JobStatus, report: JobReport | None, now: datetime) -> JobView:
    """`report` of another term than the status knows is old, and not looked at."""
    if report is not None and (report.term != status.coordinator.term or status.finished):
        report = None
    if report is not None:
        status = incidents.merge(status, report.incidents, now)
    accepted = status.condition(ConditionType.ACCEPTED)
    refused = accepted is not None and accepted.status == "False"
    told = next((c for kind in _EXPLAINS if (c := status.condition(kind)) and c.holds), None)
    shown = accepted if refused else told or status.condition(ConditionType.RUNNING)
    progress = status.progress
    seen = JobView(
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
    acts = refused or (shown is not None and shown.holds and shown.type in TO_ACT_ON)
    return _with_report(seen, report, acts) if report else seen


def _with_report(seen: JobView, report: JobReport, acts: bool) -> JobView:
    """acts: what status says is for a person to act on."""
    told, lineage = report.progress, report.lineage
    why = report.notice.message if report.notice else report.why
    return JobView(
        **{
            **seen.__dict__,
            "step": max(told.step, 0) or seen.step,
            "total_steps": told.total_steps or seen.total_steps,
            "loss": told.loss or seen.loss,
            "samples_per_second": f"{told.samples_per_second:.1f}" if told.samples_per_second > 0 else "",
            "world_size": report.world_size,
            "epoch": str(report.epoch) if report.epoch else "",
            "checkpoint_step": lineage[0].step if lineage else seen.checkpoint_step,
            "why": seen.why if acts else why or seen.why,
            "live": True,
        }
    )


def recovery_seconds(incident: IncidentStatus) -> float | None:
    """From the fault to the first step of all ranks; None: not recovered yet."""
    milliseconds = incident.stages.first_step
    return None if milliseconds is None else milliseconds / 1000


def incident_line(incident: IncidentStatus, over: bool = False) -> str:
    """`Signal in slot 1 (rank 1): recovered in 2.1 s, 3 steps lost`. over: the job has ended."""
    rank = "" if incident.rank is None else f" (rank {incident.rank})"
    seconds = recovery_seconds(incident)
    what = f"{incident.cause} in slot {incident.slot}{rank}"
    if over and seconds is None:
        return f"{what}: not recovered"
    after = "recovering" if seconds is None else f"recovered in {seconds:.1f} s"
    lost = incident.steps_lost
    return f"{what}: {after}" + ("" if lost is None else f", {lost} step{'' if lost == 1 else 's'} lost")


class Eta:
    """Time to the end, at the pace of the last steps seen. A world that begins anew has no pace yet."""

    def __init__(self, window_seconds: float = 20.0) -> None:
        self._window, self._epoch, self._seen = window_seconds, "", list[tuple[float, int]]()

    def after(self, seen: JobView, now: float) -> str:
        """`1m20s`, or nothing while the pace is not known. `now`: seconds of a clock that does not jump."""
        if seen.epoch != self._epoch or not self._has_moved_to(seen.step):
            self._epoch, self._seen = seen.epoch, []
        self._seen = [each for each in self._seen if now - each[0] < self._window]
        self._seen.append((now, seen.step))
        passed, made = now - self._seen[0][0], seen.step - self._seen[0][1]
        if seen.total_steps is None or made <= 0 or passed < 1:
            return ""
        return duration(max(0, round((seen.total_steps - seen.step) * passed / made)))

    def _has_moved_to(self, step: int) -> bool:
        """Before the first step, and between the looks until the next one, time does not count."""
        return bool(self._seen) and step >= self._seen[-1][1] and step > self._seen[0][1] > 0
