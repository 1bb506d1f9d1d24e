"""After a boot: learn from the agents what the coordinator before us had made, before ordering anything.

Order: somebody has completed -> everybody has told, or a lease has passed since the first did -> the world of
the highest epoch is adopted untouched if all who are here live in it (members that are missing are a fault of
that world, found at once by the usual rules); a plan that only some have got is superseded, never completed.
While nobody reports we wait: an order given too early would end a world that is well. Not for longer than
ranks live without an answer: after that there is none.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.fence import longest_life
from ropeteam_trainer.contract.world import Member, Plan
from ropeteam_trainer.coordinator.membership import preserving, progress
from ropeteam_trainer.coordinator.membership.evidence import OURS, collect
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.state import (
    Agent,
    Moment,
    ReportReceived,
    State,
    agent_of_slot,
    desired_slot,
    enter,
    member_pod,
    pod_of,
    with_world,
)
from ropeteam_trainer.coordinator.membership.state.world import World


def adopt_or_replan(state: State, at: Moment) -> State:
    """Adopt, supersede, begin, or go on waiting."""
    here = slotindex.present(state)
    if here and state.waited_from is None:
        state = replace(state, waited_from=at.now)
    for plan in _plans(state, _agents(state, here & state.touched), completed=True):
        return enter(_with_former(state, plan, at), WorldPhase.COMPLETING, at)
    if not _told_enough(state, here, at.now):
        return state
    agents = _agents(state, here)
    plans = _plans(state, agents)
    former = max(plans, key=lambda plan: plan.epoch, default=None)
    if former is None:
        return enter(state, WorldPhase.FORMING, at)
    state = _with_former(state, former, at)
    if _unanimous(state, agents) and _by_itself(state, at.now):
        moved = any(rank.steps_here for agent in agents.values() for rank in agent.report.ranks)
        quiesced = not any(agent.report.rung for agent in agents.values())
        running = with_world(enter(state, WorldPhase.RUNNING, at), stepped=moved, trains=moved or quiesced)
        return _absorb_all(running, agents, at)
    return preserving.stop(_absorb_all(state, agents, at), at)


def _agents(state: State, among: slotset.Slots) -> dict[int, Agent]:
    """By slot."""
    return {slot: agent for slot in slotset.each(among) if (agent := agent_of_slot(state, slot))}


def _plans(state: State, agents: dict[int, Agent], completed: bool = False) -> list[Plan]:
    """The plans of this job that these agents tell of."""
    reports = [agent.report for agent in agents.values()]
    plans = [
        each.plan for each in reports if each.plan and (each.completed == each.plan.epoch or not completed)
    ]
    return [plan for plan in plans if _shaped(state, plan)]


def _shaped(state: State, plan: Plan) -> bool:
    """A plan of this job: all of its slots, with as many ranks as we give them."""
    if plan.whole:
        counts = plan.whole.incarnations[::2]
        ranks = sum(state.config.processes_of(slot) for slot in range(state.config.slots))
        return (sum(counts), plan.whole.slots, plan.whole.ranks) == (state.config.slots,) * 2 + (ranks,)
    shape = tuple((slot, state.config.processes_of(slot)) for slot in range(state.config.slots))
    return tuple((member.slot, member.processes) for member in plan.members) == shape


def _told_enough(state: State, here: slotset.Slots, now: float) -> bool:
    lease = state.config.timeouts.lost
    if here == state.everybody:
        return True
    if state.config.term == 1 and state.boot == 0 and not here & state.roll.planned:
        return True  # nothing was before us
    if now >= state.phase_since + longest_life(state.config.timeouts.fence):
        return True
    if state.waited_from is not None:
        return now >= state.waited_from + lease
    return state.draining and now >= state.desired_at + lease


def _with_former(state: State, plan: Plan, at: Moment) -> State:
    state = replace(state, restarts=plan.restart_count + 1)
    return slotindex.enter_world(state, World(_put_together(state, plan), at.now), at.now)


def _put_together(state: State, plan: Plan) -> Plan:
    """The whole plan of which this is a part. Members that have not told are known by their incarnation: the
    pod that has it now, or one that was replaced since."""
    if plan.whole is None:
        return plan
    told = {
        agent.report.slot: agent.report.plan.member(agent.report.slot)
        for agent in state.agents.values()
        if agent.report.plan and (agent.report.plan.epoch, agent.report.plan.hash) == (plan.epoch, plan.hash)
    }
    runs = zip(plan.whole.incarnations[::2], plan.whole.incarnations[1::2], strict=False)
    incarnations = [incarnation for count, incarnation in runs for _ in range(count)]
    members = tuple(
        told.get(slot) or _unheard(state, slot, incarnation) for slot, incarnation in enumerate(incarnations)
    )
    return replace(plan, members=members, whole=replace(plan.whole, slot=-1))


def _unheard(state: State, slot: int, incarnation: int) -> Member:
    word = desired_slot(state, slot)
    uid = word.pod_uid if word and word.incarnation == incarnation else ""
    return Member(slot, incarnation, uid, "", state.config.processes_of(slot))


def _absorb_all(state: State, agents: dict[int, Agent], at: Moment) -> State:
    return progress.absorb(state, (ReportReceived(agent.report) for agent in agents.values()), at)


def _unanimous(state: State, agents: dict[int, Agent]) -> bool:
    """Every member that is here lives in this world. Other pods in its slots are a fault of it, not a
    doubt."""
    world = state.world
    return world is not None and all(
        world.has(agent.report)
        for slot, agent in agents.items()
        if member_pod(world, slot) == pod_of(agent.report)
    )


def _by_itself(state: State, now: float) -> bool:
    """It runs, or it ended by itself. If all of it was killed by our agents, the one before us had ended
    it."""
    signs = collect(state, now)
    return any(sign.weight > OURS for sign in signs) or not signs
