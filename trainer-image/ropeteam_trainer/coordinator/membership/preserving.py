"""Slots whose ranks live on when a world ends, and whether the next world resumes from servers' memory.

Only with parameter servers: ranks that need each other in a collective end together. Order: the world ends
-> healthy slots are preserved: their agents are still sent its plan -> a preserved slot that fails meanwhile
is not preserved any more, and never again -> the next plan names the world in which the preserved ranks were
started.
Updates acknowledged by servers are in the memory of their pods. While each of those pods lives the next world
resumes from there, even if no rank lives on. If one is lost, so is its part of the parameters: all ranks go
back to the checkpoint together.
Limits: a world that is being drained ends as a whole. A drain requested while slots are being replaced keeps
no slot: the job resumes from its newest checkpoint.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.coordinator.membership import progress
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import (
    CoordinatorState,
    enter_phase,
    is_new_attempt,
    with_world,
)


def stop_world(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state in STOPPING: the plan of the world is withdrawn, except for the slots that are preserved.
    Without parameter servers these are none."""
    state = progress.record_dead_slots(enter_phase(state, WorldPhase.STOPPING, at))
    return with_world(state, preserved=_healthy_slots(state))


def drop_unhealthy_slots(state: CoordinatorState) -> CoordinatorState:
    """The state with `preserved` reduced to slots that are still healthy. A dropped slot whose ranks are all
    dead is quiesced at once: nothing is left to stop."""
    world = state.world
    if world is None or not world.preserved:
        return state
    preserved = world.preserved & _healthy_slots(state)
    quiesced = world.quiesced | (state.facts.dead & ~preserved)
    return with_world(state, preserved=preserved, quiesced=quiesced)


def preserved_text(state: CoordinatorState) -> str:
    """The end of a sentence, on the number of slots that are preserved; "": none is."""
    preserved = state.world.preserved.bit_count() if state.world else 0
    return f"; the ranks of {preserved} {'slot' if preserved == 1 else 'slots'} continue" if preserved else ""


def can_resume_in_memory(state: CoordinatorState) -> bool:
    """Whether the next world can resume from the memory of parameter servers: each of their pods still has
    the state of the current server generation and stays. Not after a failure, a drain (ranks have stopped at
    its step), or for a new attempt."""
    world = state.world
    if (
        world is None
        or not state.config.servers
        or state.failure
        or state.drain_requested
        or is_new_attempt(state)
    ):
        return False
    if world.paused_at is not None or state.facts.drained:
        return False
    servers = state.all_slots & ~slotset.up_to(state.config.workers)
    return servers & _staying_slots(state) & state.facts.in_generation == servers


def _staying_slots(state: CoordinatorState) -> Slots:
    """Slots whose agent is that of the current world, and is not terminating."""
    return slotindex.present_slots(state) & state.facts.member & ~slotindex.terminating_slots(state)


def _healthy_slots(state: CoordinatorState) -> Slots:
    """Slots that can be preserved: their pod stays, and its ranks all live or have ended well. None, unless
    the next world can resume in memory."""
    if not can_resume_in_memory(state):
        return slotset.NONE
    aborted = slotset.NONE if state.facts.clean else state.facts.aborted
    return _staying_slots(state) & state.facts.healthy & ~aborted
