"""Release of a gang that is scheduled only in part: its pods are deleted after a while, and created again
later.

Two jobs that each hold half of a cluster's GPUs would wait for each other for ever. Kubernetes schedules pods
one by one, so a start that is not complete after recovery.startSeconds ends: all pods go, uncharged, and
after a backoff a new attempt creates all pods again. How long each job waits and backs off depends on its UID
and attempt, so that two of them do not do it in step. Limits: a job that has run in this attempt keeps its
nodes while a replacement waits for one; a job none of whose pods has a node holds up nobody and simply waits.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.gang import any_active, deletions, open_attempt
from ropeteam.core.questions.pending import is_recovering, is_running, worst_obstacle
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status.conditions import NOT_SUSPENDED, ConditionFact

LONGEST_BACKOFF_SECONDS = 60


def release_partial_gang(view: View, status: JobStatus) -> Answer | None:
    """Release the pods, back off, or open a new attempt. None: there is no reason to."""
    if status.backoff_end_time is not None:
        return _back_off(view, status, status.backoff_end_time)
    if not _is_partly_scheduled(view, status) or view.now < released_at(view, status):
        return None
    backoff = timedelta(seconds=_jitter(view, "rest") * _longest_backoff(view))
    return _waiting(view, with_changes(status, backoff_end_time=view.now + backoff))


def next_release_change(view: View, status: JobStatus) -> datetime | None:
    """Moment at which the answer of `release_partial_gang` changes. None: never."""
    if status.backoff_end_time is not None:
        return status.backoff_end_time
    return released_at(view, status) if _is_partly_scheduled(view, status) else None


def released_at(view: View, status: JobStatus) -> datetime:
    """Moment at which a start that is not complete ends: after startSeconds, and up to half as much again."""
    patience = view.spec.recovery.start_seconds * (0.5 + _jitter(view, "patience"))
    return (status.coordinator.start_time or view.now) + timedelta(seconds=patience)


def _is_partly_scheduled(view: View, status: JobStatus) -> bool:
    """Whether some pods have a node, others find none, and there was no world yet that would be lost."""
    if is_running(view) or is_recovering(view, status):
        return False
    workers = [pod for pod in view.workers.values() if not pod.deleting]
    return any(pod.node for pod in workers) and any(not p.node and p.scheduled_message for p in workers)


def _back_off(view: View, status: JobStatus, until: datetime) -> Answer:
    pods = (*view.all_workers, *view.all_coordinators)
    if view.now < until or any_active(pods):
        latest = view.now + timedelta(seconds=_longest_backoff(view))  # the wall clock may have stepped back
        return _waiting(view, with_changes(status, backoff_end_time=min(until, latest)))
    # No pod of this attempt trained. A pod on a lost node, or an older one, is fenced by time as always.
    ended = not any(pod.node_lost for pod in view.all_workers) and all(
        s.previous_pod_fenced for s in status.slots
    )
    opened = open_attempt(view, with_changes(status, drained=ended))
    why = f"creating all pods again: attempt {opened.attempt} with {len(opened.slots)} workers"
    return Answer(why, opened, "Pending")


def _waiting(view: View, status: JobStatus) -> Answer:
    why = "deleted its pods, because not all of them could be scheduled"
    saved = status.condition(ConditionType.STALLED)
    obstacle = worst_obstacle(view)
    message = saved.message if saved is not None and saved.holds else obstacle.message if obstacle else ""
    facts = (
        NOT_SUSPENDED,
        ConditionFact(
            ConditionType.RUNNING,
            False,
            "GangPartlySchedulable",
            f"The job {why}. They will be created again. {message}".strip(),
        ),
        ConditionFact(ConditionType.RECOVERING, False, "NotRecovering"),
        ConditionFact(ConditionType.STALLED, True, "Unschedulable", message),
    )
    return Answer(
        f"{why}; they are created again later",
        status,
        "Pending",
        facts,
        deletions((*view.all_workers, *view.all_coordinators)),
    )


def _longest_backoff(view: View) -> float:
    return min(LONGEST_BACKOFF_SECONDS, view.spec.recovery.start_seconds)


def _jitter(view: View, purpose: str) -> float:
    """Factor between 0.5 and 1, the same for the same job, attempt and purpose."""
    text = f"{view.job.uid}/{view.status.attempt}/{purpose}"
    return 0.5 + int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / (1 << 33)
