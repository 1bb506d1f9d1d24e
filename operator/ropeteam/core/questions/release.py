"""Release of a gang that is scheduled only in part: after a time its pods are deleted, and after a backoff
created again.

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
from ropeteam.core.objects.manifests import coordinator_config
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.gang import deletions, may_any_run, with_new_attempt
from ropeteam.core.questions.pending import first_obstacle, is_recovering, is_running
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status.conditions import NOT_SUSPENDED, ConditionFact

_MAX_BACKOFF_SECONDS = 60


def release_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer that begins the backoff of a gang that is scheduled in part, waits for its end, or then opens a
    new attempt. None: the gang is scheduled, or may still become so."""
    if status.backoff_end_time is not None:
        return _backoff_answer(view, status, status.backoff_end_time)
    if not _is_partly_scheduled(view, status) or view.now < released_at(view, status):
        return None
    backoff = timedelta(seconds=_jitter_factor(view, "rest") * _longest_backoff_seconds(view))
    return _deletion_answer(view, with_changes(status, backoff_end_time=view.now + backoff))


def next_release_change(view: View, status: JobStatus) -> datetime | None:
    """Time at which `release_answer` changes although nothing else does; it may have passed. None: only a
    change of pods or of status changes it."""
    if status.backoff_end_time is not None:
        return status.backoff_end_time
    return released_at(view, status) if _is_partly_scheduled(view, status) else None


def released_at(view: View, status: JobStatus) -> datetime:
    """Time at which a start that is not complete ends: 1 to 1.5 times startSeconds after the coordinator's
    term was decided on."""
    patience = view.spec.recovery.start_seconds * (0.5 + _jitter_factor(view, "patience"))
    return (status.coordinator.start_time or view.now) + timedelta(seconds=patience)


def _can_begin(view: View, scheduled: set[int]) -> bool:
    """Whether spec.elastic lets the job begin with these workers: enough of whole replicas, of which one has
    rank 0."""
    if view.spec.elastic is None:
        return False
    config = coordinator_config(view.seen, view.spec)
    whole = {slot for slot in scheduled if scheduled >= {*config.mates_of(slot, config.replica_ranks)}}
    return 0 in whole and len(whole) >= view.spec.elastic.min_workers


def _is_partly_scheduled(view: View, status: JobStatus) -> bool:
    """Whether some workers have a node while the scheduler finds none for others. False while there is a
    world, or the job recovers: such a job holds its nodes. So does one that can begin with fewer workers."""
    if is_running(view) or is_recovering(view, status):
        return False
    workers = [pod for pod in view.workers.values() if not pod.deleting]
    if _can_begin(view, {pod.slot for pod in workers if pod.node}):
        return False
    return any(pod.node for pod in workers) and any(not p.node and p.scheduled_message for p in workers)


def _backoff_answer(view: View, status: JobStatus, until: datetime) -> Answer:
    """Answer during the backoff: deletions until it has passed and no pod may run, then a new attempt."""
    pods = (*view.all_workers, *view.all_coordinators)
    if view.now < until or may_any_run(pods):
        # The wall clock may have stepped back, which must not prolong the backoff.
        latest = view.now + timedelta(seconds=_longest_backoff_seconds(view))
        return _deletion_answer(view, with_changes(status, backoff_end_time=min(until, latest)))
    # No pod of this attempt has trained, so all count as drained. The fence still covers lost nodes.
    ended = not any(pod.node_lost for pod in view.all_workers) and all(
        slot.previous_pod_fenced for slot in status.slots
    )
    opened = with_new_attempt(view, with_changes(status, drained=ended))
    why = (
        f"creating all pods again: attempt {opened.attempt} with {view.spec.workers} workers, because not "
        f"all pods of attempt {status.attempt} could be scheduled"
    )
    return Answer(why, opened, "Pending")


def _deletion_answer(view: View, status: JobStatus) -> Answer:
    """Answer that deletes all pods. The scheduler's message is that of the saved Stalled, if it is True:
    pods that are being deleted have none any more."""
    why = "deleted its pods, because not all of them could be scheduled"
    saved = status.condition(ConditionType.STALLED)
    obstacle = first_obstacle(view)
    message = saved.message if saved is not None and saved.holds else obstacle.message if obstacle else ""
    facts = (
        NOT_SUSPENDED,
        ConditionFact(
            ConditionType.RUNNING,
            False,
            "GangPartlySchedulable",
            f"The job {why}. Other jobs can use the resources now. All are created again after a backoff "
            f"of at most {_longest_backoff_seconds(view):.0f} s. {message}".strip(),
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


def _longest_backoff_seconds(view: View) -> float:
    return min(_MAX_BACKOFF_SECONDS, view.spec.recovery.start_seconds)


def _jitter_factor(view: View, purpose: str) -> float:
    """Factor between 0.5 and 1, derived from the job's UID, attempt and `purpose`: each reconcile computes
    the same one, and two jobs different ones."""
    text = f"{view.job.uid}/{view.status.attempt}/{purpose}"
    return 0.5 + int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / (1 << 33)
