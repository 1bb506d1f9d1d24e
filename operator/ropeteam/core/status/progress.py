"""Fields of status that are written at intervals: progress of training, every 30 seconds, and details of a
start, every 5. Both are written with any other change. And the checkpoints that the coordinator reports.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ropeteam.api.status import (
    CheckpointRefStatus,
    CheckpointStatus,
    JobStatus,
    ProgressStatus,
    WorkersStatus,
)
from ropeteam.core.objects.workerpod import checkpoint_directory
from ropeteam.core.seen.view import View, clamp_timestamp, with_changes
from ropeteam_trainer.contract.desired import JobReport, WorldPhase
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

EVERY_SECONDS = 30
"""Interval of writes that change only the progress of training."""
DETAILS_SECONDS = 5
"""Interval of writes that change only counts of pods and texts for people."""
_SHORTEST_INTERVAL_SECONDS = 5
"""Shortest interval over which the rate of steps is measured."""
_LONGEST_ETA_SECONDS = 10**10
"""Limit of an ETA: scripts without an end report the largest number there is as their steps."""


def merged_progress(old: ProgressStatus | None, report: JobReport, now: datetime) -> ProgressStatus | None:
    """Progress for status: that of the report, with an ETA measured since `old`. `old` itself if nothing but
    time has passed, so that nothing is written; also before the first step of a report, when it may be
    None."""
    reported = report.progress
    step = reported.step
    if step <= 0:
        return old  # a coordinator that has just booted reports none
    total = reported.total_steps if reported.total_steps is not None and reported.total_steps >= 0 else None
    samples = f"{reported.samples_per_second:.1f}" if reported.samples_per_second > 0 else ""
    new = ProgressStatus(
        step=step,
        total_steps=total,
        percent=min(100, step * 100 // total) if total else None,
        eta_seconds=_eta_seconds(old, step, total, now),
        samples_per_second=samples[:32],
        loss=reported.loss[:32],
        time=now,
    )
    unchanged = old and with_changes(
        old, time=now, eta_seconds=new.eta_seconds, summary=new.summary, eta=new.eta
    )
    return old if unchanged == new else new


def _eta_seconds(old: ProgressStatus | None, step: int, total: int | None, now: datetime) -> int | None:
    """Seconds until the last step, at the rate of steps since `old`; the old estimate over a shorter interval
    than _SHORTEST_INTERVAL_SECONDS, or without a new step. None: unknown."""
    if total is None or old is None or old.time is None:
        return None
    seconds, steps = (now - old.time).total_seconds(), step - old.step
    if seconds < _SHORTEST_INTERVAL_SECONDS or steps <= 0:
        return old.eta_seconds
    left = max(0, round((total - step) * seconds / steps))
    return left if left < _LONGEST_ETA_SECONDS else None


def throttled(old: JobStatus, new: JobStatus, now: datetime) -> JobStatus:
    """`old` if only progress has changed and it was written less than EVERY_SECONDS ago, else `new`: etcd
    stores each write as a revision."""
    if old.progress is None or old.progress.time is None or with_changes(new, progress=old.progress) != old:
        return new
    left = (old.progress.time + timedelta(seconds=EVERY_SECONDS) - now).total_seconds()
    return old if 0 < left <= EVERY_SECONDS else new  # no delay if the clock was set back


def write_delay_seconds(
    old: JobStatus, new: JobStatus, now: datetime, written_at: datetime | None
) -> float | None:
    """Seconds for which `new` need not be written, as it differs from `old` in details only and the last
    write was less than DETAILS_SECONDS ago. None: write it now, if it differs. While the pods of a gang start
    one by one, such details change all the time.
    """
    if written_at is None or old == new or _without_details(old) != _without_details(new):
        return None
    left = (written_at + timedelta(seconds=DETAILS_SECONDS) - now).total_seconds()
    return left if 0 < left <= DETAILS_SECONDS else None  # no delay if the clock was set back


def _without_details(status: JobStatus) -> tuple[object, ...]:
    """Status without counts and texts for people, and each condition without reason, message and time. What
    is left decides whether a write is urgent."""
    conditions = tuple((each.type, each.status, each.observed_generation) for each in status.conditions)
    state = "Pending" if status.state == "Starting" else status.state
    coordinator = with_changes(status.coordinator, boot=0)
    for_people = {"conditions": (), "reason": "", "launcher": "", "workers": WorkersStatus()}
    return with_changes(status, state=state, coordinator=coordinator, **for_people), conditions


def merged_checkpoint(view: View, report: JobReport) -> CheckpointStatus | None:
    """Committed checkpoints for status. Those in status stay, unchanged, while the report has the same ones
    or none, or the coordinator has just booted. None: there is no checkpoint."""
    old = view.status.checkpoint
    if not report.lineage or report.phase is WorldPhase.WAITING:
        return old
    lineage = tuple(
        CheckpointRefStatus(step=max(0, ref.step), world=str(ref.world_id), digest=ref.digest[:64])
        for ref in report.lineage[:10]
    )
    spec = view.spec.checkpoint
    folder = checkpoint_directory(view.job.name, spec) if spec else ""
    run = report.lineage[0].run  # empty: saved by an earlier release, without a folder of the run
    run_folder = f"run-{run}/" if run else ""
    location = f"{folder}/{run_folder}step-{lineage[0].step}/{lineage[0].world}" if spec else ""
    if old is not None and old.lineage == lineage:
        return old
    return CheckpointStatus(
        step=lineage[0].step,
        time=clamp_timestamp(report.checkpoint_unix_ms, view.now),
        location=location[:1024],
        lineage=lineage,
    )


def lineage(status: JobStatus) -> tuple[CheckpointRef, ...]:
    """Checkpoints in status, newest first, as the coordinator receives them. Entries whose world cannot be
    parsed are left out."""
    refs = status.checkpoint.lineage if status.checkpoint else ()
    found = []
    for ref in refs:
        try:
            found.append(CheckpointRef(ref.step, WorldId.parse(ref.world), ref.digest))
        except ValueError:
            continue
    return tuple(found)
