"""Facts that may hold of a slot, so that rules query thousands of slots at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slotset import Slots

T = TypeVar("T")


@dataclass(frozen=True)
class Facts(Generic[T]):
    """Facts of one slot (T: bool), or the set of slots of which each fact holds (T: Slots). Maintained by
    slotindex.py.

    First the agent that holds the slot, then the ranks of the slot's member of the current world, as the
    agent of that member last reported. "Ended well": exited cleanly, or aborted at the end of its script.
    """

    held: T
    """The pod named by the operator has registered."""
    deleting: T
    departing: T
    """The pod is terminating (SIGTERM)."""
    unproven: T
    """The previous pod of the slot may still write."""
    member: T
    """The pod is the member of the current world."""
    planned: T
    """The agent reports a plan."""
    has_problem: T
    """The agent reports a problem that no restart resolves."""
    supports_claim: T
    """The agent can commit in place of the leading one."""
    busy: T
    """Ranks of some world live in the pod."""
    in_generation: T
    """The agent reports a plan of the current server generation."""
    lease_expired: T
    """The lease of the agent has expired."""
    member_reported: T
    """The member's pod still holds the slot, and its agent has reported."""
    member_lost: T
    """The lease of the member's agent has expired."""
    in_world: T
    """The member's agent reports this world."""
    completed: T
    """The member's agent has acknowledged COMPLETE."""
    started: T
    """All ranks were started."""
    stepped: T
    """All ranks have made a step."""
    stepped_or_ended: T
    """Each rank has made a step or ended well."""
    moved: T
    """Some rank has made a step, or is about to."""
    paused: T
    """Some rank is paused."""
    restless: T
    """Some rank is neither paused nor has it exited."""
    unaware: T
    """Some rank has not received the pause: its next report() may not be the last one."""
    unconfirmed: T
    """Of some rank it is unknown whether it has received the pause."""
    stops: T
    """Some rank was ordered to stop at a step."""
    drained: T
    """Some rank has stopped at the step of the drain."""
    arrived: T
    """All ranks have stopped there, or have exited."""
    exited: T
    """All ranks have exited."""
    dead: T
    """All ranks have exited, and no process of theirs lives."""
    clean: T
    """Some rank exited cleanly."""
    aborted: T
    """Some rank aborted at the end of its script."""
    ended: T
    """All ranks ended well."""
    failed: T
    """Some rank ended otherwise."""
    healthy: T
    """All ranks live, or ended well."""
    regroups: T
    """Some rank can continue without others that are lost (`can_regroup`)."""
    whole_regroups: T
    """All ranks can."""


NOBODY: Facts[Slots] = Facts(*[slotset.NONE] * len(fields(Facts)))
