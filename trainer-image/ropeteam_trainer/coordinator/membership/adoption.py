"""After a boot: adoption of the previous coordinator's world from agents' reports, before any orders are
sent.

Order: a world reported as completed stays so -> else, once all agents have reported, or a lease has passed
since the first did, the world of the highest number is adopted unchanged if all registered members live in it
(missing members are a fault of that world, found at once by the usual rules); a plan that only some agents
have received is superseded, never completed. While no agent reports we wait: orders sent too early would end
a healthy world. Not for longer than ranks live without an answer: after that no rank lives.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.fence import longest_life
from ropeteam_trainer.contract.world import Member, Plan
from ropeteam_trainer.coordinator.membership import preserving, progress
from ropeteam_trainer.coordinator.membership.evidence import KILLED_BY_US, collect
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment, ReportReceived, pod_of
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_slot, desired_slot, member_pod
from ropeteam_trainer.coordinator.membership.state.state import Agent, Decided, State, enter, with_world
from ropeteam_trainer.coordinator.membership.state.world import World

_WAITING = "waiting for the agents to report what they run, so that a world can be adopted"


def adopt_or_replan(state: State, at: Moment) -> Decided:
    """Adopt or supersede the previous world, form the first one, or wait."""
    here = slotindex.present(state)
    if here and state.waited_from is None:
        state = replace(state, waited_from=at.now)
    for plan in _plans(state, _agents(state, here & state.touched), completed=True):
        return Decided(enter(_with_previous_world(state, plan, at), WorldPhase.COMPLETING, at))
    if not _has_enough_reports(state, here, at.now):
        return Decided(state, _WAITING)
    agents = _agents(state, here)
    plans = _plans(state, agents)
    previous = max(plans, key=lambda plan: plan.world_id, default=None)
    if previous is None:
        return Decided(enter(state, WorldPhase.FORMING, at))
    state = _with_previous_world(state, previous, at)
    if _all_members_agree(state, agents) and _runs_or_ended_by_itself(state, at.now):
        moved = any(rank.steps_here for agent in agents.values() for rank in agent.report.ranks)
        quiesced = not any(agent.report.feature_level >= FeatureLevel.STEPS for agent in agents.values())
        running = with_world(enter(state, WorldPhase.RUNNING, at), stepped=moved, trains=moved or quiesced)
        return Decided(_absorb_all(running, agents, at))
    return Decided(preserving.stop(_absorb_all(state, agents, at), at))


def _agents(state: State, among: slotset.Slots) -> dict[int, Agent]:
    """Agents by slot."""
    return {slot: agent for slot in slotset.each(among) if (agent := agent_of_slot(state, slot))}


def _plans(state: State, agents: dict[int, Agent], completed: bool = False) -> list[Plan]:
    """The plans of this job in these agents' reports."""
    reports = [agent.report for agent in agents.values()]
    plans = [
        each.plan for each in reports if each.plan and (each.completed == each.plan.world_id or not completed)
    ]
    return [plan for plan in plans if _fits_job(state, plan)]


def _fits_job(state: State, plan: Plan) -> bool:
    """Whether the plan fits this job: all of its slots, with as many ranks as the config gives them."""
    if plan.whole:
        counts = plan.whole.incarnations[::2]
        ranks = sum(state.config.processes_of(slot) for slot in range(state.config.slots))
        return (sum(counts), plan.whole.slots, plan.whole.ranks) == (state.config.slots,) * 2 + (ranks,)
    shape = tuple((slot, state.config.processes_of(slot)) for slot in range(state.config.slots))
    return tuple((member.slot, member.processes) for member in plan.members) == shape


def _has_enough_reports(state: State, here: slotset.Slots, now: float) -> bool:
    lease = state.config.timeouts.lost
    if here == state.everybody:
        return True
    if state.config.term == 1 and state.boot == 0 and not here & state.facts.planned:
        return True  # no coordinator was before us
    if now >= state.phase_since + longest_life(state.config.timeouts.fence):
        return True
    if state.waited_from is not None:
        return now >= state.waited_from + lease
    return state.draining and now >= state.desired_at + lease


def _with_previous_world(state: State, plan: Plan, at: Moment) -> State:
    state = replace(state, restarts=plan.restart_count + 1)
    return slotindex.enter_world(state, World(_whole_plan(state, plan), at.now), at.now)


def _whole_plan(state: State, plan: Plan) -> Plan:
    """The whole plan of which this is a part. Members without a report are known by their incarnation: the
    pod that has it now, or one that was replaced since."""
    if plan.whole is None:
        return plan
    reported = {
        agent.report.slot: agent.report.plan.member(agent.report.slot)
        for agent in state.agents.values()
        if agent.report.plan
        and (agent.report.plan.world_id, agent.report.plan.hash) == (plan.world_id, plan.hash)
    }
    runs = zip(plan.whole.incarnations[::2], plan.whole.incarnations[1::2], strict=False)
    incarnations = [incarnation for count, incarnation in runs for _ in range(count)]
    members = tuple(
        reported.get(slot) or _member_without_report(state, slot, incarnation)
        for slot, incarnation in enumerate(incarnations)
    )
    return replace(plan, members=members, whole=replace(plan.whole, slot=-1))


def _member_without_report(state: State, slot: int, incarnation: int) -> Member:
    desired = desired_slot(state, slot)
    uid = desired.pod_uid if desired and desired.incarnation == incarnation else ""
    return Member(slot, incarnation, uid, "", state.config.processes_of(slot))


def _absorb_all(state: State, agents: dict[int, Agent], at: Moment) -> State:
    return progress.absorb(state, (ReportReceived(agent.report) for agent in agents.values()), at)


def _all_members_agree(state: State, agents: dict[int, Agent]) -> bool:
    """Whether every registered member lives in this world. Other pods in its slots are a fault of the world,
    and cast no doubt on it."""
    world = state.world
    return world is not None and all(
        world.has(agent.report)
        for slot, agent in agents.items()
        if member_pod(world, slot) == pod_of(agent.report)
    )


def _runs_or_ended_by_itself(state: State, now: float) -> bool:
    """Whether the world runs, or ended by itself. If all its ranks were killed by our agents, the previous
    coordinator had ended it."""
    signs = collect(state, now)
    return any(sign.weight > KILLED_BY_US for sign in signs) or not signs
