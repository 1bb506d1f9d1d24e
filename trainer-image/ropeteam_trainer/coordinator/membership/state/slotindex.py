"""The roll: what is true of which slots, kept up to date where something was heard, never asked of everybody.

Order: a report, a word of the operator or a new world changes some slots -> `refresh` finds out anew what is
true of these -> the rules look at whole sets (state.roll). Leases run out in between: `call` asks all agents
only when the first of them may have.
Promise: the roll is what asking everybody would give (a test does), so no rule may change agents, words or
the world's plan but through here. Limits: the cost of a change is that of its own slots, and of copying a
dict of all agents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import RankPhase, RankReport
from ropeteam_trainer.contract.world import ProcessExit
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slotfacts import Facts
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import (
    Agent,
    MemberRanks,
    Pod,
    State,
    desired_slot,
    holds_slot,
    lead_born,
    lost,
    member_pod,
    pod_of,
    ranks_of_member,
)
from ropeteam_trainer.coordinator.membership.state.world import World

_ROUNDING = 0.001
"""Seconds; far above what sums of times lose."""

# ---- questions to the roll


def seated(state: State) -> Slots:
    """Slots whose agent is here, its lease run out or not. A pod that is being deleted has no place but in
    the world that it still runs or ends."""
    in_world = state.running or state.phase is WorldPhase.STOPPING
    roll = state.roll
    return roll.held & ~(roll.deleting & ~(roll.member if in_world else slotset.NONE))


def present(state: State) -> Slots:
    return seated(state) & ~state.roll.mute


def departing(state: State) -> Slots:
    """Their pods are about to go."""
    return seated(state) & (state.roll.departing | state.roll.deleting)


def done(state: State) -> Slots:
    """All of their ranks are done. An abort at the end of the script counts if any rank exited cleanly."""
    return state.roll.ended if state.roll.clean else slotset.NONE


def all_are(state: State, which: Slots) -> bool:
    """Every member of the current world is."""
    return state.world is not None and which & state.everybody == state.everybody


def suspects(state: State) -> Slots:
    """Of these members something may be wrong."""
    roll, seen = state.roll, state.world.seen if state.world else slotset.NONE
    undecided = roll.aborted if not roll.clean and all_are(state, roll.exited) else slotset.NONE
    gone = ~roll.told | roll.unheard | (seen & ~roll.here)
    return (gone | roll.failed | undecided) & state.everybody & ~done(state)


def lease_is_enough(state: State, pod: Pod) -> bool:
    """A report of this pod that says nothing new would change nothing but its lease: it has one, and is not
    waited for to show that it has applied the withdrawal of its plan."""
    if pod not in state.agents or slotset.has(state.roll.mute | state.roll.unheard, pod.slot):
        return False
    return state.running or state.world is None or slotset.has(state.world.quiesced, pod.slot)


# ---- changes to it


def know(state: State, agents: Iterable[Agent], now: float) -> State:
    """These agents have just spoken."""
    news = {pod_of(agent.report): agent for agent in agents}
    known = replace(
        state,
        agents={**state.agents, **news},
        leases_until=min(state.leases_until, now + state.config.timeouts.lost),
    )
    return refresh(state, known, slotset.of(pod.slot for pod in news), now)


def renew(state: State, heard: dict[Pod, float]) -> State:
    """The leases of agents that have nothing to tell."""
    agents = dict(state.agents)
    for pod, at in heard.items():
        if pod in agents:
            agents[pod] = Agent(agents[pod].report, at)
    return replace(state, agents=agents)


def call(state: State, now: float) -> State:
    """Whose lease has run out? Asked of all only if one may have."""
    if now < state.leases_until - _ROUNDING:
        return state
    oldest, patience = now - state.config.timeouts.lost, state.config.timeouts.lost
    until = min((each.heard for each in state.agents.values() if each.heard >= oldest), default=math.inf)
    gone = slotset.of(pod.slot for pod, each in state.agents.items() if each.heard < oldest)
    asked = gone | state.roll.mute | state.roll.unheard
    return refresh(state, replace(state, leases_until=until + patience), asked, now)


def differing(before: Facts[Slots], after: Facts[Slots]) -> Slots:
    """Slots of which something else is true now."""
    found = slotset.NONE
    for one, other in zip(vars(before).values(), vars(after).values(), strict=True):
        found |= one ^ other
    return found


def enter_world(state: State, world: World, now: float) -> State:
    """Another plan: everybody is asked anew."""
    return refresh(None, replace(state, world=world, saved={}), state.everybody, now)


def refresh(before: State | None, after: State, which: Slots, now: float) -> State:
    """What is true of these slots in `after`, which differs from `before` in nothing that concerns others."""
    which &= after.everybody
    sets = {name: known & ~which for name, known in vars(after.roll).items()}
    saved = dict(after.saved)
    for slot in slotset.each(which):
        bit, crew = slotset.one(slot), ranks_of_member(after, slot)
        for name, holds in _facts(after, slot, crew, now).items():
            if holds:
                sets[name] |= bit
        if before and before.saved:
            _count(saved, before, ranks_of_member(before, slot), -1)
        _count(saved, after, crew, 1)
    return replace(after, roll=Facts(**sets), saved={step: n for step, n in saved.items() if n})


def _count(saved: dict[int, int], state: State, crew: MemberRanks | None, sign: int) -> None:
    for step in {shard[0] for shard in shards_of(state, crew)}:
        ranks = {rank for each, rank in shards_of(state, crew) if each == step}
        saved[step] = saved.get(step, 0) + sign * len(ranks)


def shards_of(state: State, crew: MemberRanks | None) -> list[tuple[int, int]]:
    """Step and rank of each shard that counts: of a rank that saves, from the agent that owns it."""
    if crew is None or crew.agent is None or not crew.agent.report.shards:
        return []
    if not crew.known or not saves(state, crew.member.slot):
        return []
    epoch = lead_born(state)
    return [(s.step, s.rank) for s in crew.agent.report.shards if s.epoch == epoch and s.rank in crew.ranks]


def saves(state: State, slot: int) -> bool:
    """Its ranks save: all do; with parameter servers the first of these."""
    return not state.config.servers or slot == state.config.lead_slot


# ---- the truth about one slot


def _facts(state: State, slot: int, crew: MemberRanks | None, now: float) -> dict[str, bool]:
    """By the names of Facts."""
    word, world = desired_slot(state, slot), state.world
    held = state.agents.get(Pod(slot, word.incarnation, word.pod_uid)) if word and word.pod_uid else None
    report = held.report if held else None
    agent = crew.agent if crew else None
    plan = report.plan if report else None
    return dict(
        held=held is not None,
        deleting=word is not None and word.deleting,
        departing=report is not None and report.leaving,
        unproven=word is not None and not word.old_pod_gone,
        member=bool(report and world and member_pod(world, slot) == pod_of(report)),
        planned=plan is not None,
        troubled=report is not None and report.problem is not None,
        busy=report is not None and not report.stopped,
        in_line=bool(plan and world and plan.line == world.plan.line),
        mute=held is not None and lost(state, held, now),
        told=bool(crew and agent and holds_slot(state, pod_of(agent.report))),
        unheard=agent is not None and lost(state, agent, now),
        here=bool(world and agent and world.has(agent.report)),
        completed=bool(world and agent and agent.report.completed == world.plan.epoch),
        **(_of_ranks(crew) if crew and crew.known else _NOTHING_KNOWN),
    )


def _of_ranks(crew: MemberRanks) -> dict[str, bool]:
    """The second half of Facts."""
    ranks = crew.reports
    known = [rank for rank in ranks if rank]
    whole = len(known) == len(ranks)
    phases = {rank.phase for rank in known}
    gone = [rank for rank in known if rank.phase is RankPhase.EXITED]
    well = {rank.rank for rank in gone if is_clean(rank) or is_aborted_at_end(rank)}
    stopped = crew.agent is not None and crew.agent.report.stopped
    exited = whole and len(gone) == len(ranks)
    dead = exited and stopped
    return {
        "started": dead or (whole and crew.agent is not None and not stopped),
        "stepped": whole and all(rank.steps_here > 0 for rank in known),
        "stepped_or_ended": whole and all(rank.steps_here > 0 or rank.rank in well for rank in known),
        "moved": any(rank.phase is not RankPhase.STARTING or rank.steps_here for rank in known),
        "paused": RankPhase.PAUSED in phases,
        "restless": bool(phases - {RankPhase.PAUSED, RankPhase.EXITED}),
        "drained": RankPhase.DRAINED in phases,
        "arrived": whole and phases <= {RankPhase.DRAINED, RankPhase.EXITED},
        "exited": exited,
        "dead": dead,
        "clean": any(is_clean(rank) for rank in known),
        "aborted": any(is_aborted_at_end(rank) for rank in gone),
        "ended": whole and len(well) == len(ranks),
        "failed": len(well) < len(gone),
        "well": whole and all(rank.phase is not RankPhase.EXITED or rank.rank in well for rank in known),
    }


_NOTHING_KNOWN = dict.fromkeys(
    (
        *("started", "stepped", "stepped_or_ended", "moved", "paused", "restless", "drained", "arrived"),
        *("exited", "dead", "clean", "aborted", "ended", "failed", "well"),
    ),
    False,
)


def is_clean(rank: RankReport) -> bool:
    """Its script ended well. A script that was asked to end (SIGTERM) and exits 0 has not."""
    return rank.exit is not None and rank.exit.clean and not rank.exit.killed


def is_aborted_at_end(rank: RankReport) -> bool:
    """It died by a signal after its script's end (finished gloo processes sometimes SIGABRT)."""
    return rank.exit is not None and _aborted(rank.exit)


def _aborted(exit: ProcessExit) -> bool:
    return exit.signal is not None and exit.reached_end and not (exit.hung or exit.oom or exit.killed)
