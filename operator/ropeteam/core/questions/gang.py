"""The whole gang: started, drained, stopped, started anew. A drain that has begun is finished, whatever the
user says then.

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
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.pending import live
from ropeteam.core.seen import formercoordinators, unservedrequests
from ropeteam.core.seen.classify import cannot_write
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status.conditions import NOT_SUSPENDED, Fact
from ropeteam_trainer.contract.desired import WorldPhase

DRAIN_MARGIN_SECONDS = 10
_FREE_TO_CHANGE: Any = {
    "suspend": True,
    "restarted_at": True,
    "active_deadline_seconds": True,
    "ttl_seconds_after_finished": True,
    "clean_pod_policy": True,
    "recovery": {"max_failures", "window_seconds"},
    "resume": {"trust"},  # said when the job began, and a definition of an earlier release drops it
}


def shape(spec: TrainingJobSpec) -> str:
    """Digest of what pods are made from. Without defaults: a new field with one changes no running job."""
    fields = spec.model_dump(mode="json", exclude=_FREE_TO_CHANGE, exclude_defaults=True)
    fields = {name: value for name, value in fields.items() if value != {}}  # only free ones were set
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def shape_changed(view: View) -> bool:
    """Pods made now would differ from those that run."""
    saved = view.status.shape
    return bool(saved) and not view.suspended and saved != shape(view.spec)


def successor(slot: SlotStatus, pod: PodSeen | None, incarnation: int, now: datetime) -> SlotStatus:
    """The next incarnation of a slot whose current pod is `pod` (None: no such object)."""
    harmless = not slot.pod_uid or (pod is not None and cannot_write(pod))
    return SlotStatus(
        slot=slot.slot,
        incarnation=incarnation,
        replaced_at=now,
        old_pod_uid=slot.pod_uid if slot.old_pod_gone else "",  # of two old pods only time tells
        old_pod_gone=slot.old_pod_gone and harmless,
        avoid_node=slot.avoid_node,
        faults=slot.faults + 1,
    )


def open_attempt(view: View, status: JobStatus, stopped_at: datetime | None = None) -> JobStatus:
    """All pods anew. `stopped_at`: since when nobody has been there to train."""
    incarnation = max((slot.incarnation for slot in status.slots), default=0) + 1
    fresh = (SlotStatus(slot=number, incarnation=incarnation) for number in range(view.spec.slots))
    since = stopped_at or view.now
    after = {slot.slot: _anew(view, status, slot, incarnation, since) for slot in status.slots}
    slots = [after.get(slot.slot, slot) for slot in fresh]
    if not all(slot.old_pod_gone for number, slot in after.items() if number >= len(slots)):
        # There are fewer now; whose former pod may still write is waited for all the same.
        slots[0] = with_changes(slots[0], old_pod_gone=False, old_pod_uid="")
    coordinator = status.coordinator
    wish = view.spec.restarted_at
    return with_changes(
        status,
        attempt=status.attempt + 1,
        coordinator=CoordinatorStatus(
            term=coordinator.term + 1,
            address=_address(view),
            former=formercoordinators.retired(view, coordinator),
            lease_seconds=view.spec.recovery.lease_seconds,
            since=view.now,
        ),
        user=view.seen.refusal.user if view.seen.refusal else None,
        drops_capabilities=True,
        slots=tuple(slots),
        avoided_nodes=(),
        shape=shape(view.spec),
        rung=0,  # another script may come with it
        drained=False,
        drain_since=None,
        rests_until=None,
        restarted_at=wish.isoformat() if wish else "",
    )


def _anew(view: View, status: JobStatus, slot: SlotStatus, incarnation: int, since: datetime) -> SlotStatus:
    """In the next attempt. That all ranks have ended says nothing of a pod that was replaced before."""
    after = successor(slot, view.workers.get(slot.slot), incarnation, since)
    gone = after.old_pod_gone or (status.drained and slot.old_pod_gone)
    return with_changes(after, old_pod_gone=gone, avoid_node="", faults=0)


def _address(view: View) -> str:
    return view.seen.service.cluster_ip if view.seen.service else view.status.coordinator.address


def start(view: View, status: JobStatus) -> Answer | None:
    """Not started, or suspended and wanted again: a new attempt."""
    if view.spec.suspend or (status.attempt > 0 and not view.suspended):
        return None
    again = status.holds(ConditionType.SUSPENDED)
    at_rest = status.condition(ConditionType.SUSPENDED)
    since = at_rest.last_transition_time if at_rest and again else None
    opened = with_changes(open_attempt(view, status, since), start_time=view.job_time)
    word = "resumes" if again else "starts"
    why = f"the job {word}: attempt {opened.attempt} with {len(opened.slots)} workers"
    return live(view, opened, why)


def wants_restart(view: View) -> bool:
    wish = view.spec.restarted_at
    return wish is not None and wish.isoformat() != view.status.restarted_at


def stop(view: View, status: JobStatus) -> Answer | None:
    """Suspended, to be suspended, to be restarted, or in the middle of one of these."""
    if view.spec.suspend and (view.suspended or status.attempt == 0):
        return _at_rest(view, status)
    if status.attempt == 0 or view.suspended:
        return None  # nothing runs: a start does what a restart wants
    if not (view.spec.suspend or wants_restart(view) or status.drain_since):
        return None
    state = "Suspending" if view.spec.suspend else "Restarting"
    if status.drain_since is None:
        why = "suspend is set" if view.spec.suspend else "restartedAt has changed"
        message = f"A checkpoint is taken, then all ranks stop: {why}."
        facts = (NOT_SUSPENDED, Fact(ConditionType.RUNNING, False, state, message))
        return Answer(f"{why}: drain first", with_changes(status, drain_since=view.now), state, facts)
    return _drain(view, status, state, status.drain_since)


def _at_rest(view: View, status: JobStatus) -> Answer:
    facts = (
        Fact(ConditionType.SUSPENDED, True, "Suspended", unservedrequests.resumption(view)),
        Fact(ConditionType.RUNNING, False, "Suspended"),
        Fact(ConditionType.RECOVERING, False, "Suspended"),
    )
    left = formercoordinators.retired(view, status.coordinator)
    coordinator = with_changes(status.coordinator, pod_uid="", node="", former=left)
    resting = with_changes(status, drain_since=None, rests_until=None, coordinator=coordinator)
    pods = (*view.all_workers, *view.all_coordinators)
    return Answer("the job is suspended", resting, "Suspended", facts, remove(pods))


def _drain(view: View, status: JobStatus, state: str, since: datetime) -> Answer:
    """Until the coordinator says so, or nobody is there to be drained, or patience ends. Then the pods go."""
    drained = status.drained or (view.report is not None and view.report.phase is WorldPhase.DRAINED)
    status = with_changes(status, drained=drained)
    nobody = not any(pod.container.running for pod in view.workers.values())
    patience = view.spec.recovery.drain_seconds + DRAIN_MARGIN_SECONDS
    if not (drained or nobody or view.passed(since, patience)):
        return Answer(
            "waits for the coordinator to say that all ranks have saved and stopped",
            status,
            state,
            again=view.seconds_until(since, patience),
        )
    if not view.spec.suspend:
        opened = open_attempt(view, status)
        return Answer(f"all ranks have stopped: attempt {opened.attempt} with new pods", opened, state)
    return _remove_all(view, status, state)


def _remove_all(view: View, status: JobStatus, state: str) -> Answer:
    """Workers first; the coordinator last, because they ask it for leave."""
    if active(view.all_workers):
        why = "the workers go, then the coordinator"
        return Answer(why, status, state, actions=remove(view.all_workers))
    if active(view.all_coordinators):
        pods = (*view.all_workers, *view.all_coordinators)
        return Answer("no worker is left: the coordinator goes", status, state, actions=remove(pods))
    return _at_rest(view, status)


def active(pods: tuple[PodSeen, ...]) -> bool:
    """Some may still run something. A pod on a lost node is fenced by time, nobody waits for it."""
    return any(not pod.node_lost and not pod.ended for pod in pods)


def remove(pods: tuple[PodSeen, ...]) -> tuple[Action, ...]:
    """Ask them to leave, once."""
    return tuple(DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)
