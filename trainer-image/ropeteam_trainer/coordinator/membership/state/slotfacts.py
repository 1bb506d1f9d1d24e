"""What may be true of a slot: the words in which the rules ask about thousands of them at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slotset import Slots

T = TypeVar("T")


@dataclass(frozen=True)
class Facts(Generic[T]):
    """What is true of a slot (T: bool), or of which slots it is true (T: Slots). Kept by slotindex.py.

    First of the agent that holds the slot, then of the ranks of its member of the current world, as the agent
    of that member last told. "Ended well": exited cleanly, or aborted at the end of its script.
    """

    held: T
    """The pod that the operator names has registered."""
    deleting: T
    departing: T
    """It was asked to leave by SIGTERM."""
    unproven: T
    """Its former pod may still write."""
    member: T
    """It is the member of the current world."""
    planned: T
    """It tells of a plan."""
    troubled: T
    """It tells of a problem that no restart mends."""
    busy: T
    """Ranks of whatever world live there."""
    in_line: T
    """It has been there since this line of worlds began."""
    mute: T
    """Its lease has run out."""
    told: T
    """The member's pod still holds the slot, and its agent has spoken."""
    unheard: T
    """The lease of the member's agent has run out."""
    here: T
    """The member's agent tells of this world."""
    completed: T
    """It has acknowledged COMPLETE."""
    started: T
    """All of its ranks were started."""
    stepped: T
    """All of its ranks have made a step,"""
    stepped_or_ended: T
    """or ended well."""
    moved: T
    """Some rank has made a step, or is about to."""
    paused: T
    """Some rank waits."""
    restless: T
    """Some rank neither waits nor has exited."""
    drained: T
    """Some rank has stopped where it was told to."""
    arrived: T
    """All ranks have, or have exited."""
    exited: T
    """All ranks have."""
    dead: T
    """All ranks have, and nothing else of them lives."""
    clean: T
    """Some rank exited cleanly."""
    aborted: T
    """Some rank aborted at the end of its script."""
    ended: T
    """All ranks ended well."""
    failed: T
    """Some rank ended otherwise."""
    well: T
    """All ranks live, or ended well."""


NOBODY: Facts[Slots] = Facts(*[slotset.NONE] * len(fields(Facts)))
