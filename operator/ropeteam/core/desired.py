"""What the coordinator is told: exactly what is saved in status. An intent that is not saved yet is not
spoken of.
"""

from __future__ import annotations

from ropeteam.api.status import SlotStatus
from ropeteam.core.incidents import accounted
from ropeteam.core.progress import lineage
from ropeteam.core.view import View
from ropeteam_trainer.contract.desired import Desired, SlotDesired


def desired(view: View) -> Desired | None:
    """None while there is no coordinator that could listen."""
    status, pod = view.status, view.coordinator
    if pod is None or not pod.container.running or not status.coordinator.address or status.finished:
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
    )


def _slot(view: View, slot: SlotStatus) -> SlotDesired:
    pod = view.workers.get(slot.slot)
    return SlotDesired(
        incarnation=slot.incarnation,
        pod_uid=slot.pod_uid,
        deleting=pod is not None and pod.uid == slot.pod_uid and pod.deleting,
        old_pod_gone=slot.old_pod_gone,
    )
