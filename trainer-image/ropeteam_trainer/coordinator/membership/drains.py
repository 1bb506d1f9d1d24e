"""Drains: the job is suspended, or a pod is terminating (an eviction, a drain of its node), and no step is
lost.

Order: a pod is terminating -> others are awaited for DEBOUNCE_SECONDS, so that a drained rack is one incident
-> the world is paused: every rank waits at its next report -> once all have received that, and one waits, the
step at which all stop is fixed -> all save there -> committed. A rank acknowledges a pause with its step, and
then makes one step more at most, so none is past the step after the highest known one. Without the
acknowledgement a rank could be: a late agent pauses its rank when that has begun the step after, in which it
waits for the others, while they wait for its part of the checkpoint.
Without a pause goes whoever the others can continue without. With parameter servers these are workers. If a
server is terminating all are paused, and the workers fix the step once all of them are paused: the highest. A
worker may not reach its next report because it waits, through the servers, for a paused one: after
DEBOUNCE_SECONDS all of them go one step beyond the highest known one, which releases it.
Under sync Exact these are all but the leading rank, whose agent commits; that as well, while it has not
joined the others yet. If the job is to be drained, or the leading pod terminates, while ranks are lost, those
that are preserved save in the same way before they end, one for all, if the leading pod is among theirs, or
that of its deputy (commits.py), for a drain that is requested. They stop a step later, because a lost rank
may have saved the step in which it was lost. Ranks that have not joined yet could not before the drain is
over: they are lost again when it begins.
Limits: below feature level 2 there are no commits through us: the ranks get SIGTERM and may save by
themselves. A rank whose library or agent is of an earlier release acknowledges nothing: DEBOUNCE_SECONDS
after the pause it counts as paused, if its agent has applied that. Never longer than `drainSeconds`. A world
in which all agents have applied the pause and know no step is ended at once, since its ranks may import for
minutes: a first step that is made then is repeated.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.membership import incidents, preserving
from ropeteam_trainer.coordinator.membership.commits import saver_slots
from ropeteam_trainer.coordinator.membership.evidence import LOST, POD_TERMINATING, Evidence
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import (
    committing_slot,
    is_any_rank_joining,
    ranks_of_members,
    saves_as,
)
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, enter_phase, with_world

DEBOUNCE_SECONDS = 1.0


def record_terminating_slots(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state with newly terminating slots recorded in the world, and the time of the first. Slots whose
    ranks are done do not count. Recorded slots stay, even when the pod is gone."""
    world = state.world
    assert world is not None
    terminating_slots = slotindex.terminating_slots(state) & state.member_slots & ~slotindex.done_slots(state)
    new = tuple(slot for slot in slotset.each(terminating_slots) if slot not in world.terminating_slots)
    if not new:
        return state
    return with_world(
        state,
        terminating_slots=world.terminating_slots + new,
        terminating_since=at.now if world.terminating_since is None else world.terminating_since,
    )


def is_due(state: CoordinatorState, at: Moment) -> bool:
    """Whether to pause the world: a drain is requested, the first pod began to terminate DEBOUNCE_SECONDS
    ago, or ranks have stopped, or were ordered to, for a drain that a previous boot began."""
    world = state.world
    assert world is not None
    gathered = world.terminating_since is not None and at.now >= world.terminating_since + DEBOUNCE_SECONDS
    begun = (state.facts.drained | state.facts.stops) != slotset.NONE
    return state.drain_requested or gathered or begun


def begin_drain(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state in DRAINING: each rank waits at its next report until the step to stop at is fixed. In
    STOPPING, if ranks have not joined others yet: these save before they end."""
    if is_any_rank_joining(state):
        stopped = end_drained(state, at)
        if saves_first(stopped, at):
            return stopped
    return enter_phase(with_world(state, paused_at=at.now), WorldPhase.DRAINING, at)


def gathering_text(state: CoordinatorState) -> str:
    """The sentence on a running world while more terminating pods are awaited; "": none is terminating."""
    world = state.world
    assert world is not None
    if world.terminating_since is None:
        return ""
    pods = _pods_text(world.terminating_slots)
    return f"world {world.plan.world_id} runs; terminating: {pods}; waiting for others that terminate too"


def draining_text(state: CoordinatorState) -> str:
    """The sentence on a world that is being drained: the reason, and what it waits for."""
    world = state.world
    assert world is not None
    slots = world.terminating_slots
    if world.preserved:
        slots = tuple(slotset.each(slotindex.terminating_slots(state) & world.preserved))
    reason = "the job is to be drained"
    if slots and not state.drain_requested:
        reason = f"terminating: {_pods_text(slots)}"
    goal = f"step {world.stop_at} to be saved" if world.stop_at is not None else "its ranks to pause"
    if drains_by_sigterm(state):
        goal = "its ranks to end after SIGTERM (a script below feature level 2 saves by itself)"
    return f"{reason}; world {world.plan.world_id} waits for {goal}"


def _pods_text(slots: tuple[int, ...]) -> str:
    if len(slots) == 1:
        return f"the pod of slot {slots[0]}"
    return "the pods of slots " + ", ".join(str(slot) for slot in slots)


def left_behind_evidence(state: CoordinatorState, at: Moment) -> tuple[Evidence, ...]:
    """Evidence of terminating pods without which the others continue, one for all of them, DEBOUNCE_SECONDS
    after the first. Empty if the world must be drained instead: a drain is requested, or the others cannot
    continue, or not before they have saved."""
    world = state.world
    assert world is not None
    gathered = world.terminating_since is not None and at.now >= world.terminating_since + DEBOUNCE_SECONDS
    evidence = terminating_evidence(state)
    leaves = gathered and not state.drain_requested and _continues_without_terminating_pods(state)
    return (evidence,) if evidence and leaves else ()


def _continues_without_terminating_pods(state: CoordinatorState) -> bool:
    """Whether ranks of other pods continue now. With parameter servers, unless one of these is terminating.
    Under sync Exact, if some can: also those of the leading pod, where they could save in a drain."""
    world = state.world
    assert world is not None
    if state.config.servers:
        return not any(map(state.config.is_server, world.terminating_slots))
    continuing = preserving.slots_to_preserve(state) & ~slotindex.terminating_slots(state)
    if slotset.has(state.facts.regroups, state.config.lead_slot):
        return not preserving.leading_slots(state) & ~continuing
    return continuing != slotset.NONE


def _is_leading_pod_terminating(state: CoordinatorState) -> bool:
    """Whether the pod of the leading rank is terminating, or one without which this rank is lost."""
    return bool(slotindex.terminating_slots(state) & preserving.leading_slots(state))


def drains_by_sigterm(state: CoordinatorState) -> bool:
    """Whether this world is being drained by SIGTERM to its ranks: its script is below feature level 2 and
    cannot save at a given step. How such ranks exit is no fault."""
    return state.phase is WorldPhase.DRAINING and state.feature_level < FeatureLevel.CHECKPOINTS


def unexpected_evidence(state: CoordinatorState, all_evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """The evidence that is a fault although the world is being drained: all; only lost and terminating pods,
    if its ranks get SIGTERM."""
    return (
        tuple(evidence for evidence in all_evidence if evidence.weight >= LOST)
        if drains_by_sigterm(state)
        else all_evidence
    )


def terminating_evidence(state: CoordinatorState) -> Evidence | None:
    """Evidence of the terminating pods of this world; None: there are none. It outweighs all other evidence:
    pods that terminate end their own ranks, whose peers then fail too. Its slot is the first that began to
    terminate."""
    world = state.world
    if world is None or world.terminating_since is None:
        return None
    pods = _pods_text(world.terminating_slots)
    verb = "was" if len(world.terminating_slots) == 1 else "were"
    return Evidence(
        POD_TERMINATING,
        Cause.POD_DELETED,
        world.terminating_slots[0],
        f"{pods} {verb} terminating (deleted or evicted, or a node is drained)",
    )


def end_drained(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state in STOPPING, with an incident if the drain was for terminating pods."""
    evidence = terminating_evidence(state)
    return preserving.stop_world(incidents.open_incident(state, evidence, at) if evidence else state, at)


def end_preserved(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state with `preserved` reduced to slots that continue. Those that are to end because the job is to
    be drained, or the leading pod terminates, save first."""
    if not saves_first(state, at):
        return preserving.drop_unhealthy_slots(state)
    state = preserving.keep_only(state, _living_preserved(state))
    assert state.world is not None
    if state.world.paused_at is None:
        state = with_world(state, paused_at=at.now)
    return fix_stop_step(state, at)


def saves_first(state: CoordinatorState, at: Moment) -> bool:
    """Whether preserved ranks are to end, and have not saved yet."""
    world, living = state.world, _living_preserved(state)
    if world is None or state.failure or state.config.servers:
        return False
    if not slotset.has(living, committing_slot(state)):
        return False
    if world.paused_at is None:
        leaves = world.deputy is None and _is_leading_pod_terminating(state)
        return state.drain_requested or leaves
    if at.now >= world.paused_at + state.config.timeouts.drain:
        return False
    return world.stop_at is None or bool(living & ~state.facts.arrived) or _is_being_committed(state)


def _living_preserved(state: CoordinatorState) -> slotset.Slots:
    preserved = state.world.preserved if state.world else slotset.NONE
    return preserved & slotindex.present_slots(state) & state.facts.member & state.facts.regroups


def fix_stop_step(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state with the step at which all ranks stop and save; unchanged while that is open. First match
    wins:

    - fixed already;
    - a previous boot had fixed it: the step of ranks that have stopped, or that were ordered to stop;
    - no rank is paused yet: open;
    - with parameter servers: the highest step of the workers, once none of them runs;
    - an agent has not applied the pause, or a rank may not have received it: open;
    - one beyond the highest known step: a rank may have begun that step before it was paused. With parameter
      servers only after DEBOUNCE_SECONDS, to release workers that wait for a paused one. If ranks are lost,
      or may not have joined yet, one more.
    """
    world, servers = state.world, state.config.servers
    assert world is not None
    if world.stop_at is not None:
        return state
    if state.facts.drained:
        return with_world(state, stop_at=_highest_step(state, state.facts.drained, (RankPhase.DRAINED,)))
    if ordered := state.facts.stops & world.acknowledged_pause:  # another may be of a drain that is over
        ranks = (rank for each in ranks_of_members(state, ordered) for rank in each.known.values())
        return with_world(state, stop_at=max(rank.stop_at for rank in ranks if rank.stop_at is not None))
    among = slotset.up_to(state.config.workers) if servers else world.preserved or state.member_slots
    if not state.facts.paused & among:
        return state
    if servers and not state.facts.restless & among:
        return with_world(state, stop_at=_highest_step(state, among))
    assert world.paused_at is not None
    is_early = at.now < world.paused_at + DEBOUNCE_SECONDS
    if servers and is_early:
        return state  # the others may still pause
    late_agents = ~world.acknowledged_pause & ~state.facts.exited
    if (late_agents | state.facts.unaware | (state.facts.unconfirmed if is_early else slotset.NONE)) & among:
        return state
    more = 2 if world.preserved or world.plan.started or world.absent else 1
    return with_world(state, stop_at=_highest_step(state, among) + more)


def _highest_step(
    state: CoordinatorState, among: slotset.Slots, phases: tuple[RankPhase, ...] = tuple(RankPhase)
) -> int:
    """The highest step of the reported ranks of these slots in these phases. Raises ValueError if there are
    none: callers know of one."""
    ranks = (rank for member_ranks in ranks_of_members(state, among) for rank in member_ranks.known.values())
    return max(rank.step for rank in ranks if rank.phase in phases)


def has_finished(state: CoordinatorState, at: Moment) -> bool:
    """Whether the drain is over. First match wins.

    The limit comes first. Then, by SIGTERM: all ranks have exited. Otherwise no step was made, as all agents
    have reported since the pause, so there is nothing to save; or all ranks have stopped at `stop_at` or
    exited, and that step is committed, or cannot be any more: no rank has written a shard of it, or a rank
    that should has ended.
    """
    world, facts = state.world, state.facts
    assert world is not None
    assert world.paused_at is not None
    if at.now >= world.paused_at + state.config.timeouts.drain:
        return True
    if drains_by_sigterm(state):
        return slotindex.has_all_members(state, facts.exited)
    if not facts.moved:
        return slotindex.has_all_members(state, world.acknowledged_pause)
    if world.stop_at is None or not slotindex.has_all_members(state, facts.arrived):
        return False
    return not _is_being_committed(state)


def _is_being_committed(state: CoordinatorState) -> bool:
    """Whether ranks have saved the step at which all have stopped, and it can be committed, but is not."""
    world, facts = state.world, state.facts
    assert world is not None
    newest = state.lineage[0] if state.lineage else None
    if world.stop_at is None or world.stop_at not in state.saved:
        return False
    if newest and newest.world_id == saves_as(state) and newest.step >= world.stop_at:
        return False
    some_are_done = (facts.clean | (facts.aborted if facts.clean else slotset.NONE)) & saver_slots(state)
    return not some_are_done
