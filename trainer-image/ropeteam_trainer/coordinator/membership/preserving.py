"""Slots whose ranks live on when a world ends, and whether the next world resumes from memory.

Only with parameter servers, and under sync Exact: other ranks that need each other in a collective end
together. Order: the world ends -> healthy slots are preserved: their agents are still sent its plan -> a
preserved slot that fails meanwhile is not preserved any more, and never again -> the next plan names the
world in which the preserved ranks were started.
Updates acknowledged by servers are in the memory of their pods. While each of those pods lives the next world
resumes from there, even if no rank lives on. If one is lost, so is its part of the parameters: all ranks go
back to the checkpoint together.
Under sync Exact each replica has all parameters, in one rank or in several. Preserved ranks learn which
others are lost, and continue in the step without them; ranks that the next world starts get the state from
one of them. A slot is preserved if one of its ranks is: its agent starts the others again beside it.
Limits: a world that is being drained ends as a whole. A drain requested while slots are being replaced keeps
no slot: the job resumes from its newest checkpoint. Under sync Exact their ranks save first (drains.py), if
the pod of the leading rank is among theirs: its agent commits. So that slot is preserved although its pod is
terminating. They save as well if that rank has a deputy (commits.py).
"""

from __future__ import annotations

import functools
import operator

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.coordinator.membership import progress
from ropeteam_trainer.coordinator.membership.evidence import (
    AGENT_REPORTED,
    ERROR,
    Evidence,
    moved_to_first_hung,
)
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import (
    can_regroup,
    ranks_of_member,
    ranks_of_members,
)
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_slot
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import (
    CoordinatorState,
    enter_phase,
    is_new_attempt,
    with_world,
)


def stop_world(state: CoordinatorState, at: Moment, evidence: Evidence | None = None) -> CoordinatorState:
    """The state in STOPPING: the plan of the world is withdrawn, except for the slots that are preserved.
    After evidence that a rank cannot join those that live on, none is."""
    state = progress.record_dead_slots(enter_phase(state, WorldPhase.STOPPING, at))
    preserved = slotset.NONE if evidence and _cannot_join(state, evidence) else _healthy_slots(state)
    return _with_preserved(state, preserved)


def slots_to_preserve(state: CoordinatorState) -> Slots:
    """Slots that would be preserved if the world ended now."""
    world = _with_preserved(state, _healthy_slots(state)).world
    assert world is not None
    return world.preserved


def _cannot_join(state: CoordinatorState, evidence: Evidence) -> bool:
    """Whether a rank that was to join others has failed or hung by itself before its first step. Its script
    may need all ranks to begin with it."""
    evidence = moved_to_first_hung(state, evidence)
    world, member_ranks = state.world, ranks_of_member(state, evidence.slot)
    assert world is not None
    if evidence.weight not in (AGENT_REPORTED, ERROR) or evidence.rank not in world.plan.started:
        return False
    report = member_ranks.known.get(evidence.rank) if member_ranks else None
    return report is None or report.steps_here == 0


def drop_unhealthy_slots(state: CoordinatorState) -> CoordinatorState:
    """The state with `preserved` reduced to slots that are still healthy."""
    return keep_only(state, _healthy_slots(state)) if state.world and state.world.preserved else state


def keep_only(state: CoordinatorState, slots: Slots) -> CoordinatorState:
    """The state with `preserved` reduced to these slots. A dropped slot whose ranks are all dead is quiesced
    at once: nothing is left to stop."""
    world = state.world
    assert world is not None
    state = _with_preserved(state, world.preserved & slots)
    assert state.world is not None
    quiesced = world.quiesced | (state.facts.dead & ~state.world.preserved)
    return with_world(state, quiesced=quiesced)


def _with_preserved(state: CoordinatorState, preserved: Slots) -> CoordinatorState:
    """The state with these slots preserved. Under sync Exact the ranks of each that cannot continue are lost
    from now on, with all others of their replicas, and slots without any other rank are not preserved."""
    world = state.world
    assert world is not None
    if state.config.servers:
        return with_world(state, preserved=preserved)
    lost = world.lost
    for each in ranks_of_members(state, preserved & _slots_with_loss(state)):
        lost |= slotset.of(
            rank
            for rank, report in zip(each.ranks, each.reports, strict=True)
            if report is None or not can_regroup(report)
        )
    lost |= _mates(state, lost, state.all_slots & ~preserved)
    with_loss = slotset.of(rank // state.config.processes for rank in slotset.each(lost))
    ended = (slot for slot in slotset.each(preserved & with_loss) if not _ranks(state, slot) & ~lost)
    return with_world(state, preserved=preserved & ~slotset.of(ended), lost=lost)


def _mates(state: CoordinatorState, lost: Slots, gone: Slots) -> Slots:
    """The ranks of other slots that are in one replica with a lost rank, or with one of a slot that is
    gone."""
    size = state.config.replica_ranks
    if size == 1:
        return slotset.NONE
    whole = _ranks_of_slots(state, gone)
    replicas = {rank // size for rank in slotset.each(lost | whole)}
    return slotset.of(rank for each in replicas for rank in range(each * size, (each + 1) * size)) & ~whole


def _ranks(state: CoordinatorState, slot: int) -> Slots:
    """The ranks of a slot in the current world: bit n for rank n."""
    assert state.world is not None
    return slotset.of(state.world.plan.ranks(slot))


def _ranks_of_slots(state: CoordinatorState, slots: Slots) -> Slots:
    """As _ranks(), of several slots."""
    return functools.reduce(operator.or_, (_ranks(state, slot) for slot in slotset.each(slots)), slotset.NONE)


def _slots_with_loss(state: CoordinatorState) -> Slots:
    """Under sync Exact, slots with a rank that cannot continue, or that is lost and may be well again."""
    assert state.world is not None
    lost = slotset.of(rank // state.config.processes for rank in slotset.each(state.world.lost))
    return state.all_slots & ~state.facts.whole_regroups | lost


def preserved_text(state: CoordinatorState) -> str:
    """The end of a sentence, on the number of slots that are preserved; "": none is."""
    preserved = state.world.preserved.bit_count() if state.world else 0
    return f"; the ranks of {preserved} {'slot' if preserved == 1 else 'slots'} continue" if preserved else ""


def slots_of_dying(state: CoordinatorState) -> Slots:
    """Under sync Exact, preserved slots in which a process of a lost rank still lives, as the agent last
    reported."""
    world = state.world
    if world is None or not world.lost:
        return slotset.NONE
    found = (agent_of_slot(state, slot) for slot in slotset.each(world.preserved & _slots_with_loss(state)))
    return slotset.of(
        agent.report.slot
        for agent in found
        if agent
        and any(
            slotset.has(world.lost, rank.rank) and (rank.exit is None or rank.dying)
            for rank in agent.report.ranks
        )
    )


def lost_ranks(state: CoordinatorState) -> tuple[int, ...]:
    """Under sync Exact, ranks of the current world without which its preserved ones continue. (): none lives
    on, or the world runs."""
    absent = {*state.world.plan.absent} if state.world else ()
    return tuple(rank for rank in ranks_to_start(state) if rank not in absent)


def ranks_to_start(state: CoordinatorState) -> tuple[int, ...]:
    """As lost_ranks(), and those that the current world does not have."""
    world = state.world
    if world is None or not world.preserved or state.config.servers:
        return ()
    gone = _ranks_of_slots(state, state.all_slots & ~world.preserved)
    return (*slotset.each(gone | world.lost),)


def with_mates(state: CoordinatorState, slots: Slots) -> Slots:
    """The slots, and all that share a replica with one of them."""
    config = state.config
    mates = (config.mates_of(slot, config.replica_ranks) for slot in slotset.each(slots))
    return slots if config.replica_ranks == 1 else slotset.of({slot for each in mates for slot in each})


def can_resume_in_memory(state: CoordinatorState) -> bool:
    """Whether the next world can resume from memory. Not after a failure, a drain (ranks have stopped at its
    step), or for a new attempt. With parameter servers each of their pods must still have the state of the
    current server generation and stay; under sync Exact one rank that can continue, or that can still save
    for a drain that is requested."""
    world = state.world
    if world is None or state.failure or is_new_attempt(state):
        return False
    if world.paused_at is not None or state.facts.drained:
        return False
    if not state.config.servers:
        able = _staying_slots(state) & state.facts.regroups
        return slotset.has(able, state.config.lead_slot) if state.drain_requested else bool(able)
    if state.drain_requested:
        return False
    servers = state.all_slots & ~slotset.up_to(state.config.workers)
    return servers & _staying_slots(state) & state.facts.in_generation == servers


def leading_slots(state: CoordinatorState) -> Slots:
    """Under sync Exact, slots of the leading rank and its mates, without any of which it is lost."""
    return slotset.up_to((state.config.replica_ranks - 1) // state.config.processes + 1)


def _staying_slots(state: CoordinatorState) -> Slots:
    """Slots whose agent is that of the current world, and is not terminating. Under sync Exact those of the
    leading rank and its mates stay until they have saved."""
    leaving = slotindex.terminating_slots(state)
    if not state.config.servers:
        leaving &= ~leading_slots(state)
    return slotindex.present_slots(state) & state.facts.member & ~leaving


def _healthy_slots(state: CoordinatorState) -> Slots:
    """Slots that can be preserved: their pod stays, and its ranks all live or have ended well. None, unless
    the next world can resume in memory."""
    if not can_resume_in_memory(state):
        return slotset.NONE
    if not state.config.servers:
        return _staying_slots(state) & state.facts.regroups
    aborted = slotset.NONE if state.facts.clean else state.facts.aborted
    return _staying_slots(state) & state.facts.healthy & ~aborted
