"""What the coordinator is told: what status says, to be sent when that status is saved, never before."""

from __future__ import annotations

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.questions.handover import holder
from ropeteam.core.seen.view import View
from ropeteam.core.status.incidents import accounted
from ropeteam.core.status.progress import lineage
from ropeteam_trainer.contract.desired import Desired, SlotDesired
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason


def desired(view: View, status: JobStatus) -> Desired | None:
    """What to tell once `status` is saved. None while there is no coordinator that could listen."""
    pod, coordinator = view.coordinator, status.coordinator
    if pod is None or pod.term != coordinator.term or not pod.container.running or not coordinator.address:
        return None
    told = tuple(each.id for each in view.report.incidents) if view.report else ()
    return Desired(
        generation=status.observed_generation,
        attempt=status.attempt,
        term=status.coordinator.term,
        slots={str(slot.slot): _slot(view, slot) for slot in status.slots},
        drain=status.drain_since is not None,
        allowance=max(0, status.failures.allowed - status.failures.charged),
        charged_incidents=accounted(status, told),
        lineage=lineage(status),
        failure=_failure(status),
    )


def _failure(status: JobStatus) -> Problem | None:
    found = status.condition(ConditionType.FAILED)
    if found is None or not found.holds:
        return None
    known = next((each for each in FailReason if each.value == found.reason), FailReason.REPEATED_ERROR)
    return Problem(known, found.message)


def _slot(view: View, slot: SlotStatus) -> SlotDesired:
    """A pod that no node has taken yet is not told: no rank of it lives, and none is waited for."""
    pod, holds = view.workers.get(slot.slot), holder(slot)
    seen = pod if pod and pod.uid == holds.pod_uid else None
    deleting, waits = bool(seen and seen.deleting), bool(seen and not seen.node)
    return SlotDesired(
        incarnation=holds.incarnation,
        pod_uid="" if waits else holds.pod_uid,
        deleting=deleting or slot.relieves,
        old_pod_gone=holds.old_pod_gone,
    )
