"""Successors of lost pods: the coordinator gets another term, a slot another incarnation. Saved first,
created later.

The old pod is never waited for: names differ, and it can neither join nor commit. Whether it can still write
files of its own is sent to the coordinator (`previous_pod_fenced`).
"""

from __future__ import annotations

from ropeteam.api.status import CoordinatorStatus, JobStatus, SlotStatus
from ropeteam.core.questions import gang, handover, pending
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.pending import live_answer
from ropeteam.core.seen import previouscoordinators
from ropeteam.core.seen.classify import PodClass, cause_of
from ropeteam.core.seen.observation import PodSeen, Role
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import ReplacementRequest
from ropeteam_trainer.contract.world import Cause

_MOST_AVOIDED = 16
RESTARTS_WITHOUT_ANSWER = 2


def replace_coordinator(view: View, status: JobStatus) -> Answer | None:
    """A new term: the coordinator's pod is gone for good, or of no use. A restarted container needs none."""
    old = view.status.coordinator
    newer = _newest_term(view)
    why = _unknown_term(old, newer) or _coordinator_lost(view, old)
    if why is None:
        return None
    failures = old.consecutive_failures + 1
    previous = previouscoordinators.with_retired(view, status.coordinator, newer)
    term = max(old.term, newer) + 1
    lease = view.spec.recovery.lease_seconds
    new = CoordinatorStatus(
        term=term,
        address=old.address,
        previous=previous,
        lease_seconds=lease,
        start_time=view.now,
        consecutive_failures=failures,
    )
    return live_answer(view, with_changes(status, coordinator=new), f"{why}: term {new.term}")


def _unknown_term(old: CoordinatorStatus, newer: int) -> str | None:
    """Reason why terms up to `newer` are taken. The operator alone creates terms; status may be from before a
    restore of etcd."""
    if newer < old.term:
        return None
    return f"there is or was a coordinator of term {newer}, which is not in status"


def _newest_term(view: View) -> int:
    """Newest term that status does not know: its pod is observed, an agent follows its coordinator, or its
    world has claimed the folder of checkpoints."""
    newest = view.report.newer_term if view.report else 0
    if view.report and view.report.observed_generation > view.job.generation:
        newest = max(newest, view.status.coordinator.term)  # it has a later desired state, takes no older one
    return max((newest, *(pod.term for pod in view.pods[PodClass.AHEAD] if pod.role is Role.COORDINATOR)))


def _coordinator_lost(view: View, old: CoordinatorStatus) -> str | None:
    pod = view.coordinator
    if not old.pod_uid:
        return None  # not created yet, or created and not observed yet
    if pod is None or pod.uid != old.pod_uid:
        return "the coordinator's pod is gone"
    if pod.phase in ("Failed", "Succeeded"):
        return f"the coordinator's pod has ended ({pod.reason or pod.phase})"
    if pod.deleting:
        return "the coordinator's pod is being deleted"
    if pod.node_lost and view.report is None:
        return f"the coordinator's node {pod.node} is lost"
    if _restarts_without_answer(view, pod):
        return f"the coordinator does not answer after {pod.container.restarts} restarts of its container"
    return None


def _restarts_without_answer(view: View, pod: PodSeen) -> bool:
    """Whether the coordinator has not answered for as long as agents wait, nor answered the kubelet, which
    restarted it more than once since its last report. That the operator does not reach it is no reason by
    itself: the operator may be the one that is cut off.
    """
    restarts = pod.container.restarts - view.status.coordinator.boot
    return view.report is None and restarts >= RESTARTS_WITHOUT_ANSWER and pending.is_unknown(view)


def replace_address(view: View, status: JobStatus) -> Answer | None:
    """The Service was deleted and its successor has another address, which no running worker knows."""
    service, address = view.seen.service, view.status.coordinator.address
    if service is None or not address or service.cluster_ip in ("", address):
        return None
    why = f"the Service's address has changed from {address} to {service.cluster_ip}: all pods are recreated"
    return live_answer(view, gang.open_attempt(view, status), why)


def replace_all(view: View, status: JobStatus) -> Answer | None:
    """A new attempt with new pods: two gang starts in a row had no step, so the pods may be the cause."""
    if view.report is None or not view.report.replace_all:
        return None
    opened = gang.open_attempt(view, status)
    why = f"no step was observed in two starts of the gang: attempt {opened.attempt} with new pods"
    return live_answer(view, opened, why)


def adopt_newer_incarnations(view: View, status: JobStatus) -> Answer | None:
    """Slots of which the coordinator knows later pods than status, which went back (a backup of etcd). Those
    pods stay, if they are observed."""
    reported = view.report.slots if view.report else {}
    observed = {(pod.slot, pod.incarnation) for pod in view.pods[PodClass.AHEAD]}
    slots, numbers = list(status.slots), []
    for index, slot in enumerate(status.slots):
        known = reported[str(slot.slot)].incarnation if str(slot.slot) in reported else 0
        if known > slot.incarnation:
            incarnation = known if (slot.slot, known) in observed else known + 1
            slots[index] = gang.successor(slot, _pod(view, slot), incarnation, view.now)
            numbers.append(f"{incarnation} of slot {slot.slot}")
    if not numbers:
        return None
    why = f"the coordinator reports later pods than status: incarnation {', '.join(numbers)}"
    return live_answer(view, with_changes(status, slots=tuple(slots)), why)


def replace_workers(view: View, status: JobStatus) -> Answer | None:
    """Successors of pods that are lost, terminating, or requested to be replaced: all of them at once."""
    requests = _replacement_requests(view)
    slots, reasons, final = list(status.slots), [], set()
    for index, slot in enumerate(status.slots):
        evidence, request = evidence_of_loss(view, slot), requests.get((slot.slot, slot.incarnation))
        cause = evidence[0] if evidence else request.cause if request and slot.pod_uid else None
        if cause is None and not handover.needs_handover(view, slot, _pod(view, slot)):
            continue
        slots[index] = _replacement(view, slot, request, evidence)
        text = cause.value if cause else "terminating"
        reasons.append(f"slot {slot.slot}: {text}, incarnation {slots[index].incarnation}")
        if evidence is not None:
            pod = _pod(view, slot)
            incident = incidents.pod_incident(slot, *evidence, pod.node if pod else "", view.now)
            # The pod before it was lost too, and no world ran between: this one was in none.
            alone = slot.consecutive_failures > 0
            if alone:
                final.add(incident.id)
            status = incidents.with_pod_incident(status, incident, alone)
    if not reasons:
        return None
    avoided = tuple(dict.fromkeys(slot.avoid_node for slot in slots if slot.avoid_node))[-_MOST_AVOIDED:]
    status = with_changes(status, slots=tuple(slots), avoided_nodes=avoided)
    status = incidents.finalize(status, view.spec.recovery, view.now, view.job_time, frozenset(final))
    return live_answer(view, status, "; ".join(reasons))


def _replacement_requests(view: View) -> dict[tuple[int, int], ReplacementRequest]:
    requests = view.report.replacement_requests if view.report else ()
    return {(request.slot, request.incarnation): request for request in requests}


def _pod(view: View, slot: SlotStatus) -> PodSeen | None:
    """The pod that holds the slot by status. A pod of the same name with another UID does not count."""
    pod = view.workers.get(slot.slot)
    return pod if pod is not None and pod.uid == slot.pod_uid else None


def evidence_of_loss(view: View, slot: SlotStatus) -> tuple[Cause, str] | None:
    """Cause and sentence, if Kubernetes shows that the pod of this slot trains no more."""
    if not slot.pod_uid:
        return None  # not created yet, or created and not observed yet
    pod = _pod(view, slot)
    if pod is None or pod.ended:
        return cause_of(pod)
    if pod.node_lost and handover.is_agent_missing(view, slot):
        return cause_of(pod)
    if pod.deleting and not handover.may_save(view, slot, pod):
        return cause_of(pod)
    return None


def _replacement(
    view: View, slot: SlotStatus, request: ReplacementRequest | None, evidence: tuple[Cause, str] | None
) -> SlotStatus:
    pod = _pod(view, slot)
    new = gang.successor(slot, pod, slot.incarnation + 1, view.now)
    if evidence is None and request is None:
        return with_changes(new, handover_pending=True)
    node_is_bad = evidence is not None and evidence[0] is Cause.NODE_LOST
    avoid = node_is_bad or (request is not None and request.avoid_node)
    return with_changes(new, avoid_node=pod.node) if avoid and pod is not None else new
