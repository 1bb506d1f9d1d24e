"""How far the current world came: taken from each accepted report, monotone, until the next plan.

Promise: what was seen once stays seen (an agent that dies takes nothing back).
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.messages import AgentReport, RankPhase, RankReport
from ropeteam_trainer.coordinator import commits, incidents
from ropeteam_trainer.coordinator.evidence import is_done
from ropeteam_trainer.coordinator.state import (
    Crew,
    Moment,
    State,
    all_ranks,
    crews,
    member_pod,
    pod_of,
    with_world,
)


def absorb(state: State, report: AgentReport, applied: bool, at: Moment) -> State:
    """What an accepted agent tells."""
    known = state.world.base if state.world else None
    state = replace(
        state,
        rung=max(state.rung, report.rung),
        launcher=report.launcher or state.launcher,
    )
    state = commits.absorb(state, report, at)
    if state.world is None or member_pod(state.world, report.slot) != pod_of(report):
        return state
    state = _note_member(state, report, applied)
    if state.running:
        state = _note_stages(state, at)
    if known is None and state.world and state.world.base is not None:
        state = incidents.count_lost_steps(state, state.world.base)
    return state


def _note_member(state: State, report: AgentReport, applied: bool) -> State:
    world = state.world
    assert world is not None
    ours = world.has(report)
    if ours:
        highest = max((rank.step for rank in report.ranks), default=0)
        state = with_world(state, seen=world.seen | {report.slot}, step=max(world.step, highest))
        if report.slot == world.plan.members[0].slot:
            state = replace(state, progress=report.progress)
    dead = report.stopped and (
        applied or any(_all_dead(crew) for crew in crews(state) if crew.member.slot == report.slot)
    )
    if dead and not state.running:
        state = with_world(state, quiet=world.quiet | {report.slot})
    return state


def note_dead(state: State) -> State:
    """The plan was just withdrawn: which slots need no stopping, because all their ranks are dead already?

    A report that does not speak of the plan proves nothing here: the plan may still be on its way to that
    agent.
    """
    return with_world(state, quiet=dead_slots(state))


def dead_slots(state: State) -> frozenset[int]:
    """Where each rank of the current world lived and died."""
    return frozenset(crew.member.slot for crew in crews(state) if _all_dead(crew))


def _all_dead(crew: Crew) -> bool:
    """Each of its ranks lived and died, and nothing else of it is left."""
    if crew.agent is None or not crew.agent.report.stopped:
        return False
    return all(rank is not None and rank.phase is RankPhase.EXITED for rank in crew.reports)


def _note_stages(state: State, at: Moment) -> State:
    world, ranks = state.world, all_ranks(state)
    assert world is not None
    if world.started_at is None and all(_started(crew) for crew in crews(state)):
        state = incidents.reach(with_world(state, started_at=at.now), "started", at)
    if not world.stepped and all(rank is not None and _stepped(state, rank) for rank in ranks):
        state = incidents.reach(with_world(state, stepped=True), "first_step", at)
    first = ranks[world.plan.first_rank(state.config.lead_slot)]
    if world.base is None and first is not None and first.steps_here > 0:
        state = commits.settle_fresh_start(state, first.step - first.steps_here)
    return state


def _stepped(state: State, rank: RankReport) -> bool:
    """Of kept ranks some may have ended well already."""
    return rank.steps_here > 0 or (state.config.servers > 0 and is_done(rank, all_ranks(state)))


def _started(crew: Crew) -> bool:
    return all(rank is not None for rank in crew.reports) and (
        _all_dead(crew) or (crew.agent is not None and not crew.agent.report.stopped)
    )
