"""When to reconcile a job again although nothing happens. Whatever in `core` depends on the passing of time
has its time here, except what polls of the coordinator notice in time, and delays that an Answer or
status/progress.py returns.
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
from ropeteam.core.questions.steady import ASSUMED_UP_TO_DATE_SECONDS, is_mounting
from ropeteam.core.seen import previouscoordinators, unservedrequests
from ropeteam.core.seen.view import View
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.fence import longest_life

SLOW_POLL_SECONDS, POLL_SECONDS, FAST_POLL_SECONDS, URGENT_POLL_SECONDS = 15.0, 5.0, 1.0, 0.2
"""Seconds between two requests to the coordinator: each sends the desired state and receives a report."""
POLLS_PER_LEASE = 5
"""Requests per lease of a coordinator (leaseSeconds). The lease counts from a report that the next request
acknowledges, so two intervals pass before each renewal; five allow for lost requests."""


def seconds_to_next_poll(view: View, status: JobStatus) -> float:
    """Seconds until the next request to the coordinator. Short only while its report is the one thing that is
    waited for: a world cannot form before all pods run, and changes of pods are watched.
    """
    lease = status.coordinator.lease_seconds or math.inf
    return min(_poll_seconds(view, status), lease / POLLS_PER_LEASE)


def _poll_seconds(view: View, status: JobStatus) -> float:
    """Interval of requests without regard to a lease; the first case that applies, the most urgent first."""
    report = view.report
    if any(slot.handover_pending for slot in status.slots) or (report is not None and not report.lease_valid):
        return URGENT_POLL_SECONDS
    if report is not None and report.phase is WorldPhase.COMPLETING:
        return FAST_POLL_SECONDS  # it waits until we acknowledge the last checkpoint
    if status.state == "Running":
        return POLL_SECONDS
    all_run = sum(pod.container.running for pod in view.workers.values()) == len(status.slots)
    return FAST_POLL_SECONDS if all_run else SLOW_POLL_SECONDS


def requeue_after(view: View, status: JobStatus) -> float | None:
    """Seconds until the next time at which a decision may differ without a change of anything else. None:
    there is none. Times that have passed do not count: this decision has taken them into account."""
    due = [moment for moment in _due_times(view, status) if moment > view.now]
    return (min(due) - view.now).total_seconds() if due else None


def _due_times(view: View, status: JobStatus) -> Iterator[datetime]:
    """Times, by the wall clock, at which something falls due; some may have passed. Of a finished job only
    cleaning up. Order does not matter."""
    spec = view.spec
    if status.finished:
        end, ttl = status.completion_time or view.now, spec.ttl_seconds_after_finished
        yield end + timedelta(seconds=exit_seconds(status))
        if ttl is not None:
            yield end + timedelta(seconds=ttl)
        return
    if spec.active_deadline_seconds is not None and status.start_time is not None and not spec.suspend:
        yield view.wall_time(status.start_time + timedelta(seconds=spec.active_deadline_seconds))
    if (moment := release.next_release_change(view, status)) is not None:
        yield moment
    if status.coordinator_unreachable_start_time is not None:
        life = longest_life(spec.recovery.fence_seconds)
        yield status.coordinator_unreachable_start_time + timedelta(seconds=life)
    for each in status.coordinator.previous:
        if (left := previouscoordinators.seconds_to_lease_expiry(view, each)) < math.inf:
            yield view.now + timedelta(seconds=left)
    if (silent_at := unservedrequests.scheduler_silent_at(view)) is not None:
        yield silent_at
    yield from _incident_times(view, status)
    yield from _pod_times(view, status)


def _incident_times(view: View, status: JobStatus) -> Iterator[datetime]:
    """Times at which incidents become final, and charges leave the window."""
    policy = view.spec.recovery
    fenced = {slot.slot: slot.previous_pod_fenced for slot in status.slots}
    for each in status.incidents:
        if not each.final:
            yield incidents.final_at(each, policy, fenced.get(each.slot, True))
    for charge in status.failures.charges:
        yield view.wall_time(charge.time + timedelta(seconds=policy.window_seconds))


def _pod_times(view: View, status: JobStatus) -> Iterator[datetime]:
    """Times at which fences of replaced pods end (by both clocks, as in merge.py), backoffs end, Secrets are
    created again, and grace periods of terminating pods are over."""
    fence = timedelta(seconds=longest_life(view.spec.recovery.fence_seconds))
    for slot in status.slots:
        if slot.replacement_time is not None and not slot.previous_pod_fenced:
            yield slot.replacement_time + fence
            yield view.now + fence - timedelta(seconds=view.seconds_held(slot))
    backoffs = [(status.coordinator.start_time, status.coordinator.consecutive_failures)]
    backoffs += [(slot.replacement_time, slot.consecutive_failures) for slot in status.slots]
    for since, failures in backoffs:
        retry_at = backoff.retry_at(since, failures)
        if retry_at is not None:
            yield retry_at
    if is_mounting(view):
        yield view.now + timedelta(seconds=ASSUMED_UP_TO_DATE_SECONDS - view.seen.secret_age)
    for pod in view.workers.values():
        if pod.deleting and pod.delete_at is not None:
            yield pod.delete_at + timedelta(seconds=DELETE_MARGIN_SECONDS)
