"""Leaving without losing a step: suspend (all of us), or SIGTERM to a pod (an eviction, a node being
drained).

Order: somebody is leaving -> gathered for a second, so that a drained rack is one incident -> the epoch is
paused: every rank waits at its next report -> the first that waits fixes the step at which all stop -> all
save there -> committed. Ranks advance in step (a collective needs all of them), so no rank can be past the
step after the first one's pause.
With parameter servers nobody is paused for a worker that leaves: it goes, and the others go on. When a server
leaves all are paused, and the workers fix the step, once all of them wait: the highest. A worker may not come
to its next report because it waits, through the servers, for one that is paused: after GATHER_SECONDS they
all go one step further than any was seen, which sets it free.
Limits: below rung 2 nothing can be saved by us: the ranks get SIGTERM and may save by themselves. Never
longer than `drainSeconds`.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.commits import savers, shards
from ropeteam_trainer.coordinator.evidence import LEFT, LOST, Evidence, crew_done, is_done
from ropeteam_trainer.coordinator.state import (
    Moment,
    State,
    all_ranks,
    crews,
    enter,
    lead_born,
    leaving,
    with_world,
)

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


def parting(state: State, at: Moment) -> tuple[Evidence, ...]:
    """The leave of workers that others do not depend on: no drain, their slots just change hands."""
    world = state.world
    assert world is not None
    if not state.config.servers or state.draining or any(map(state.config.is_server, world.leavers)):
        return ()
    gathered = world.leave_at is not None and at.now >= world.leave_at + GATHER_SECONDS
    sign = left(state)
    return (sign,) if sign and gathered else ()


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


def fix_stop(state: State, at: Moment) -> State:
    """The first rank that waits fixes where all stop: one step further than any has come.

    With parameter servers: where the first worker is, once all workers wait. If ranks have stopped already (a
    coordinator before us had fixed it), it is where they are.
    """
    ranks = [rank for rank in all_ranks(state) if rank]
    assert state.world is not None
    if state.world.stop_at is not None:
        return state
    drained = [rank.step for rank in ranks if rank.phase is RankPhase.DRAINED]
    if drained:
        return with_world(state, stop_at=max(drained))
    if state.config.servers:
        ranks = [rank for rank in ranks if rank.rank < state.world.plan.first_rank(state.config.lead_slot)]
    waiting = [rank for rank in ranks if rank.phase is RankPhase.PAUSED]
    if not waiting:
        return state
    highest = max(rank.step for rank in ranks)
    if not state.config.servers:
        return with_world(state, stop_at=highest + 1)
    alive = [rank for rank in ranks if rank.phase is not RankPhase.EXITED]
    if len(waiting) == len(alive):
        return with_world(state, stop_at=highest)
    assert state.world.paused_at is not None
    patient = at.now < state.world.paused_at + GATHER_SECONDS
    return state if patient else with_world(state, stop_at=highest + 1)


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
    saving = (rank for crew in savers(state) for rank in crew.reports)
    can_commit = bool(partial) and not any(is_done(rank, everybody) for rank in saving)
    return "" if can_commit else "there is nothing to commit"


def _committed(state: State, step: int) -> bool:
    assert state.world is not None
    newest = state.lineage[0] if state.lineage else None
    return newest is not None and newest.epoch == lead_born(state) and newest.step >= step
