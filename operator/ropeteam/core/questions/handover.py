"""A terminating pod: its successor is created at once, and takes over when the world has saved.

Until then the terminating pod holds the slot: the desired state names it and not its successor, whose agent
starts meanwhile and waits for orders. So a drain costs training its save and the start of processes,
not the start of a pod too.
Limits: one at a time. A slot whose pod before the last may still write waits until that pod has gone.
"""

from __future__ import annotations

from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.pending import live_answer
from ropeteam.core.seen.classify import cause_of
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import WorldPhase

DELETE_MARGIN_SECONDS = 5
_SAVING_PHASES = frozenset({WorldPhase.RUNNING, WorldPhase.DRAINING})
_PERHAPS_SAVING_PHASES = _SAVING_PHASES | {WorldPhase.DRAINED, WorldPhase.COMPLETING, WorldPhase.WAITING}


def holder(slot: SlotStatus) -> SlotStatus:
    """The incarnation that holds the slot now."""
    if not slot.handover_pending:
        return slot
    updates = {
        "incarnation": slot.incarnation - 1,
        "pod_uid": slot.previous_pod_uid,
        "handover_pending": False,
    }
    return with_changes(slot, **updates, previous_pod_fenced=True)


def needs_handover(view: View, slot: SlotStatus, pod: PodSeen | None) -> bool:
    """Whether `pod`, which holds the slot, is terminating and its world will save before it ends."""
    will_save = view.report is not None and view.report.phase in _SAVING_PHASES
    terminating = pod is not None and pod.deleting and may_save(view, slot, pod)
    return will_save and terminating and slot.previous_pod_fenced and not slot.handover_pending


def may_save(view: View, slot: SlotStatus, pod: PodSeen) -> bool:
    """A terminating pod keeps its slot while its world may still save a checkpoint with it."""
    overdue = pod.delete_at is None or view.has_passed(pod.delete_at, DELETE_MARGIN_SECONDS)
    if overdue or not pod.container.running or is_agent_missing(view, slot):
        return False
    return view.report is None or view.report.phase in _PERHAPS_SAVING_PHASES


def is_agent_missing(view: View, slot: SlotStatus) -> bool:
    """Whether the coordinator answers, had time to receive all agents' reports, and has none of this agent. A
    coordinator to which no agent reports continues to wait: agents that can reach it do so within seconds."""
    report = view.report
    if report is None or view.is_registered(slot):
        return False
    return (
        report.phase is not WorldPhase.WAITING
        or view.seen.reachable_seconds >= 3 * view.spec.recovery.lost_seconds
    )


def take_over(view: View, status: JobStatus) -> Answer | None:
    """Terminating pods that have nothing to save any more: their successors hold the slots from now on."""
    slots, numbers = list(status.slots), []
    pods = {pod.uid: pod for pod in view.all_workers}
    for index, slot in enumerate(status.slots):
        previous = holder(slot)
        pod = pods.get(previous.pod_uid)
        if not slot.handover_pending or (pod is not None and may_save(view, previous, pod)):
            continue
        slots[index] = with_changes(slot, handover_pending=False, replacement_time=view.now)
        numbers.append(slot.slot)
        incident = incidents.pod_incident(previous, *cause_of(pod), pod.node if pod else "", view.now)
        status = incidents.with_pod_incident(status, incident, alone=False)
    if not numbers:
        return None
    status = incidents.finalize(
        with_changes(status, slots=tuple(slots)), view.spec.recovery, view.now, view.job_time
    )
    why = "; ".join(f"slot {number}: the new pod replaces the terminating one" for number in numbers)
    return live_answer(view, status, why)
