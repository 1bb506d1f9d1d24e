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
longer than `drainSeconds`. A world of which no step is known yet is ended at once: a first step that is not
reported yet is made again.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.membership.commits import savers
from ropeteam_trainer.coordinator.membership.evidence import LEFT, LOST, Evidence
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.state import (
    Moment,
    State,
    enter,
    lead_born,
    ranks_of_members,
    with_world,
)

DEBOUNCE_SECONDS = 1.0
SAVES_THROUGH_US = 2
"""From this rung on checkpoints are committed by us."""


def note_leavers(state: State, at: Moment) -> State:
    """Remember who is leaving and since when."""
    world = state.world
    assert world is not None
    asked = slotindex.departing(state) & state.everybody & ~slotindex.done(state)
    new = tuple(slot for slot in slotset.each(asked) if slot not in world.leavers)
    if not new:
        return state
    return with_world(
        state, leavers=world.leavers + new, leave_at=at.now if world.leave_at is None else world.leave_at
    )


def begin(state: State, at: Moment) -> State:
    """Pause the world if it is asked to drain, or once the leavers have been gathered."""
    world = state.world
    assert world is not None
    gathered = world.leave_at is not None and at.now >= world.leave_at + DEBOUNCE_SECONDS
    begun = state.roll.drained  # by one before us
    if not (state.draining or gathered or begun):
        return state
    return enter(with_world(state, paused_at=at.now), WorldPhase.DRAINING, at)


def parting(state: State, at: Moment) -> tuple[Evidence, ...]:
    """The leave of workers that others do not depend on: no drain, their slots just change hands."""
    world = state.world
    assert world is not None
    if not state.config.servers or state.draining or any(map(state.config.is_server, world.leavers)):
        return ()
    gathered = world.leave_at is not None and at.now >= world.leave_at + DEBOUNCE_SECONDS
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
    world, servers = state.world, state.config.servers
    assert world is not None
    if world.stop_at is not None:
        return state
    if state.roll.drained:
        return with_world(state, stop_at=_highest(state, state.roll.drained, (RankPhase.DRAINED,)))
    who = slotset.up_to(state.config.workers) if servers else state.everybody
    if not state.roll.paused & who:
        return state
    if servers and not state.roll.restless & who:
        return with_world(state, stop_at=_highest(state, who))
    assert world.paused_at is not None
    if servers and at.now < world.paused_at + DEBOUNCE_SECONDS:
        return state  # patient
    return with_world(state, stop_at=_highest(state, who) + 1)


def _highest(state: State, among: slotset.Slots, phases: tuple[RankPhase, ...] = tuple(RankPhase)) -> int:
    """The highest step of ranks in these phases."""
    ranks = (rank for crew in ranks_of_members(state, among) for rank in crew.known.values())
    return max(rank.step for rank in ranks if rank.phase in phases)


def finished(state: State, at: Moment) -> str:
    """Why the drain is over, or ""."""
    world, roll_ = state.world, state.roll
    assert world is not None
    assert world.paused_at is not None
    if at.now >= world.paused_at + state.config.timeouts.drain:
        return "drainSeconds have passed"
    if terminating(state):
        return "its ranks have ended" if slotindex.all_are(state, roll_.exited) else ""
    if not roll_.moved:
        return "no rank has made a step yet"
    if world.stop_at is None or not slotindex.all_are(state, roll_.arrived):
        return ""
    if _committed(state, world.stop_at):
        return f"step {world.stop_at} is committed"
    some_are_done = (roll_.clean | (roll_.aborted if roll_.clean else slotset.NONE)) & savers(state)
    can_commit = world.stop_at in state.saved and not some_are_done
    return "" if can_commit else "there is nothing to commit"


def _committed(state: State, step: int) -> bool:
    assert state.world is not None
    newest = state.lineage[0] if state.lineage else None
    return newest is not None and newest.epoch == lead_born(state) and newest.step >= step
