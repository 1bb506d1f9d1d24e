"""The whole gang: start, suspension and restart.

A start opens an attempt: new incarnations of every slot, a new coordinator term. No name is ever used twice.
Suspension and restart begin with a drain. A drain that has begun is finished, whatever the user changes then.
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
from ropeteam.core.questions.live import live_answer
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
"""Fields that may change while pods run, in the form of `model_dump(exclude=...)`."""


def pod_spec_hash(spec: TrainingJobSpec) -> str:
    """Digest of the fields that define pods. Fields at their default are left out: so a field that a later
    release adds, with a default, changes the digest of no running job."""
    fields = spec.model_dump(mode="json", exclude=_MUTABLE_FIELDS, exclude_defaults=True)
    fields = {name: value for name, value in fields.items() if value != {}}  # only mutable ones were set
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def has_pod_spec_changed(view: View) -> bool:
    """Whether pods created now would differ from those of this attempt. False: there is none, or the job is
    suspended."""
    saved = view.status.pod_spec_hash
    return bool(saved) and not view.suspended and saved != pod_spec_hash(view.spec)


def successor(slot: SlotStatus, pod: PodSeen | None, incarnation: int, now: datetime) -> SlotStatus:
    """The slot with its next incarnation, not created yet. `pod`: the pod that is replaced; None: its object
    is gone.

    The successor counts as fenced if the replaced pod cannot write, and the pods before it could not either.
    The UID is saved only if the replaced pod is the only one that may still write: of several, only the
    passing of the fence proves that all have ended."""
    harmless = not slot.pod_uid or (pod is not None and is_proven_stopped(pod))
    return SlotStatus(
        slot=slot.slot,
        incarnation=incarnation,
        replacement_time=now,
        previous_pod_uid=slot.pod_uid if slot.previous_pod_fenced else "",
        previous_pod_fenced=slot.previous_pod_fenced and harmless,
        avoid_node=slot.avoid_node,
        consecutive_failures=slot.consecutive_failures + 1,
    )


def with_new_attempt(view: View, status: JobStatus, stopped_at: datetime | None = None) -> JobStatus:
    """`status` with a new attempt: new incarnations of all slots, a new coordinator term, the present spec.

    `stopped_at`: time since which no pod has run; the fence of replaced pods counts from it. None: from now.
    Incarnations begin above all of earlier attempts, also those of slots that the job has no more."""
    incarnation = max((slot.incarnation for slot in status.slots), default=0) + 1
    new_slots = (SlotStatus(slot=number, incarnation=incarnation) for number in range(view.spec.slots))
    replaced_at = stopped_at or view.now
    successors = {
        slot.slot: _next_slot(view, status, slot, incarnation, replaced_at) for slot in status.slots
    }
    slots = [successors.get(slot.slot, slot) for slot in new_slots]
    if not all(slot.previous_pod_fenced for number, slot in successors.items() if number >= len(slots)):
        # The job has fewer slots now. Slot 0 stays unfenced in place of removed ones whose pods may write.
        slots[0] = with_changes(slots[0], previous_pod_fenced=False, previous_pod_uid="")
    coordinator = status.coordinator
    requested = view.spec.restarted_at
    return with_changes(
        status,
        attempt=status.attempt + 1,
        coordinator=CoordinatorStatus(
            term=coordinator.term + 1,
            address=_service_address(view),
            previous=previouscoordinators.with_retired(view, coordinator),
            lease_seconds=view.spec.recovery.lease_seconds,
            start_time=view.now,
        ),
        run_as_user=view.seen.refusal.user if view.seen.refusal else None,
        capabilities_dropped=True,
        slots=tuple(slots),
        avoided_nodes=(),
        pod_spec_hash=pod_spec_hash(view.spec),
        feature_level=0,  # the new pods may run another script
        drained=False,
        drain_start_time=None,
        backoff_end_time=None,
        observed_restarted_at=requested.isoformat() if requested else "",
    )


def _next_slot(
    view: View, status: JobStatus, slot: SlotStatus, incarnation: int, replaced_at: datetime
) -> SlotStatus:
    """`slot` in the next attempt. A drain proves that the current pod's ranks have ended, but nothing about
    pods that were replaced before."""
    next_slot = successor(slot, view.workers.get(slot.slot), incarnation, replaced_at)
    fenced = next_slot.previous_pod_fenced or (status.drained and slot.previous_pod_fenced)
    return with_changes(next_slot, previous_pod_fenced=fenced, avoid_node="", consecutive_failures=0)


def _service_address(view: View) -> str:
    """Address of the job's Service: the observed one, or the saved one, which the next Service requests."""
    return view.seen.service.cluster_ip if view.seen.service else view.status.coordinator.address


def start_answer(view: View, status: JobStatus) -> Answer | None:
    """First attempt of a job, or the next one of a suspended job that resumes. None: it is to be suspended,
    or was started."""
    if view.spec.suspend or (status.attempt > 0 and not view.suspended):
        return None
    resumed = status.holds(ConditionType.SUSPENDED)
    condition = status.condition(ConditionType.SUSPENDED)
    since = condition.last_transition_time if condition and resumed else None
    opened = with_changes(with_new_attempt(view, status, since), start_time=view.job_time)
    verb = "resumes" if resumed else "starts"
    why = f"the job {verb}: attempt {opened.attempt} with {view.spec.workers} workers"
    return live_answer(view, opened, why)


def is_restart_requested(view: View) -> bool:
    """Whether spec.restartedAt is set, and differs from that of the last started attempt."""
    requested = view.spec.restarted_at
    return requested is not None and requested.isoformat() != view.status.observed_restarted_at


def stop_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer about a job that is suspended, is to be suspended or restarted, or drains for that. None: none
    of these.

    Order of a suspension: save the start of the drain; wait for it; delete workers, then the coordinator;
    save the condition Suspended. A restart opens a new attempt instead once the drain has ended."""
    if view.spec.suspend and (view.suspended or status.attempt == 0):
        return _suspended_answer(view, status)
    if status.attempt == 0 or view.suspended:
        return None  # nothing runs: a start does what a restart would
    if not (view.spec.suspend or is_restart_requested(view) or status.drain_start_time):
        return None
    state = "Suspending" if view.spec.suspend else "Restarting"
    if status.drain_start_time is None:
        why = "spec.suspend is true" if view.spec.suspend else "spec.restartedAt has changed"
        message = (
            "All ranks save a checkpoint (if spec.checkpoint is set and the script saves with it), and stop, "
            f"because {why}."
        )
        facts = (
            NOT_SUSPENDED,
            ConditionFact(ConditionType.RUNNING, False, state, message),
            ConditionFact(ConditionType.RECOVERING, False, state),
        )
        return Answer(f"{why}: drain first", with_changes(status, drain_start_time=view.now), state, facts)
    return _draining_answer(view, status, state, status.drain_start_time)


def _suspended_answer(view: View, status: JobStatus) -> Answer:
    """Answer about a suspended job: Suspended is True, and pods that are still there are deleted."""
    facts = (
        ConditionFact(ConditionType.SUSPENDED, True, "Suspended", _resume_message(view)),
        ConditionFact(ConditionType.RUNNING, False, "Suspended"),
        ConditionFact(ConditionType.RECOVERING, False, "Suspended"),
    )
    previous = previouscoordinators.with_retired(view, status.coordinator)
    coordinator = with_changes(status.coordinator, pod_uid="", node="", previous=previous)
    suspended = with_changes(status, drain_start_time=None, backoff_end_time=None, coordinator=coordinator)
    pods = (*view.all_workers, *view.all_coordinators)
    return Answer("the job is suspended", suspended, "Suspended", facts, deletions(pods))


def _draining_answer(view: View, status: JobStatus, state: str, since: datetime) -> Answer:
    """Answer while the job drains. The drain ends when the coordinator reports it done, when no worker runs,
    or drainSeconds and a margin after `since`. Then a restart opens an attempt, and a suspension deletes."""
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
        opened = with_new_attempt(view, status)
        return Answer(f"all ranks have stopped: attempt {opened.attempt} with new pods", opened, state)
    return _removal_answer(view, status, state)


def _removal_answer(view: View, status: JobStatus, state: str) -> Answer:
    """Deletions after the drain of a suspension: workers first, the coordinator when none may run, because
    terminating agents wait for its orders to exit. With no pod left, the job is suspended."""
    if may_any_run(view.all_workers):
        why = "deleting the workers, then the coordinator"
        return Answer(why, status, state, actions=deletions(view.all_workers))
    if may_any_run(view.all_coordinators):
        pods = (*view.all_workers, *view.all_coordinators)
        return Answer("no worker is left: deleting the coordinator", status, state, actions=deletions(pods))
    return _suspended_answer(view, status)


def _resume_message(view: View) -> str:
    """Message of the condition Suspended: how to resume, and that no queue does it."""
    text = (
        f"No pod runs. Set spec.suspend to false to resume: kubectl patch tj {view.job.name} "
        f'-n {view.job.namespace} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    queue = view.job.labels.get(unservedrequests.QUEUE)
    if queue is None:
        return text
    label = unservedrequests.QUEUE
    return f"{text} (Queue {queue}, of the label {label}, does not resume it: see the condition Degraded.)"


def may_any_run(pods: tuple[PodSeen, ...]) -> bool:
    """Whether some of the pods has not ended and is on a node that is not lost. Pods on lost nodes are left
    out: nothing reports their end, and the fence covers them."""
    return any(not pod.node_lost and not pod.ended for pod in pods)


def deletions(pods: tuple[PodSeen, ...]) -> tuple[Action, ...]:
    """Deletions of the pods that are not terminating yet, each with the pod's own grace period."""
    return tuple(DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)
