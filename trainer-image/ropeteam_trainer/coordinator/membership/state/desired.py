"""Comparison of a received desired state with the known one: stale or not, and which slots it changes."""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.contract.world import CheckpointRef
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slots import desired_slot
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState


def is_stale(received: Desired, known: Desired) -> bool:
    """Whether `received` was sent before `known`. Generation, attempt and incarnations never decrease, so
    that one lower number is enough."""
    if received.generation < known.generation or received.attempt < known.attempt:
        return True
    return any(
        slot in known.slots and desired.incarnation < known.slots[slot].incarnation
        for slot, desired in received.slots.items()
    )


def with_known_uids(received: Desired, known: Desired) -> Desired:
    """`received`, its empty pod UIDs filled in from `known` where the incarnation is the same. A UID never
    changes within an incarnation: the operator has only failed to observe the pod this time."""
    slots = {
        slot: replace(desired, pod_uid=known.slots[slot].pod_uid)
        if not desired.pod_uid
        and slot in known.slots
        and known.slots[slot].incarnation == desired.incarnation
        else desired
        for slot, desired in received.slots.items()
    }
    return replace(received, slots=slots)


def is_newer_lineage(one: tuple[CheckpointRef, ...], other: tuple[CheckpointRef, ...]) -> bool:
    """Whether the newest checkpoint of `one` is of a higher step than that of `other`."""
    return bool(one) and (not other or one[0].step > other[0].step)


def changed_slots(before: CoordinatorState, after: CoordinatorState) -> slotset.Slots:
    """Slots whose desired state differs, and slots of agents that are no longer in `after.agents`."""
    removed = slotset.of(pod.slot for pod in before.agents.keys() - after.agents.keys())
    slots = (
        slot for slot in range(after.config.slots) if desired_slot(after, slot) != desired_slot(before, slot)
    )
    return removed | slotset.of(slots)
