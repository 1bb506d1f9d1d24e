"""After a boot: adoption of the previous coordinator's world from agents' reports, before any orders are
sent.

Order: a world reported as completed stays so -> else, once all agents have reported, or a lease has passed
since the first did, the world of the highest number is adopted unchanged if all registered members live in it
(missing members are a fault of that world, found at once by the usual rules); a plan that only some agents
have received is superseded, never completed, and so is a world that has lost ranks (sync Exact). While no
agent reports we wait: orders sent too early would end a healthy world. Not for longer than ranks live without
an answer: after that no rank lives.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.fence import longest_life
from ropeteam_trainer.contract.world import Member, Plan
from ropeteam_trainer.coordinator.membership import preserving, progress
from ropeteam_trainer.coordinator.membership.evidence import KILLED_BY_US, collect_evidence
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment, ReportReceived, pod_of
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_slot, desired_slot, member_pod
from ropeteam_trainer.coordinator.membership.state.state import (
    Agent,
    CoordinatorState,
    Decided,
    enter_phase,
    with_world,
)
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld

_WAITING = "waiting for the agents to report what they run, so that a world can be adopted"


def adopt_or_replan(state: CoordinatorState, at: Moment) -> Decided:
    """The decision of WAITING. First match wins: completion, wait for reports, no world reported (FORMING),
    adopt the newest world (RUNNING), supersede it (STOPPING). Completion comes before the wait: agents of a
    completed world exit, and may report no more."""
    here = slotindex.present_slots(state)
    if here and state.waited_from is None:
        state = replace(state, waited_from=at.now)
    for plan in _reported_plans(state, _agents_by_slot(state, here & state.touched), completed=True):
        return Decided(enter_phase(_with_previous_world(state, plan, at), WorldPhase.COMPLETING, at))
    if not _has_enough_reports(state, here, at.now):
        return Decided(state, _WAITING)
    agents = _agents_by_slot(state, here)
    plans = _reported_plans(state, agents)
    previous = max(plans, key=lambda plan: plan.world_id, default=None)
    if previous is None:
        return Decided(enter_phase(state, WorldPhase.FORMING, at))
    state = _with_lost_ranks(_with_previous_world(state, previous, at), agents)
    if _all_members_agree(state, agents) and _runs_or_ended_by_itself(state, at.now):
        moved = any(rank.steps_here for agent in agents.values() for rank in agent.report.ranks)
        quiesced = not any(agent.report.feature_level >= FeatureLevel.STEPS for agent in agents.values())
        running = with_world(
            enter_phase(state, WorldPhase.RUNNING, at), stepped=moved, trains=moved or quiesced
        )
        return Decided(_record_reports(running, agents, at))
    return Decided(preserving.stop_world(_record_reports(state, agents, at), at))


def _agents_by_slot(state: CoordinatorState, among: slotset.Slots) -> dict[int, Agent]:
    """The agents that hold these slots, by slot. Slots without one are left out."""
    return {slot: agent for slot in slotset.each(among) if (agent := agent_of_slot(state, slot))}


def _reported_plans(state: CoordinatorState, agents: dict[int, Agent], completed: bool = False) -> list[Plan]:
    """The plans of this job in these agents' reports. `completed`: only of worlds whose completion the agent
    has acknowledged."""
    reports = [agent.report for agent in agents.values()]
    plans = [
        each.plan for each in reports if each.plan and (each.completed == each.plan.world_id or not completed)
    ]
    return [plan for plan in plans if _fits_job(state, plan)]


def _fits_job(state: CoordinatorState, plan: Plan) -> bool:
    """Whether the plan has exactly this job's slots, with as many ranks as the config gives them. Of a part
    of a plan only the sums are known."""
    if plan.whole:
        counts = plan.whole.incarnations[::2]
        ranks = sum(state.config.processes_of(slot) for slot in range(state.config.slots))
        return (sum(counts), plan.whole.slots, plan.whole.ranks) == (state.config.slots,) * 2 + (ranks,)
    shape = tuple((slot, state.config.processes_of(slot)) for slot in range(state.config.slots))
    return tuple((member.slot, member.processes) for member in plan.members) == shape


def _has_enough_reports(state: CoordinatorState, here: slotset.Slots, now: float) -> bool:
    """Whether to decide on what is reported now. `here`: slots whose agent has reported.

    First match wins: all slots have; no coordinator was before this one; no rank can live without an answer
    any more; lostSeconds have passed since the first agent registered, or, in a drain in which perhaps no
    agent ever does, since the first desired state.
    """
    lease = state.config.timeouts.lost
    if here == state.all_slots:
        return True
    if state.config.term == 1 and state.boot == 0 and not here & state.facts.planned:
        return True
    if now >= state.phase_since + longest_life(state.config.timeouts.fence):
        return True
    if state.waited_from is not None:
        return now >= state.waited_from + lease
    return state.drain_requested and now >= state.desired_at + lease


def _with_previous_world(state: CoordinatorState, plan: Plan, at: Moment) -> CoordinatorState:
    """The state with a world of this reported plan, in the same phase."""
    state = replace(state, restarts=plan.restart_count + 1)
    return slotindex.enter_world(state, FormedWorld(_whole_plan(state, plan), at.now), at.now)


def _with_lost_ranks(state: CoordinatorState, agents: dict[int, Agent]) -> CoordinatorState:
    """The state with the ranks of its world that any of these agents was ordered to continue without. Not all
    may have received that, but a rank that one other continues without is no member any more."""
    world = state.world
    assert world is not None
    plan = world.plan
    of_this = (
        each.report
        for each in agents.values()
        if each.report.plan
        and (each.report.plan.world_id, each.report.plan.hash) == (plan.world_id, plan.hash)
    )
    lost = slotset.of(rank for report in of_this for rank in report.lost if 0 <= rank < plan.world_size)
    return with_world(state, lost=lost)


def _whole_plan(state: CoordinatorState, plan: Plan) -> Plan:
    """The whole plan of which this is a part; a whole plan unchanged. Members are those that agents report.

    Of slots without a report only the incarnations are known, run-length encoded in `plan.whole`: count,
    incarnation, count, ... The result keeps that summary with slot -1: it is no agent's part."""
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


def _member_without_report(state: CoordinatorState, slot: int, incarnation: int) -> Member:
    """The member of a plan whose agent has not reported. Its address is not known; pod UID "": its pod was
    replaced, so the member counts as lost."""
    desired = desired_slot(state, slot)
    uid = desired.pod_uid if desired and desired.incarnation == incarnation else ""
    return Member(slot, incarnation, uid, "", state.config.processes_of(slot))


def _record_reports(state: CoordinatorState, agents: dict[int, Agent], at: Moment) -> CoordinatorState:
    """The state after the last reports of these agents, now as reports of members of its world."""
    return progress.record_reports(state, (ReportReceived(agent.report) for agent in agents.values()), at)


def _all_members_agree(state: CoordinatorState, agents: dict[int, Agent]) -> bool:
    """Whether every agent that is a member of this world reports it as its own: if one does not, only a part
    of the agents had received the plan. Agents of other pods in its slots do not count: that a member was
    replaced is a fault of the world, found once it is adopted."""
    world = state.world
    return world is not None and all(
        world.has_ranks_of(agent.report)
        for slot, agent in agents.items()
        if member_pod(world, slot) == pod_of(agent.report)
    )


def _runs_or_ended_by_itself(state: CoordinatorState, now: float) -> bool:
    """Whether the world runs, or ended by a fault of its own. If agents have killed its ranks, or continue
    without some, and there is no other evidence, the previous boot had ended it: it must not be adopted as
    running."""
    all_evidence, world = collect_evidence(state, now), state.world
    ended = bool(all_evidence or (world and world.lost))
    return any(evidence.weight > KILLED_BY_US for evidence in all_evidence) or not ended
