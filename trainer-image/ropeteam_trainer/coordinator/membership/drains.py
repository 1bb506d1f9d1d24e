"""Drains: the job is suspended, or a pod is terminating (an eviction, a drain of its node), and no step is
lost.

Order: a pod is terminating -> others are awaited for DEBOUNCE_SECONDS, so that a drained rack is one incident
-> the world is paused: every rank waits at its next report -> the first paused rank fixes the step at which
all stop -> all save there -> committed. Ranks advance in step (a collective needs all of them), so no rank
can be past the step after the first one's pause.
With parameter servers no rank is paused for a terminating worker: it goes, and the others continue. If a
server is terminating all are paused, and the workers fix the step once all of them are paused: the highest. A
worker may not reach its next report because it waits, through the servers, for a paused one: after
DEBOUNCE_SECONDS all of them go one step beyond the highest known one, which releases it.
Limits: below feature level 2 there are no commits through us: the ranks get SIGTERM and may save by
themselves. Never longer than `drainSeconds`. A world without a known step is ended at once: a first step that
is not reported yet is repeated.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.membership.commits import savers
from ropeteam_trainer.coordinator.membership.evidence import LOST, POD_TERMINATING, Evidence
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import lead_started_in, ranks_of_members
from ropeteam_trainer.coordinator.membership.state.state import State, enter, with_world

DEBOUNCE_SECONDS = 1.0


def note_terminating(state: State, at: Moment) -> State:
    """Record the slots of terminating pods, and since when."""
    world = state.world
    assert world is not None
    terminating_slots = slotindex.departing(state) & state.everybody & ~slotindex.done(state)
    new = tuple(slot for slot in slotset.each(terminating_slots) if slot not in world.terminating_slots)
    if not new:
        return state
    return with_world(
        state,
        terminating_slots=world.terminating_slots + new,
        terminating_since=at.now if world.terminating_since is None else world.terminating_since,
    )


def is_due(state: State, at: Moment) -> bool:
    """Whether to pause the world: a drain is requested, or DEBOUNCE_SECONDS ago the first pod began to
    terminate."""
    world = state.world
    assert world is not None
    gathered = world.terminating_since is not None and at.now >= world.terminating_since + DEBOUNCE_SECONDS
    begun = state.facts.drained != slotset.NONE  # by a previous coordinator
    return state.draining or gathered or begun


def begin(state: State, at: Moment) -> State:
    """Pause the world."""
    return enter(with_world(state, paused_at=at.now), WorldPhase.DRAINING, at)


def gathering_text(state: State) -> str:
    """The sentence on a running world of which pods are terminating, while more are awaited; "": none is."""
    world = state.world
    assert world is not None
    if world.terminating_since is None:
        return ""
    pods = _pods_text(state)
    return f"world {world.plan.world_id} runs; terminating: {pods}; waiting for others that terminate too"


def draining_text(state: State) -> str:
    """The sentence on a world that is being drained."""
    world = state.world
    assert world is not None
    reason = f"terminating: {_pods_text(state)}" if world.terminating_slots else "the job is to be drained"
    goal = f"step {world.stop_at} to be saved" if world.stop_at is not None else "its ranks to pause"
    if ranks_terminated(state):
        goal = "its ranks to end after SIGTERM (a script below feature level 2 saves by itself)"
    return f"{reason}; world {world.plan.world_id} waits for {goal}"


def _pods_text(state: State) -> str:
    slots = state.world.terminating_slots if state.world else ()
    if len(slots) == 1:
        return f"the pod of slot {slots[0]}"
    return "the pods of slots " + ", ".join(str(slot) for slot in slots)


def terminating_workers(state: State, at: Moment) -> tuple[Evidence, ...]:
    """Evidence of terminating workers on which no others depend: no drain, their slots get other pods."""
    world = state.world
    assert world is not None
    if (
        not state.config.servers
        or state.draining
        or any(map(state.config.is_server, world.terminating_slots))
    ):
        return ()
    gathered = world.terminating_since is not None and at.now >= world.terminating_since + DEBOUNCE_SECONDS
    sign = terminating_evidence(state)
    return (sign,) if sign and gathered else ()


def ranks_terminated(state: State) -> bool:
    """Whether the ranks have been sent SIGTERM: the way they exit is no fault."""
    return state.phase is WorldPhase.DRAINING and state.feature_level < FeatureLevel.CHECKPOINTS


def unexpected(state: State, signs: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Signs that are a fault of a world that is being drained."""
    return tuple(sign for sign in signs if sign.weight >= LOST) if ranks_terminated(state) else signs


def terminating_evidence(state: State) -> Evidence | None:
    """Evidence of the terminating pods that ended, or are about to end, this world. It outweighs all other
    evidence: it came first."""
    world = state.world
    if world is None or world.terminating_since is None:
        return None
    slots = ", ".join(str(slot) for slot in world.terminating_slots)
    return Evidence(
        POD_TERMINATING,
        Cause.POD_DELETED,
        world.terminating_slots[0],
        f"the pod of slot {slots} was terminating",
    )


def fix_stop(state: State, at: Moment) -> State:
    """Fix the step at which all ranks stop, once the first one is paused: one beyond the highest known step.

    With parameter servers: the highest step of the workers, once all of them are paused. If ranks have
    stopped already (a previous coordinator had fixed the step), it is theirs.
    """
    world, servers = state.world, state.config.servers
    assert world is not None
    if world.stop_at is not None:
        return state
    if state.facts.drained:
        return with_world(state, stop_at=_highest_step(state, state.facts.drained, (RankPhase.DRAINED,)))
    among = slotset.up_to(state.config.workers) if servers else state.everybody
    if not state.facts.paused & among:
        return state
    if servers and not state.facts.restless & among:
        return with_world(state, stop_at=_highest_step(state, among))
    assert world.paused_at is not None
    if servers and at.now < world.paused_at + DEBOUNCE_SECONDS:
        return state  # the others may still pause
    return with_world(state, stop_at=_highest_step(state, among) + 1)


def _highest_step(
    state: State, among: slotset.Slots, phases: tuple[RankPhase, ...] = tuple(RankPhase)
) -> int:
    """The highest step of ranks in these phases."""
    ranks = (rank for member_ranks in ranks_of_members(state, among) for rank in member_ranks.known.values())
    return max(rank.step for rank in ranks if rank.phase in phases)


def finished(state: State, at: Moment) -> str:
    """Why the drain is over, or ""."""
    world, facts = state.world, state.facts
    assert world is not None
    assert world.paused_at is not None
    if at.now >= world.paused_at + state.config.timeouts.drain:
        return "spec.recovery.drainSeconds have passed"
    if ranks_terminated(state):
        return "its ranks have ended" if slotindex.all_members(state, facts.exited) else ""
    if not facts.moved:
        return "no rank has made a step yet"
    if world.stop_at is None or not slotindex.all_members(state, facts.arrived):
        return ""
    if _is_committed(state, world.stop_at):
        return f"step {world.stop_at} is committed"
    some_are_done = (facts.clean | (facts.aborted if facts.clean else slotset.NONE)) & savers(state)
    can_commit = world.stop_at in state.saved and not some_are_done
    return "" if can_commit else "there is nothing to commit"


def _is_committed(state: State, step: int) -> bool:
    assert state.world is not None
    newest = state.lineage[0] if state.lineage else None
    return newest is not None and newest.world_id == lead_started_in(state) and newest.step >= step
