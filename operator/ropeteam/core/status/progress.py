"""Fields of status that are written at intervals: progress of training, every 30 seconds, and progress of a
start, every 5. Both are written with any other change.
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
DETAILS_SECONDS = 5
_SHORTEST_INTERVAL_SECONDS = 5
"""Shortest interval to measure the pace over."""
_LONGEST_ETA_SECONDS = 10**10
"""Limit of an ETA: scripts without an end report the largest number there is as their steps."""


def progress_of(old: ProgressStatus | None, report: JobReport, now: datetime) -> ProgressStatus | None:
    """Progress in the report. None before the first step."""
    reported = report.progress
    step = reported.step
    if step <= 0:
        return old  # a coordinator that has just booted has no progress yet
    total = reported.total_steps if reported.total_steps is not None and reported.total_steps >= 0 else None
    samples = f"{reported.samples_per_second:.1f}" if reported.samples_per_second > 0 else ""
    new = ProgressStatus(
        step=step,
        total_steps=total,
        percent=min(100, step * 100 // total) if total else None,
        eta_seconds=_eta(old, step, total, now),
        samples_per_second=samples[:32],
        loss=reported.loss[:32],
        time=now,
    )
    unchanged = old and with_changes(
        old, time=now, eta_seconds=new.eta_seconds, summary=new.summary, eta=new.eta
    )
    return old if unchanged == new else new


def _eta(old: ProgressStatus | None, step: int, total: int | None, now: datetime) -> int | None:
    """Seconds to the end, at the pace since `old`."""
    if total is None or old is None or old.time is None:
        return None
    seconds, steps = (now - old.time).total_seconds(), step - old.step
    if seconds < _SHORTEST_INTERVAL_SECONDS or steps <= 0:
        return old.eta_seconds
    left = max(0, round((total - step) * seconds / steps))
    return left if left < _LONGEST_ETA_SECONDS else None


def throttle(old: JobStatus, new: JobStatus, now: datetime) -> JobStatus:
    """Status to write: progress alone is written at intervals, since etcd keeps every revision."""
    if old.progress is None or old.progress.time is None or with_changes(new, progress=old.progress) != old:
        return new
    left = (old.progress.time + timedelta(seconds=EVERY_SECONDS) - now).total_seconds()
    return old if 0 < left <= EVERY_SECONDS else new  # a clock that was set back holds nothing up


def write_delay_seconds(
    old: JobStatus, new: JobStatus, now: datetime, written_at: datetime | None
) -> float | None:
    """Seconds for which `new` need not be written. None: write it now. While the pods of a gang start one by
    one, their number and the reasons for waiting change all the time.
    """
    if written_at is None or old == new or _essence(old) != _essence(new):
        return None
    left = (written_at + timedelta(seconds=DETAILS_SECONDS) - now).total_seconds()
    return left if 0 < left <= DETAILS_SECONDS else None  # a clock that was set back holds nothing up


def _essence(status: JobStatus) -> tuple[object, ...]:
    """Status without counts and texts for people."""
    conditions = tuple((each.type, each.status, each.observed_generation) for each in status.conditions)
    state = "Pending" if status.state == "Starting" else status.state
    coordinator = with_changes(status.coordinator, boot=0)
    for_people = {"conditions": (), "reason": "", "launcher": "", "workers": WorkersStatus()}
    return with_changes(status, state=state, coordinator=coordinator, **for_people), conditions


def checkpoint(view: View, report: JobReport) -> CheckpointStatus | None:
    """Committed checkpoints, as reported. Kept while a coordinator has just booted."""
    old = view.status.checkpoint
    if not report.lineage or report.phase is WorldPhase.WAITING:
        return old
    lineage = tuple(
        CheckpointRefStatus(step=max(0, ref.step), world=str(ref.world_id), digest=ref.digest[:64])
        for ref in report.lineage[:10]
    )
    spec = view.spec.checkpoint
    folder = checkpoint_directory(view.job.name, spec) if spec else ""
    run = f"run-{report.lineage[0].run}/" if report.lineage[0].run else ""  # path of an earlier release
    location = f"{folder}/{run}step-{lineage[0].step}/{lineage[0].world}" if spec else ""
    if old is not None and old.lineage == lineage:
        return old
    return CheckpointStatus(
        step=lineage[0].step,
        time=clamp_timestamp(report.checkpoint_unix_ms, view.now),
        location=location[:1024],
        lineage=lineage,
    )


def lineage(status: JobStatus) -> tuple[CheckpointRef, ...]:
    """Lineage, as the coordinator needs it. Entries that cannot be parsed are left out."""
    refs = status.checkpoint.lineage if status.checkpoint else ()
    found = []
    for ref in refs:
        try:
            found.append(CheckpointRef(ref.step, WorldId.parse(ref.world), ref.digest))
        except ValueError:
            continue
    return tuple(found)
