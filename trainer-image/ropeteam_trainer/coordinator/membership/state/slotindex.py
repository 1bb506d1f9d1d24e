"""The index of facts (state.facts): which facts hold of which slots, updated for the slots that changed.

Order: a report, a desired state or a new world changes some slots -> `refresh_facts` computes the facts of
these again -> the rules read whole sets (state.facts). Leases expire in between: `note_expired_leases` scans
all agents only when the first lease may have expired.
Promise: the index equals one computed from all slots (a test compares them), so no rule may change agents,
desired slots or the world's plan but through here. Limits: a change costs the work for its own slots, and a
copy of the dict of all agents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.events import Pod, pod_of
from ropeteam_trainer.coordinator.membership.state.lateness import PAUSE_SECONDS
from ropeteam_trainer.coordinator.membership.state.ranks import (
    MemberRanks,
    can_regroup,
    counted_shards,
    is_aborted_at_end,
    is_clean,
    ranks_of_member,
)
from ropeteam_trainer.coordinator.membership.state.slotfacts import Facts
from ropeteam_trainer.coordinator.membership.state.slots import desired_slot, holds_slot, is_lost, member_pod
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import Agent, CoordinatorState
from ropeteam_trainer.coordinator.membership.state.world import Deputy, FormedWorld

_ROUNDING = 0.001
"""Seconds; far above the rounding error of sums of times."""
_MAX_DEPUTIZED = 100

# ---- queries


def registered_slots(state: CoordinatorState) -> Slots:
    """Slots whose pod has registered, its lease valid or not. A pod that is being deleted counts only as a
    member of the world that runs or is being stopped, or if it is preserved."""
    facts, in_world = state.facts, slotset.ALL
    if not (state.is_world_live or state.phase is WorldPhase.STOPPING):
        in_world = state.world.preserved if state.world else slotset.NONE
    return facts.held & ~(facts.deleting & ~(facts.member & in_world))


def present_slots(state: CoordinatorState) -> Slots:
    """Slots whose pod has registered and whose agent has a valid lease."""
    return registered_slots(state) & ~state.facts.lease_expired


def terminating_slots(state: CoordinatorState) -> Slots:
    """Slots whose registered pods are terminating: SIGTERM was received, or their deletion was requested."""
    return registered_slots(state) & (state.facts.departing | state.facts.deleting)


def done_slots(state: CoordinatorState) -> Slots:
    """Slots whose ranks all ended well. None before any rank of the world exited cleanly: until then an abort
    at the end of the script may be a fault."""
    return state.facts.ended if state.facts.clean else slotset.NONE


def has_all_members(state: CoordinatorState, which: Slots) -> bool:
    """Whether `which` holds every member of the current world. False without a world."""
    return state.world is not None and which & state.member_slots == state.member_slots


def suspect_slots(state: CoordinatorState) -> Slots:
    """Slots whose members need a look for evidence: gone (replaced, lease expired, or no longer in the world
    that they had confirmed), a rank that failed, or aborts that no clean exit explains. Not those that are
    done."""
    facts, confirmed = state.facts, state.world.confirmed if state.world else slotset.NONE
    undecided = facts.aborted if not facts.clean and has_all_members(state, facts.exited) else slotset.NONE
    gone = ~facts.member_reported | facts.member_lost | (confirmed & ~facts.in_world)
    return (gone | facts.failed | undecided) & state.member_slots & ~done_slots(state)


def lease_is_enough(state: CoordinatorState, pod: Pod) -> bool:
    """Whether an unchanged report of this pod would change nothing but its lease. Not if the lease had
    expired, nor while the world is being stopped and its slot is not quiesced: then each report may be the
    proof that the agent has applied the withdrawal of the plan."""
    if pod not in state.agents or slotset.has(state.facts.lease_expired | state.facts.member_lost, pod.slot):
        return False
    return state.is_world_live or state.world is None or slotset.has(state.world.quiesced, pod.slot)


# ---- changes


def note_reports(state: CoordinatorState, agents: Iterable[Agent], now: float) -> CoordinatorState:
    """The state with these agents' reports in place of their earlier ones, and the facts of their slots."""
    new_agents = {pod_of(agent.report): agent for agent in agents}
    known = replace(
        state,
        agents={**state.agents, **new_agents},
        leases_until=min(state.leases_until, now + state.config.timeouts.lost),
    )
    return refresh_facts(state, known, slotset.of(pod.slot for pod in new_agents), now)


def note_leases(state: CoordinatorState, received_at: dict[Pod, float]) -> CoordinatorState:
    """The state after leases, by pod, of agents with nothing to report (`lease_is_enough`). No facts change.
    Pods that are no longer known are ignored."""
    agents = dict(state.agents)
    for pod, at in received_at.items():
        if pod in agents:
            agents[pod] = Agent(agents[pod].report, at)
    return replace(state, agents=agents)


def extend_leases_by_pause(state: CoordinatorState, now: float) -> CoordinatorState:
    """The state with all agents' leases extended by as long as the event comes after the due Tick, if that
    exceeds PAUSE_SECONDS: this process paused, and read no reports meanwhile."""
    late = now - state.due if state.due is not None else 0.0
    if late <= PAUSE_SECONDS:
        return state
    agents = {
        pod: replace(agent, received_at=agent.received_at + late) for pod, agent in state.agents.items()
    }
    waited_from = state.waited_from + late if state.waited_from is not None else None
    return replace(
        state,
        agents=agents,
        waited_from=waited_from,
        leases_until=state.leases_until + late,
        due=None,
        lateness=state.lateness.after_late_turn(late, now),
    )


def note_expired_leases(state: CoordinatorState, now: float) -> CoordinatorState:
    """The state with the facts of leases that have expired, or were renewed after they had. Scans all agents,
    and only once the earliest lease known to be valid may have expired."""
    if now < state.leases_until - _ROUNDING:
        return state
    oldest, patience = now - state.config.timeouts.lost, state.config.timeouts.lost
    until = min(
        (each.received_at for each in state.agents.values() if each.received_at >= oldest), default=math.inf
    )
    gone = slotset.of(pod.slot for pod, each in state.agents.items() if each.received_at < oldest)
    rescanned = gone | state.facts.lease_expired | state.facts.member_lost
    return refresh_facts(state, replace(state, leases_until=until + patience), rescanned, now)


def differing_slots(before: Facts[Slots], after: Facts[Slots]) -> Slots:
    """Slots whose facts differ."""
    found = slotset.NONE
    for one, other in zip(vars(before).values(), vars(after).values(), strict=True):
        found |= one ^ other
    return found


def enter_world(state: CoordinatorState, world: FormedWorld, now: float) -> CoordinatorState:
    """The state with another world, no saved shards, and the facts of all slots."""
    plan = world.plan
    absent = slotset.of(each.slot for each in plan.members if each.is_absent)
    stores = slotset.of(each.slot for each in plan.members if each.address == plan.store_host)
    world = replace(world, absent=absent, store_slots=stores)
    return refresh_facts(None, replace(state, world=world, saved={}), state.all_slots, now)


def enter_deputy(state: CoordinatorState, slot: int, now: float) -> CoordinatorState:
    """The state with this slot as deputy, under the next number. Shards saved under the former name do not
    count any more, nor is anything granted under it."""
    assert state.world is not None
    deputy = Deputy(slot, state.next_world_id)
    after = replace(
        state,
        world=replace(state.world, deputy=deputy),
        numbers_used=state.numbers_used + 1,
        deputized=(*state.deputized, deputy.world_id)[-_MAX_DEPUTIZED:],
        grant=None,
    )
    return refresh_facts(state, after, state.all_slots, now)


def refresh_facts(
    before: CoordinatorState | None, after: CoordinatorState, which: Slots, now: float
) -> CoordinatorState:
    """`after` with the facts of the slots in `which`, and the counts in `saved`, computed again.

    Precondition: agents, desired slots and plan of all other slots are the same in `before` and `after`.
    `before` gives the shards to subtract from `saved`; None: `saved` of `after` counts none of them yet.
    """
    which &= after.all_slots
    sets = {name: known & ~which for name, known in vars(after.facts).items()}
    saved = dict(after.saved)
    for slot in slotset.each(which):
        bit, member_ranks = slotset.one(slot), ranks_of_member(after, slot)
        for name, holds in _facts_of_slot(after, slot, member_ranks, now).items():
            if holds:
                sets[name] |= bit
        if before and before.saved:
            _count_shards(saved, before, ranks_of_member(before, slot), -1)
        _count_shards(saved, after, member_ranks, 1)
    return replace(after, facts=Facts(**sets), saved={step: n for step, n in saved.items() if n})


def _count_shards(
    saved: dict[int, int], state: CoordinatorState, member_ranks: MemberRanks | None, sign: int
) -> None:
    """Add the member's ranks that have written a shard to the counts by step, in place. `sign` -1:
    subtract."""
    for step in {shard[0] for shard in counted_shards(state, member_ranks)}:
        ranks = {rank for each, rank in counted_shards(state, member_ranks) if each == step}
        saved[step] = saved.get(step, 0) + sign * len(ranks)


# ---- facts of one slot


def _facts_of_slot(
    state: CoordinatorState, slot: int, member_ranks: MemberRanks | None, now: float
) -> dict[str, bool]:
    """The facts of one slot, by the field names of Facts; their meaning is there. The first half is of the
    pod that holds the slot, the second of the member of the world: they differ once a pod was replaced."""
    desired, world = desired_slot(state, slot), state.world
    held = (
        state.agents.get(Pod(slot, desired.incarnation, desired.pod_uid))
        if desired and desired.pod_uid
        else None
    )
    report = held.report if held else None
    agent = member_ranks.agent if member_ranks else None
    plan = report.plan if report else None
    return dict(
        held=held is not None,
        deleting=desired is not None and desired.terminating,
        departing=report is not None and report.terminating,
        unproven=desired is not None and not desired.previous_pod_fenced,
        member=bool(report and world and member_pod(world, slot) == pod_of(report)),
        planned=plan is not None,
        has_problem=report is not None and report.problem is not None,
        supports_claim=report is not None and report.supports_claim,
        busy=report is not None and not report.stopped,
        in_generation=bool(plan and world and plan.server_generation == world.plan.server_generation),
        lease_expired=held is not None and is_lost(state, held, now),
        member_reported=bool(member_ranks and agent and holds_slot(state, pod_of(agent.report))),
        member_lost=agent is not None and is_lost(state, agent, now),
        in_world=bool(world and agent and world.has_ranks_of(agent.report)),
        completed=bool(world and agent and agent.report.completed == world.plan.world_id),
        **(_rank_facts(member_ranks) if member_ranks and member_ranks.known else _NO_RANK_FACTS),
    )


def _rank_facts(member_ranks: MemberRanks) -> dict[str, bool]:
    """The facts of a member's ranks, of which at least one is reported. `whole`: all are; what must hold of
    all ranks is false before."""
    ranks = member_ranks.reports
    known = [rank for rank in ranks if rank]
    whole = len(known) == len(ranks)
    phases = {rank.phase for rank in known}
    gone = [rank for rank in known if rank.phase is RankPhase.EXITED]
    well = {rank.rank for rank in gone if is_clean(rank) or is_aborted_at_end(rank)}
    stopped = member_ranks.agent is not None and member_ranks.agent.report.stopped
    exited = whole and len(gone) == len(ranks)
    still = (RankPhase.PAUSED, RankPhase.DRAINED, RankPhase.EXITED)
    received = {rank.pause_received for rank in known if rank.phase not in still}
    dead = exited and stopped
    return {
        "started": dead or (whole and member_ranks.agent is not None and not stopped),
        "stepped": whole and all(rank.steps_here > 0 for rank in known),
        "stepped_or_ended": whole and all(rank.steps_here > 0 or rank.rank in well for rank in known),
        "moved": any(rank.phase is not RankPhase.STARTING or rank.steps_here for rank in known),
        "paused": RankPhase.PAUSED in phases,
        "restless": bool(phases - {RankPhase.PAUSED, RankPhase.EXITED}),
        "unaware": False in received,
        "unconfirmed": None in received,
        "stops": any(rank.stop_at is not None for rank in known),
        "drained": RankPhase.DRAINED in phases,
        "arrived": whole and phases <= {RankPhase.DRAINED, RankPhase.EXITED},
        "exited": exited,
        "dead": dead,
        "clean": any(is_clean(rank) for rank in known),
        "aborted": any(is_aborted_at_end(rank) for rank in gone),
        "ended": whole and len(well) == len(ranks),
        "failed": len(well) < len(gone),
        "healthy": whole and all(rank.phase is not RankPhase.EXITED or rank.rank in well for rank in known),
        "regroups": any(can_regroup(rank) for rank in known),
        "whole_regroups": whole and all(can_regroup(rank) for rank in known),
    }


_NO_RANK_FACTS = dict.fromkeys(
    (
        *("started", "stepped", "stepped_or_ended", "moved", "paused", "restless", "unaware"),
        *("unconfirmed", "stops", "drained", "arrived", "exited", "dead", "clean", "aborted", "ended"),
        *("failed", "healthy", "regroups"),
    ),
    False,
)
