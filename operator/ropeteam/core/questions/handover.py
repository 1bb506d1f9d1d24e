"""A terminating pod: its successor is created at once, and takes the slot over when the world has saved.

Until then the terminating pod holds the slot (SlotStatus.handover_pending): the desired state names it, and
not its successor, whose agent starts meanwhile and waits for orders. So training does not wait for the start
of a pod, only for the save and the start of processes.
Limits: one handover of a slot at a time, and none while the pod before the terminating one may still write.
"""

from __future__ import annotations

from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.live import live_answer
from ropeteam.core.seen.classify import cause_and_message
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import WorldPhase

DELETE_MARGIN_SECONDS = 5
"""Seconds beyond a pod's grace period: until then it is expected to save, afterwards it counts as lost."""
_SAVING_PHASES = frozenset({WorldPhase.RUNNING, WorldPhase.DRAINING})
"""Ranks may save, and the world that follows needs another pod in the slot."""
_PERHAPS_SAVING_PHASES = _SAVING_PHASES | {
    WorldPhase.WAITING,  # the coordinator has just booted, and does not know yet whether a world runs
    WorldPhase.COMPLETING,  # an agent may still write the manifest of the last checkpoint
    WorldPhase.DRAINED,  # the same: a drain also ends without it, after drainSeconds
}
"""Phases in which a terminating pod keeps its slot. In the last two no world follows that would need another
pod. It keeps it while its ranks are preserved, too: those that continue without others may still save."""


def holder(slot: SlotStatus) -> SlotStatus:
    """The slot as the incarnation that holds it now: during a handover that is the terminating pod's, else
    `slot` itself. A handover begins only if earlier pods are fenced, so this one's are, too."""
    if not slot.handover_pending:
        return slot
    updates = {
        "incarnation": slot.incarnation - 1,
        "pod_uid": slot.previous_pod_uid,
        "handover_pending": False,
    }
    return with_changes(slot, **updates, previous_pod_fenced=True)


def needs_handover(view: View, slot: SlotStatus, pod: PodSeen | None) -> bool:
    """Whether a handover begins: `pod`, which holds the slot, is terminating, and its world can save first.
    `pod` None: it is gone, so there is nothing to hand over."""
    trains = view.report is not None and view.report.phase in _SAVING_PHASES
    will_save = trains or view.is_preserved(slot)
    terminating = pod is not None and pod.deleting and may_save(view, slot, pod)
    return will_save and terminating and slot.previous_pod_fenced and not slot.handover_pending


def may_save(view: View, slot: SlotStatus, pod: PodSeen) -> bool:
    """Whether a terminating pod keeps its slot, because its world may still save with it: its container runs
    within its grace period and a margin, and its agent reports as far as is known. False for a pod that is
    not terminating: it has no `delete_at`."""
    has_time = pod.delete_at is not None and not view.has_passed(pod.delete_at, DELETE_MARGIN_SECONDS)
    if not has_time or not pod.container.running or is_agent_missing(view, slot):
        return False
    return view.report is None or view.report.phase in _PERHAPS_SAVING_PHASES or view.is_preserved(slot)


def is_agent_missing(view: View, slot: SlotStatus) -> bool:
    """Whether the coordinator answers, and no agent of this incarnation is registered there. While it waits
    for agents after a boot, this counts only after three times lostSeconds: most report within seconds.
    False while it does not answer."""
    report = view.report
    if report is None or view.is_registered(slot):
        return False
    return (
        report.phase is not WorldPhase.WAITING
        or view.seen.reachable_seconds >= 3 * view.spec.recovery.lost_seconds
    )


def handover_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer that ends handovers: their terminating pods are gone, or have nothing to save any more, so the
    successors hold the slots from now on. None: no handover ends.

    Each terminating pod is evidence for an incident. The fence counts from now."""
    slots, numbers = list(status.slots), []
    pods = {pod.uid: pod for pod in view.all_workers}
    for index, slot in enumerate(status.slots):
        previous = holder(slot)
        pod = pods.get(previous.pod_uid)
        if not slot.handover_pending or (pod is not None and may_save(view, previous, pod)):
            continue
        slots[index] = with_changes(slot, handover_pending=False, replacement_time=view.now)
        numbers.append(slot.slot)
        incident = incidents.pod_incident(
            previous, *cause_and_message(pod), pod.node if pod else "", view.now
        )
        status = incidents.with_pod_incident(status, incident, alone=False)
    if not numbers:
        return None
    status = incidents.with_final_incidents(
        with_changes(status, slots=tuple(slots)), view.spec.recovery, view.now, view.job_time
    )
    why = "; ".join(f"slot {number}: the new pod replaces the terminating one" for number in numbers)
    return live_answer(view, status, why)
