"""Successors of lost pods: the coordinator gets another term, a slot another incarnation. Saved first,
created later.

The replaced pod is never waited for: names differ, and it can neither join a world nor commit a checkpoint.
Whether it can still write files of its own is sent to the coordinator (`previous_pod_fenced`).
"""

from __future__ import annotations

from ropeteam.api.status import CoordinatorStatus, JobStatus, SlotStatus
from ropeteam.core.questions import gang, handover, pending
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.live import live_answer
from ropeteam.core.seen import previouscoordinators
from ropeteam.core.seen.classify import PodClass, cause_and_message
from ropeteam.core.seen.observation import PodSeen, Role
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status import incidents
from ropeteam_trainer.contract.desired import ReplacementRequest
from ropeteam_trainer.contract.world import Cause

_MAX_AVOIDED_NODES = 16
"""Limit of status.avoidedNodes; the newest stay."""
RESTARTS_WITHOUT_ANSWER = 2
"""Restarts of a coordinator's container since its last report after which its pod may be replaced."""


def coordinator_replacement_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer with a new coordinator term: status went back behind a newer one, or the pod is lost. None: the
    pod holds its term; a restarted container is no reason.

    The address stays: agents reconnect to the Service. Not created here: steady.py does, after the write."""
    old = view.status.coordinator
    newer = _newest_unknown_term(view)
    why = _unknown_term_reason(old, newer) or _coordinator_loss_reason(view, old)
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


def _unknown_term_reason(old: CoordinatorStatus, newer: int) -> str | None:
    """Reason for a term above `newer`, if that is the term of status or a later one; else None. The operator
    alone creates terms, so status was restored from a backup of etcd."""
    if newer < old.term:
        return None
    return f"status is older than the coordinator of term {newer}, as after a restore of etcd"


def _newest_unknown_term(view: View) -> int:
    """Newest term that must not be used again, although status does not show that. 0: there is none.

    The highest of: a newer term that the coordinator reports (JobReport.newer_term); a coordinator's pod that
    is observed; and the current term, if its coordinator has a desired state of a later generation."""
    newest = view.report.newer_term if view.report else 0
    if view.report and view.report.observed_generation > view.job.generation:
        newest = max(newest, view.status.coordinator.term)  # it accepts no desired state of ours
    return max((newest, *(pod.term for pod in view.pods[PodClass.AHEAD] if pod.role is Role.COORDINATOR)))


def _coordinator_loss_reason(view: View, old: CoordinatorStatus) -> str | None:
    """Reason why the pod of the current term is lost, first match wins. None: it is not, as far as is
    known."""
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
    if _has_failed_restarts(view, pod):
        return f"the coordinator does not answer after {pod.container.restarts} restarts of its container"
    return None


def _has_failed_restarts(view: View, pod: PodSeen) -> bool:
    """Whether the coordinator has not answered for so long that no rank can live without it, and the kubelet
    has restarted it RESTARTS_WITHOUT_ANSWER times since its last report. Silence alone is no reason: the
    operator may be the one that is cut off.
    """
    restarts = pod.container.restarts - view.status.coordinator.boot
    return view.report is None and restarts >= RESTARTS_WITHOUT_ANSWER and pending.is_training_unknown(view)


def changed_address_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer with a new attempt: the Service was deleted, and its successor has another address. Workers know
    no other than that in their config, so all pods are replaced. None: the address is unchanged."""
    service, address = view.seen.service, view.status.coordinator.address
    if service is None or not address or service.cluster_ip in ("", address):
        return None
    why = f"the Service's address has changed from {address} to {service.cluster_ip}: all pods are recreated"
    return live_answer(view, gang.with_new_attempt(view, status), why)


def gang_replacement_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer with a new attempt, because the coordinator requests it (JobReport.replace_all): two gang starts
    in a row had no step, so the pods may be the cause. None: it does not."""
    if view.report is None or not view.report.replace_all:
        return None
    opened = gang.with_new_attempt(view, status)
    why = f"no step was made in two starts of the gang in a row: attempt {opened.attempt} with new pods"
    return live_answer(view, opened, why)


def newer_incarnations_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer with the incarnations that the coordinator reports, where they are later than in status: status
    was restored from a backup of etcd. None: there are none.

    A pod that is observed stays; one that is not may have been deleted, so its slot gets the one after."""
    reported = view.report.slots if view.report else {}
    observed = {(pod.slot, pod.incarnation) for pod in view.pods[PodClass.AHEAD]}
    slots, numbers = list(status.slots), []
    for index, slot in enumerate(status.slots):
        known = reported[str(slot.slot)].incarnation if str(slot.slot) in reported else 0
        if known > slot.incarnation:
            incarnation = known if (slot.slot, known) in observed else known + 1
            slots[index] = gang.successor(slot, _holding_pod(view, slot), incarnation, view.now)
            numbers.append(f"{incarnation} of slot {slot.slot}")
    if not numbers:
        return None
    why = f"the coordinator reports later pods than status: incarnation {', '.join(numbers)}"
    return live_answer(view, with_changes(status, slots=tuple(slots)), why)


def worker_replacement_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer with the next incarnations of all slots whose pod is lost, is to be replaced by request of the
    coordinator, or terminates while its world can save first (handover.py). None: there are none.

    Kubernetes' evidence of a loss becomes an incident, and wins over a request, whose incident the
    coordinator reports itself."""
    requests = _replacement_requests(view)
    slots, reasons, final = list(status.slots), [], set()
    for index, slot in enumerate(status.slots):
        evidence, request = evidence_of_loss(view, slot), requests.get((slot.slot, slot.incarnation))
        cause = evidence[0] if evidence else request.cause if request and slot.pod_uid else None
        if cause is None and not handover.needs_handover(view, slot, _holding_pod(view, slot)):
            continue
        slots[index] = _replacement_slot(view, slot, request, evidence)
        text = cause.value if cause else "terminating"
        reasons.append(f"slot {slot.slot}: {text}, incarnation {slots[index].incarnation}")
        if evidence is not None:
            pod = _holding_pod(view, slot)
            incident = incidents.pod_incident(slot, *evidence, pod.node if pod else "", view.now)
            # The pod before it was lost too, and no world ran between: so it belongs to no world's incident.
            alone = slot.consecutive_failures > 0
            if alone:
                final.add(incident.id)
            status = incidents.with_pod_incident(status, incident, alone)
    if not reasons:
        return None
    avoided = tuple(dict.fromkeys(slot.avoid_node for slot in slots if slot.avoid_node))[-_MAX_AVOIDED_NODES:]
    status = with_changes(status, slots=tuple(slots), avoided_nodes=avoided)
    status = incidents.with_final_incidents(
        status, view.spec.recovery, view.now, view.job_time, frozenset(final)
    )
    return live_answer(view, status, "; ".join(reasons))


def _replacement_requests(view: View) -> dict[tuple[int, int], ReplacementRequest]:
    """The coordinator's requests by slot and incarnation, so that a stale one matches no slot."""
    requests = view.report.replacement_requests if view.report else ()
    return {(request.slot, request.incarnation): request for request in requests}


def _holding_pod(view: View, slot: SlotStatus) -> PodSeen | None:
    """The pod that status names for the slot. None: it is gone; also if another pod has its name."""
    pod = view.workers.get(slot.slot)
    return pod if pod is not None and pod.uid == slot.pod_uid else None


def evidence_of_loss(view: View, slot: SlotStatus) -> tuple[Cause, str] | None:
    """Cause and sentence, if Kubernetes shows that the pod of this slot trains no more; else None.

    A lost node alone is no evidence while the agent reports: the node may only be cut off from the API
    server. Nor is a deletion, while the world may still save with that pod."""
    if not slot.pod_uid:
        return None  # not created yet, or created and not observed yet
    pod = _holding_pod(view, slot)
    if pod is None or pod.ended:
        return cause_and_message(pod)
    if pod.node_lost and handover.is_agent_missing(view, slot):
        return cause_and_message(pod)
    if pod.deleting and not handover.may_save(view, slot, pod):
        return cause_and_message(pod)
    return None


def _replacement_slot(
    view: View, slot: SlotStatus, request: ReplacementRequest | None, evidence: tuple[Cause, str] | None
) -> SlotStatus:
    """The slot with its next incarnation. It waits for a handover if there is neither evidence nor request.
    It avoids the node if that is lost, or the coordinator requests that."""
    pod = _holding_pod(view, slot)
    new = gang.successor(slot, pod, slot.incarnation + 1, view.now)
    if evidence is None and request is None:
        return with_changes(new, handover_pending=True)
    node_is_bad = evidence is not None and evidence[0] is Cause.NODE_LOST
    avoid = node_is_bad or (request is not None and request.avoid_node)
    return with_changes(new, avoid_node=pod.node) if avoid and pod is not None else new
