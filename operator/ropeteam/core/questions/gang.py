"""The whole gang: start, drain, stop and restart. A drain that has begun is finished, whatever the user
changes then.

A start opens an attempt: new incarnations of every slot, a new coordinator term. No name is ever used twice.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.status import CoordinatorStatus, JobStatus, SlotStatus
from ropeteam.core.objects.actions import Action, DeletePod
from ropeteam.core.objects.manifests import DRAIN_MARGIN_SECONDS
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.pending import live_answer
from ropeteam.core.seen import previouscoordinators, unservedrequests
from ropeteam.core.seen.classify import is_proven_stopped
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status.conditions import NOT_SUSPENDED, ConditionFact
from ropeteam_trainer.contract.desired import WorldPhase

_MUTABLE_FIELDS: Any = {
    "suspend": True,
    "restarted_at": True,
    "active_deadline_seconds": True,
    "ttl_seconds_after_finished": True,
    "clean_pod_policy": True,
    "recovery": {"max_failures", "window_seconds"},
    "resume": {"trust"},  # set when the job began, and a CRD of an earlier release drops it
}


def pod_spec_hash(spec: TrainingJobSpec) -> str:
    """Digest of the fields that shape pods. Without defaults: a new field with one changes no running job."""
    fields = spec.model_dump(mode="json", exclude=_MUTABLE_FIELDS, exclude_defaults=True)
    fields = {name: value for name, value in fields.items() if value != {}}  # only mutable ones were set
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def has_pod_spec_changed(view: View) -> bool:
    """Whether pods made now would differ from those that run."""
    saved = view.status.pod_spec_hash
    return bool(saved) and not view.suspended and saved != pod_spec_hash(view.spec)


def successor(slot: SlotStatus, pod: PodSeen | None, incarnation: int, now: datetime) -> SlotStatus:
    """The next incarnation of a slot whose current pod is `pod` (None: no such object)."""
    harmless = not slot.pod_uid or (pod is not None and is_proven_stopped(pod))
    return SlotStatus(
        slot=slot.slot,
        incarnation=incarnation,
        replacement_time=now,
        previous_pod_uid=slot.pod_uid if slot.previous_pod_fenced else "",  # of two only time is proof
        previous_pod_fenced=slot.previous_pod_fenced and harmless,
        avoid_node=slot.avoid_node,
        consecutive_failures=slot.consecutive_failures + 1,
    )


def open_attempt(view: View, status: JobStatus, stopped_at: datetime | None = None) -> JobStatus:
    """Status of a new attempt with new pods. `stopped_at`: since when no pod has been there to train."""
    incarnation = max((slot.incarnation for slot in status.slots), default=0) + 1
    fresh = (SlotStatus(slot=number, incarnation=incarnation) for number in range(view.spec.slots))
    since = stopped_at or view.now
    successors = {slot.slot: _next_slot(view, status, slot, incarnation, since) for slot in status.slots}
    slots = [successors.get(slot.slot, slot) for slot in fresh]
    if not all(slot.previous_pod_fenced for number, slot in successors.items() if number >= len(slots)):
        # There are fewer slots now; a previous pod of a removed one that may still write is waited for.
        slots[0] = with_changes(slots[0], previous_pod_fenced=False, previous_pod_uid="")
    coordinator = status.coordinator
    requested = view.spec.restarted_at
    return with_changes(
        status,
        attempt=status.attempt + 1,
        coordinator=CoordinatorStatus(
            term=coordinator.term + 1,
            address=_address(view),
            previous=previouscoordinators.with_retired(view, coordinator),
            lease_seconds=view.spec.recovery.lease_seconds,
            start_time=view.now,
        ),
        run_as_user=view.seen.refusal.user if view.seen.refusal else None,
        capabilities_dropped=True,
        slots=tuple(slots),
        avoided_nodes=(),
        pod_spec_hash=pod_spec_hash(view.spec),
        feature_level=0,  # another script may come with it
        drained=False,
        drain_start_time=None,
        backoff_end_time=None,
        observed_restarted_at=requested.isoformat() if requested else "",
    )


def _next_slot(
    view: View, status: JobStatus, slot: SlotStatus, incarnation: int, since: datetime
) -> SlotStatus:
    """Slot in the next attempt. The end of all ranks proves nothing about a pod that was replaced before."""
    next_slot = successor(slot, view.workers.get(slot.slot), incarnation, since)
    gone = next_slot.previous_pod_fenced or (status.drained and slot.previous_pod_fenced)
    return with_changes(next_slot, previous_pod_fenced=gone, avoid_node="", consecutive_failures=0)


def _address(view: View) -> str:
    return view.seen.service.cluster_ip if view.seen.service else view.status.coordinator.address


def start(view: View, status: JobStatus) -> Answer | None:
    """A new attempt of a job that is not started, or suspended and to be resumed."""
    if view.spec.suspend or (status.attempt > 0 and not view.suspended):
        return None
    resumed = status.holds(ConditionType.SUSPENDED)
    condition = status.condition(ConditionType.SUSPENDED)
    since = condition.last_transition_time if condition and resumed else None
    opened = with_changes(open_attempt(view, status, since), start_time=view.job_time)
    verb = "resumes" if resumed else "starts"
    why = f"the job {verb}: attempt {opened.attempt} with {len(opened.slots)} workers"
    return live_answer(view, opened, why)


def is_restart_requested(view: View) -> bool:
    requested = view.spec.restarted_at
    return requested is not None and requested.isoformat() != view.status.observed_restarted_at


def stop(view: View, status: JobStatus) -> Answer | None:
    """Answer for a job that is suspended, to be suspended or restarted, or in the middle of one of these."""
    if view.spec.suspend and (view.suspended or status.attempt == 0):
        return _suspended(view, status)
    if status.attempt == 0 or view.suspended:
        return None  # nothing runs: a start does what a restart would
    if not (view.spec.suspend or is_restart_requested(view) or status.drain_start_time):
        return None
    state = "Suspending" if view.spec.suspend else "Restarting"
    if status.drain_start_time is None:
        why = "spec.suspend is true" if view.spec.suspend else "spec.restartedAt has changed"
        message = f"A checkpoint is taken, then all ranks stop: {why}."
        facts = (NOT_SUSPENDED, ConditionFact(ConditionType.RUNNING, False, state, message))
        return Answer(f"{why}: drain first", with_changes(status, drain_start_time=view.now), state, facts)
    return _draining(view, status, state, status.drain_start_time)


def _suspended(view: View, status: JobStatus) -> Answer:
    facts = (
        ConditionFact(ConditionType.SUSPENDED, True, "Suspended", unservedrequests.resumption(view)),
        ConditionFact(ConditionType.RUNNING, False, "Suspended"),
        ConditionFact(ConditionType.RECOVERING, False, "Suspended"),
    )
    previous = previouscoordinators.with_retired(view, status.coordinator)
    coordinator = with_changes(status.coordinator, pod_uid="", node="", previous=previous)
    suspended = with_changes(status, drain_start_time=None, backoff_end_time=None, coordinator=coordinator)
    pods = (*view.all_workers, *view.all_coordinators)
    return Answer("the job is suspended", suspended, "Suspended", facts, deletions(pods))


def _draining(view: View, status: JobStatus, state: str, since: datetime) -> Answer:
    """Drain until the coordinator reports it done, no worker runs, or the time is up. Then the pods go."""
    drained = status.drained or (view.report is not None and view.report.phase is WorldPhase.DRAINED)
    status = with_changes(status, drained=drained)
    none_runs = not any(pod.container.running for pod in view.workers.values())
    limit = view.spec.recovery.drain_seconds + DRAIN_MARGIN_SECONDS
    if not (drained or none_runs or view.has_passed(since, limit)):
        return Answer(
            "waiting for the coordinator to report that all ranks have saved and stopped",
            status,
            state,
            requeue_after_seconds=view.seconds_until(since, limit),
        )
    if not view.spec.suspend:
        opened = open_attempt(view, status)
        return Answer(f"all ranks have stopped: attempt {opened.attempt} with new pods", opened, state)
    return _remove_all(view, status, state)


def _remove_all(view: View, status: JobStatus, state: str) -> Answer:
    """Delete workers first; the coordinator last, because terminating workers wait for its order to exit."""
    if any_active(view.all_workers):
        why = "deleting the workers, then the coordinator"
        return Answer(why, status, state, actions=deletions(view.all_workers))
    if any_active(view.all_coordinators):
        pods = (*view.all_workers, *view.all_coordinators)
        return Answer("no worker is left: deleting the coordinator", status, state, actions=deletions(pods))
    return _suspended(view, status)


def any_active(pods: tuple[PodSeen, ...]) -> bool:
    """Whether some pod may still run a process. A pod on a lost node is fenced by time and not waited for."""
    return any(not pod.node_lost and not pod.ended for pod in pods)


def deletions(pods: tuple[PodSeen, ...]) -> tuple[Action, ...]:
    """Deletions of those pods that are not terminating yet."""
    return tuple(DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)
