"""Leaving without losing a step: suspend (all of us), or SIGTERM to a pod (an eviction, a node being
drained).

Order: somebody is leaving -> gathered for a second, so that a drained rack is one incident -> the epoch is
paused: every rank waits at its next report -> the first that waits fixes the step at which all stop -> all
save there -> committed. Ranks advance in step (a collective needs all of them), so no rank can be past the
step after the first one's pause.
Limits: below rung 2 nothing can be saved by us: the ranks get SIGTERM and may save by themselves. Never
longer than `drainSeconds`.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.commits import shards
from ropeteam_trainer.coordinator.evidence import LEFT, LOST, Evidence, crew_done, is_done
from ropeteam_trainer.coordinator.state import Moment, State, all_ranks, crews, enter, leaving, with_world

GATHER_SECONDS = 1.0
SAVES_THROUGH_US = 2
"""From this rung on checkpoints are committed by us."""


def note_leavers(state: State, at: Moment) -> State:
    """Remember who is leaving and since when."""
    world = state.world
    assert world is not None
    everybody = all_ranks(state)
    found = tuple(
        crew.member.slot
        for crew in crews(state)
        if leaving(state, crew.member.slot) and not crew_done(crew, everybody)
    )
    new = tuple(slot for slot in found if slot not in world.leavers)
    if not new:
        return state
    return with_world(
        state, leavers=world.leavers + new, leave_at=at.now if world.leave_at is None else world.leave_at
    )


def begin(state: State, at: Moment) -> State:
    """Pause the world if it is asked to drain, or once the leavers have been gathered."""
    world = state.world
    assert world is not None
    gathered = world.leave_at is not None and at.now >= world.leave_at + GATHER_SECONDS
    begun = any(rank and rank.phase is RankPhase.DRAINED for rank in all_ranks(state))  # by one before us
    if not (state.draining or gathered or begun):
        return state
    return enter(with_world(state, paused_at=at.now), WorldPhase.DRAINING, at)


def terminating(state: State) -> bool:
    """Its ranks are being asked to end by SIGTERM: how they end is no fault."""
    return state.phase is WorldPhase.DRAINING and state.rung < SAVES_THROUGH_US


def unexpected(state: State, signs: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """What would be a fault of a world that is being drained."""
    return tuple(sign for sign in signs if sign.weight >= LOST) if terminating(state) else signs


def left(state: State) -> Evidence | None:
    """The leave that ended, or is about to end, this world. It outweighs whatever else is seen: it came
    first."""
    world = state.world
    if world is None or world.leave_at is None:
        return None
    slots = ", ".join(str(slot) for slot in world.leavers)
    return Evidence(LEFT, Cause.POD_DELETED, world.leavers[0], f"the pod of slot {slots} was asked to leave")


def fix_stop(state: State) -> State:
    """The first rank that waits fixes where all stop: one step further than any has come.

    If ranks have stopped already (a coordinator before us had fixed it), it is where they are.
    """
    ranks = [rank for rank in all_ranks(state) if rank]
    assert state.world is not None
    if state.world.stop_at is not None:
        return state
    drained = [rank.step for rank in ranks if rank.phase is RankPhase.DRAINED]
    if drained:
        return with_world(state, stop_at=max(drained))
    if any(rank.phase is RankPhase.PAUSED for rank in ranks):
        return with_world(state, stop_at=max(rank.step for rank in ranks) + 1)
    return state


def finished(state: State, at: Moment) -> str:
    """Why the drain is over, or ""."""
    world, everybody = state.world, all_ranks(state)
    assert world is not None
    assert world.paused_at is not None
    if at.now >= world.paused_at + state.config.timeouts.drain:
        return "drainSeconds have passed"
    if terminating(state):
        ended = all(rank is not None and rank.phase is RankPhase.EXITED for rank in everybody)
        return "its ranks have ended" if ended else ""
    if all(rank is None or (rank.phase is RankPhase.STARTING and not rank.steps_here) for rank in everybody):
        return "no rank has made a step yet"
    arrived = (RankPhase.DRAINED, RankPhase.EXITED)
    if world.stop_at is None or not all(rank is not None and rank.phase in arrived for rank in everybody):
        return ""
    if _committed(state, world.stop_at):
        return f"step {world.stop_at} is committed"
    partial = shards(state, world.stop_at)
    can_commit = bool(partial) and not any(is_done(rank, everybody) for rank in everybody)
    return "" if can_commit else "there is nothing to commit"


def _committed(state: State, step: int) -> bool:
    assert state.world is not None
    newest = state.lineage[0] if state.lineage else None
    return newest is not None and newest.epoch == state.world.plan.epoch and newest.step >= step
