"""Desired state of the coordinator: what status says, to be sent when that status is saved, never before."""

from __future__ import annotations

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.questions.handover import holder
from ropeteam.core.seen.view import View
from ropeteam.core.status.incidents import counted_ids
from ropeteam.core.status.progress import lineage
from ropeteam_trainer.contract.desired import Desired, SlotDesired
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason


def desired_state(view: View, status: JobStatus) -> Desired | None:
    """Desired state to send once `status` is saved. None: no coordinator of the current term runs, or it has
    no address yet."""
    pod, coordinator = view.coordinator, status.coordinator
    if pod is None or pod.term != coordinator.term or not pod.container.running or not coordinator.address:
        return None
    reported_ids = tuple(each.id for each in view.report.incidents) if view.report else ()
    return Desired(
        generation=status.observed_generation,
        attempt=status.attempt,
        term=status.coordinator.term,
        slots={str(slot.slot): _slot_desired(view, slot) for slot in status.slots},
        drain=status.drain_start_time is not None,
        allowance=max(0, status.failures.allowed - status.failures.charged),
        charged_incidents=counted_ids(status, reported_ids),
        lineage=lineage(status),
        failure=_recorded_failure(status),
    )


def _recorded_failure(status: JobStatus) -> Problem | None:
    """The failure that status records, so that agents may exit. None: the job has not failed. A reason that
    this contract does not have counts as RepeatedError."""
    found = status.condition(ConditionType.FAILED)
    if found is None or not found.holds:
        return None
    known = next((each for each in FailReason if each.value == found.reason), FailReason.REPEATED_ERROR)
    return Problem(known, found.message)


def _slot_desired(view: View, slot: SlotStatus) -> SlotDesired:
    """Desired state of a slot, about the incarnation that holds it now. The UID of a pod without a node is
    left out: it has no ranks, so the coordinator need not wait for its agent."""
    pod, current = view.workers.get(slot.slot), holder(slot)
    observed = pod if pod and pod.uid == current.pod_uid else None
    deleting, unscheduled = bool(observed and observed.deleting), bool(observed and not observed.node)
    return SlotDesired(
        incarnation=current.incarnation,
        pod_uid="" if unscheduled else current.pod_uid,
        terminating=deleting or slot.handover_pending,
        previous_pod_fenced=current.previous_pod_fenced,
    )
