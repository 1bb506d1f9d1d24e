"""Whose ranks live on when a world ends, and whether the next one goes on from what parameter servers know.

Only with parameter servers: ranks that need each other in a collective end together. Order: the world ends
-> slots that are well are kept: their agents are still shown its plan -> a kept slot that fails meanwhile is
kept no more, and never again -> the next plan names the epoch in which the kept ranks were born.
What servers acknowledged is in the memory of their pods. While each of those lives the next world goes on
from there, even if no rank lived on. When one is lost, its part is: all go back to the checkpoint together.
Limits: a world that is being drained ends as a whole. A drain asked for while slots are being replaced keeps
nothing: the job goes on from its newest checkpoint.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.coordinator.membership import progress
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import Moment, State, enter, new_attempt, with_world


def stop(state: State, at: Moment) -> State:
    """The plan is withdrawn, but for the slots that are kept."""
    state = progress.note_dead(enter(state, WorldPhase.STOPPING, at))
    return with_world(state, kept=_well(state))


def shrink(state: State) -> State:
    """Slots that are not well any more are not kept any more."""
    world = state.world
    if world is None or not world.kept:
        return state
    kept = world.kept & _well(state)
    quiesced = world.quiesced | (state.roll.dead & ~kept)
    return with_world(state, kept=kept, quiesced=quiesced)


def can_resume_in_memory(state: State) -> bool:
    """The next world goes on from what parameter servers have in memory."""
    world = state.world
    if world is None or not state.config.servers or state.failure or state.draining or new_attempt(state):
        return False
    if world.paused_at is not None or state.roll.drained:
        return False
    servers = state.everybody & ~slotset.up_to(state.config.workers)
    return servers & _staying(state) & state.roll.in_line == servers


def _staying(state: State) -> Slots:
    """Slots whose agent is that of the current world, and stays."""
    return slotindex.present(state) & state.roll.member & ~slotindex.departing(state)


def _well(state: State) -> Slots:
    """All of their ranks live, or have ended as they should."""
    if not can_resume_in_memory(state):
        return slotset.NONE
    aborted = slotset.NONE if state.roll.clean else state.roll.aborted
    return _staying(state) & state.roll.well & ~aborted
