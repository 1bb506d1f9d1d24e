"""What is worth a write of status only now and then: how far training is, every 30 seconds, and how far a
start is, every 5. Both are written with whatever else changes.
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
from ropeteam_trainer.contract.world import CheckpointRef, Epoch

EVERY_SECONDS = 30
DETAILS_SECONDS = 5
_PACE_SECONDS = 5
"""A shorter stretch says nothing about the pace."""
_NEVER_SECONDS = 10**10
"""Scripts that go on for ever tell the largest number there is as their steps."""


def project(old: ProgressStatus | None, report: JobReport, now: datetime) -> ProgressStatus | None:
    """What the report tells. None before the first step."""
    told = report.progress
    step = told.step
    if step <= 0:
        return old  # a coordinator that has just booted does not know yet
    total = told.total_steps if told.total_steps is not None and told.total_steps >= 0 else None
    samples = f"{told.samples_per_second:.1f}" if told.samples_per_second > 0 else ""
    new = ProgressStatus(
        step=step,
        total_steps=total,
        percent=min(100, step * 100 // total) if total else None,
        eta_seconds=_eta(old, step, total, now),
        samples_per_second=samples[:32],
        loss=told.loss[:32],
        time=now,
    )
    told_before = old and with_changes(
        old, time=now, eta_seconds=new.eta_seconds, summary=new.summary, eta=new.eta
    )
    return old if told_before == new else new


def _eta(old: ProgressStatus | None, step: int, total: int | None, now: datetime) -> int | None:
    """Seconds to the end at the pace since `old`."""
    if total is None or old is None or old.time is None:
        return None
    seconds, steps = (now - old.time).total_seconds(), step - old.step
    if seconds < _PACE_SECONDS or steps <= 0:
        return old.eta_seconds
    left = max(0, round((total - step) * seconds / steps))
    return left if left < _NEVER_SECONDS else None


def throttle(old: JobStatus, new: JobStatus, now: datetime) -> JobStatus:
    """Progress alone is worth a write only now and then: etcd keeps every revision."""
    if old.progress is None or old.progress.time is None or with_changes(new, progress=old.progress) != old:
        return new
    left = (old.progress.time + timedelta(seconds=EVERY_SECONDS) - now).total_seconds()
    return old if 0 < left <= EVERY_SECONDS else new  # a clock that was set back holds nothing up


def details_wait(old: JobStatus, new: JobStatus, now: datetime, written_at: datetime | None) -> float | None:
    """Seconds for which `new` need not be written. None: it is worth a write now. While the pods of a gang
    come up one by one their number and the reasons for waiting change all the time.
    """
    if written_at is None or old == new or _essence(old) != _essence(new):
        return None
    left = (written_at + timedelta(seconds=DETAILS_SECONDS) - now).total_seconds()
    return left if 0 < left <= DETAILS_SECONDS else None  # a clock that was set back holds nothing up


def _essence(status: JobStatus) -> tuple[object, ...]:
    """All but counts and words for people."""
    said = tuple((each.type, each.status, each.observed_generation) for each in status.conditions)
    state = "Pending" if status.state == "Starting" else status.state
    coordinator = with_changes(status.coordinator, boot=0)
    words = {"conditions": (), "reason": "", "launcher": "", "workers": WorkersStatus()}
    return with_changes(status, state=state, coordinator=coordinator, **words), said


def checkpoint(view: View, report: JobReport) -> CheckpointStatus | None:
    """The committed checkpoints, as told. Not forgotten because a coordinator has just booted."""
    old = view.status.checkpoint
    if not report.lineage or report.phase is WorldPhase.WAITING:
        return old
    lineage = tuple(
        CheckpointRefStatus(step=max(0, ref.step), epoch=str(ref.epoch), digest=ref.digest[:64])
        for ref in report.lineage[:10]
    )
    wish = view.spec.checkpoint
    folder = checkpoint_directory(view.job.name, wish) if wish else ""
    run = f"run-{report.lineage[0].run}/" if report.lineage[0].run else ""  # as an earlier release files it
    location = f"{folder}/{run}step-{lineage[0].step}/{lineage[0].epoch}" if wish else ""
    if old is not None and old.lineage == lineage:
        return old
    return CheckpointStatus(
        step=lineage[0].step,
        time=clamp_timestamp(report.checkpoint_unix_ms, view.now),
        location=location[:1024],
        lineage=lineage,
    )


def lineage(status: JobStatus) -> tuple[CheckpointRef, ...]:
    """As the coordinator wants it. What cannot be read is left out."""
    refs = status.checkpoint.lineage if status.checkpoint else ()
    found = []
    for ref in refs:
        try:
            found.append(CheckpointRef(ref.step, Epoch.parse(ref.epoch), ref.digest))
        except ValueError:
            continue
    return tuple(found)
