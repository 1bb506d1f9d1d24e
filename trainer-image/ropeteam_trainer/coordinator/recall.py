"""After a boot: learn from the agents what the coordinator before us had made, before ordering anything.

Order: somebody has completed -> everybody has told, or a lease has passed since the first did -> the world of
the highest epoch is adopted untouched if all who are here live in it (members that are missing are a fault of
that world, found at once by the usual rules); a plan that only some have got is superseded, never completed.
Limits: while nobody reports we wait; an order given too early would end a world that is well.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.coordinator import keeping, progress
from ropeteam_trainer.coordinator.evidence import OURS, collect
from ropeteam_trainer.coordinator.state import (
    Agent,
    Moment,
    State,
    World,
    enter,
    member_pod,
    pod_of,
    present_agents,
    with_world,
)


def judge(state: State, at: Moment) -> State:
    """Adopt, supersede, begin, or go on waiting."""
    agents = present_agents(state, at.now)
    if agents and state.waited_from is None:
        state = replace(state, waited_from=at.now)
    plans = {slot: agent.report.plan for slot, agent in agents.items() if agent.report.plan}
    plans = {slot: plan for slot, plan in plans.items() if _shaped(state, plan)}
    for slot, plan in plans.items():
        if agents[slot].report.completed == plan.epoch:
            return enter(_with_former(state, plan, at), WorldPhase.COMPLETING, at)
    if not _told_enough(state, agents, at.now):
        return state
    former = max(plans.values(), key=lambda plan: plan.epoch, default=None)
    if former is None:
        return enter(state, WorldPhase.FORMING, at)
    state = _with_former(state, former, at)
    if _unanimous(former, agents) and _by_itself(state, at.now):
        moved = any(rank.steps_here for agent in agents.values() for rank in agent.report.ranks)
        return _absorb_all(with_world(enter(state, WorldPhase.RUNNING, at), stepped=moved), agents, at)
    return keeping.stop(_absorb_all(state, agents, at), at)


def _shaped(state: State, plan: Plan) -> bool:
    """A plan of this job: all of its slots, with as many ranks as we give them."""
    shape = tuple((slot, state.config.processes_of(slot)) for slot in range(state.config.slots))
    return tuple((member.slot, member.processes) for member in plan.members) == shape


def _told_enough(state: State, agents: dict[int, Agent], now: float) -> bool:
    lease = state.config.timeouts.lost
    if len(agents) == state.config.slots:
        return True
    if state.config.term == 1 and state.boot == 0 and not any(each.report.plan for each in agents.values()):
        return True  # nothing was before us
    if state.waited_from is not None:
        return now >= state.waited_from + lease
    return state.draining and now >= state.desired_at + lease


def _with_former(state: State, plan: Plan, at: Moment) -> State:
    return replace(state, world=World(plan, at.now), restarts=plan.restart_count + 1)


def _absorb_all(state: State, agents: dict[int, Agent], at: Moment) -> State:
    for agent in agents.values():
        state = progress.absorb(state, agent.report, False, at)
    return state


def _unanimous(plan: Plan, agents: dict[int, Agent]) -> bool:
    """Every member that is here lives in this world. Other pods in its slots are a fault of it, not a
    doubt."""
    world = World(plan, 0.0)
    return all(
        world.has(agent.report)
        for slot, agent in agents.items()
        if member_pod(world, slot) == pod_of(agent.report)
    )


def _by_itself(state: State, now: float) -> bool:
    """It runs, or it ended by itself. If all of it was killed by our agents, the one before us had ended
    it."""
    signs = collect(state, now)
    return any(sign.weight > OURS for sign in signs) or not signs
