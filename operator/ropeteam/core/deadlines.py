"""When to look again although nothing happens: everything in `core` that depends on the passing of time is
listed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from ropeteam.api.status import JobStatus
from ropeteam.core import backoff
from ropeteam.core.questions import release
from ropeteam.core.questions.completion import exit_seconds
from ropeteam.core.questions.handover import DELETE_MARGIN_SECONDS
from ropeteam.core.questions.steady import ASSUMED_UP_TO_DATE_SECONDS, mounts
from ropeteam.core.seen import formercoordinators, unservedrequests
from ropeteam.core.seen.view import View
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.fence import longest_life

ASK_SELDOM_SECONDS, ASK_SECONDS, ASK_SOON_SECONDS, ASK_AT_ONCE_SECONDS = 15.0, 5.0, 1.0, 0.2
"""How often the coordinator is told and asked."""
ASKS_PER_LEASE = 5
"""Its lease is counted from an answer that we say back with the next question: two of these always pass."""


def next_question(view: View, status: JobStatus) -> float:
    """Seconds until the coordinator is asked again. Often only when it is the one who knows what comes next:
    a world cannot form before its pods run, and of them their changes tell.
    """
    lease = status.coordinator.lease_seconds or math.inf
    return min(_patience(view, status), lease / ASKS_PER_LEASE)


def _patience(view: View, status: JobStatus) -> float:
    report = view.report
    if any(slot.relieves for slot in status.slots) or (report is not None and not report.leased):
        return ASK_AT_ONCE_SECONDS
    if report is not None and report.phase is WorldPhase.COMPLETING:
        return ASK_SOON_SECONDS  # it waits for our word that the last checkpoint is saved
    if status.state == "Running":
        return ASK_SECONDS
    all_run = sum(pod.container.running for pod in view.workers.values()) == len(status.slots)
    return ASK_SOON_SECONDS if all_run else ASK_SELDOM_SECONDS


def next_look(view: View, status: JobStatus) -> float | None:
    """Seconds until something falls due. None: nothing will."""
    due = [moment for moment in _moments(view, status) if moment > view.now]
    return (min(due) - view.now).total_seconds() if due else None


def _moments(view: View, status: JobStatus) -> Iterator[datetime]:
    spec = view.spec
    if status.finished:
        end, ttl = status.completion_time or view.now, spec.ttl_seconds_after_finished
        yield end + timedelta(seconds=exit_seconds(status))
        if ttl is not None:
            yield end + timedelta(seconds=ttl)
        return
    if spec.active_deadline_seconds is not None and status.start_time is not None and not spec.suspend:
        yield view.at(status.start_time + timedelta(seconds=spec.active_deadline_seconds))
    if (moment := release.due(view, status)) is not None:
        yield moment
    if status.coordinator_fault_since is not None:
        life = longest_life(spec.recovery.fence_seconds)
        yield status.coordinator_fault_since + timedelta(seconds=life)
    for each in status.coordinator.former:
        if (left := formercoordinators.lapses_in(view, each)) < math.inf:
            yield view.now + timedelta(seconds=left)
    if (silent := unservedrequests.silent_at(view)) is not None:
        yield silent
    yield from _accounting(view, status)
    yield from _pods(view, status)


def _accounting(view: View, status: JobStatus) -> Iterator[datetime]:
    policy = view.spec.recovery
    gone = {slot.slot: slot.old_pod_gone for slot in status.slots}
    for each in status.incidents:
        if not each.settled:
            yield incidents.settles_at(each, policy, gone.get(each.slot, True))
    for charge in status.failures.charges:
        yield view.at(charge.time + timedelta(seconds=policy.window_seconds))


def _pods(view: View, status: JobStatus) -> Iterator[datetime]:
    fence = timedelta(seconds=longest_life(view.spec.recovery.fence_seconds))
    for slot in status.slots:
        if slot.replaced_at is not None and not slot.old_pod_gone:
            yield slot.replaced_at + fence
            yield view.now + fence - timedelta(seconds=view.held(slot))
    paced = [(status.coordinator.since, status.coordinator.faults)]
    paced += [(slot.replaced_at, slot.faults) for slot in status.slots]
    for since, faults in paced:
        begin = backoff.ends_at(since, faults)
        if begin is not None:
            yield begin
    if mounts(view):
        yield view.now + timedelta(seconds=ASSUMED_UP_TO_DATE_SECONDS - view.seen.secret_age)
    for pod in view.workers.values():
        if pod.deleting and pod.delete_at is not None:
            yield pod.delete_at + timedelta(seconds=DELETE_MARGIN_SECONDS)
