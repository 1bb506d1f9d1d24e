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
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.coordinator import progress
from ropeteam_trainer.coordinator.evidence import is_done
from ropeteam_trainer.coordinator.state import (
    Agent,
    Crew,
    Moment,
    State,
    all_ranks,
    crews,
    enter,
    leaving,
    member_pod,
    new_attempt,
    pod_of,
    present,
    with_world,
)


def stop(state: State, at: Moment) -> State:
    """The plan is withdrawn, but for the slots that are kept."""
    state = progress.note_dead(enter(state, WorldPhase.STOPPING, at))
    return with_world(state, kept=_well(state, at.now))


def shrink(state: State, at: Moment) -> State:
    """Slots that are not well any more are not kept any more."""
    world = state.world
    if world is None or not world.kept:
        return state
    kept = world.kept & _well(state, at.now)
    quiet = world.quiet | (progress.dead_slots(state) - kept)
    return with_world(state, kept=kept, quiet=quiet)


def goes_on(state: State, now: float) -> bool:
    """The next world goes on from what parameter servers have in memory."""
    world = state.world
    if world is None or not state.config.servers or state.failure or state.draining or new_attempt(state):
        return False
    drained = any(rank and rank.phase is RankPhase.DRAINED for rank in all_ranks(state))
    if world.paused_at is not None or drained:
        return False
    servers = (slot for slot in range(state.config.slots) if state.config.is_server(slot))
    return all(_remembers(state, slot, now) for slot in servers)


def _remembers(state: State, slot: int, now: float) -> bool:
    """The same agent has been there since this line of worlds began."""
    agent, world = _stays(state, slot, now), state.world
    if agent is None or agent.report.plan is None or world is None:
        return False
    return agent.report.plan.line == world.plan.line


def _stays(state: State, slot: int, now: float) -> Agent | None:
    """The agent of this slot, if it is that of the current world and stays."""
    agent, world = present(state, slot, now), state.world
    if agent is None or world is None or leaving(state, slot):
        return None
    return agent if member_pod(world, slot) == pod_of(agent.report) else None


def _well(state: State, now: float) -> frozenset[int]:
    if not goes_on(state, now):
        return frozenset()
    return frozenset(crew.member.slot for crew in crews(state) if _is_well(state, crew, now))


def _is_well(state: State, crew: Crew, now: float) -> bool:
    """All of its ranks live, or have ended as they should."""
    everybody = all_ranks(state)
    return _stays(state, crew.member.slot, now) is not None and all(
        rank is not None and (rank.phase is not RankPhase.EXITED or is_done(rank, everybody))
        for rank in crew.reports
    )
