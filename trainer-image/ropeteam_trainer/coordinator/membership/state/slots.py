"""The pods that hold the slots, and the reports that count: those of these pods.

Example: the operator desires incarnation 3 of slot 1. A report of incarnation 2 is refused: its agent ends
its ranks. One of incarnation 4 neither counts nor is refused: the operator may have created it just now.
"""

from __future__ import annotations

from ropeteam_trainer.contract import OLDEST, VERSION
from ropeteam_trainer.contract.desired import SlotDesired, WorldPhase
from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.contract.world import Member
from ropeteam_trainer.coordinator.membership.state.events import Pod, pod_of
from ropeteam_trainer.coordinator.membership.state.state import Agent, CoordinatorState
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld


def desired_slot(state: CoordinatorState, slot: int) -> SlotDesired | None:
    """The desired state of a slot. None: none was received yet, or the job has no such slot."""
    return state.desired.slots.get(str(slot)) if state.desired else None


def holds_slot(state: CoordinatorState, pod: Pod) -> bool:
    """Whether this very pod holds the slot, by the desired state."""
    desired = desired_slot(state, pod.slot)
    return desired is not None and desired.pod_uid != "" and (desired.incarnation, desired.pod_uid) == pod[1:]


def is_member(state: CoordinatorState, pod: Pod) -> bool:
    """Whether the pod is a member of the world that runs or is being stopped. A world that has ended has
    none but those that are preserved.
    """
    if state.world is None or not (state.is_slot_live(pod.slot) or state.phase is WorldPhase.STOPPING):
        return False
    return member_pod(state.world, pod.slot) == pod


def member_pod(world: FormedWorld, slot: int) -> Pod | None:
    """The pod that holds a slot in this world's plan; another may hold it now. None: no such slot, or the
    plan is a part without it."""
    member = world.plan.member(slot)
    return Pod(slot, member.incarnation, member.pod_uid) if member else None


def refusal_reason(state: CoordinatorState, report: AgentReport) -> str:
    """Why the reporting agent is refused, for its log; "": it is not. A refused agent kills its ranks.

    First match wins. Not refused, if job, contract and slot are right: any agent before the first desired
    state; a pod that is newer than the desired one (the operator may have created it just now); one that is
    being deleted, as long as it is a member of the world, so that the world can be drained.
    """
    config, pod, desired = state.config, pod_of(report), desired_slot(state, report.slot)
    if report.job_uid != config.job_uid:
        return f"this is the coordinator of job {config.job_uid}, not of {report.job_uid}"
    if not OLDEST <= report.contract <= VERSION:
        return f"contract {report.contract} is unknown; this coordinator supports {OLDEST} to {VERSION}"
    if not 0 <= report.slot < config.slots or (state.desired and desired is None):
        return f"slot {report.slot} is not part of this job"
    if desired is None:
        return ""
    if pod.incarnation < desired.incarnation:
        return f"incarnation {pod.incarnation} of slot {pod.slot} was replaced by {desired.incarnation}"
    if pod.incarnation == desired.incarnation and desired.pod_uid not in ("", pod.uid):
        return f"slot {pod.slot} is held by another pod ({desired.pod_uid})"
    if pod.incarnation == desired.incarnation and desired.terminating and not is_member(state, pod):
        return f"the pod of slot {pod.slot} is being deleted"
    return ""


def is_accepted(state: CoordinatorState, report: AgentReport) -> bool:
    """Whether the report counts. Neither accepted nor refused: a pod not yet in the desired state."""
    return not refusal_reason(state, report) and holds_slot(state, pod_of(report))


def agent_of_slot(state: CoordinatorState, slot: int) -> Agent | None:
    """The agent of the pod that holds a slot, lost or not. None: the pod is unknown, has not reported, or is
    refused."""
    desired = desired_slot(state, slot)
    if desired is None or not desired.pod_uid:
        return None
    agent = state.agents.get(Pod(slot, desired.incarnation, desired.pod_uid))
    return agent if agent and not refusal_reason(state, agent.report) else None


def is_lost(state: CoordinatorState, agent: Agent, now: float) -> bool:
    """Whether the agent's lease has expired: lostSeconds have passed since its last report."""
    return now - agent.received_at > state.config.timeouts.lost


def present_agent(state: CoordinatorState, slot: int, now: float) -> Agent | None:
    """The agent that holds a slot, if its lease is valid; None otherwise."""
    agent = agent_of_slot(state, slot)
    return agent if agent and not is_lost(state, agent, now) else None


def is_terminating(state: CoordinatorState, slot: int) -> bool:
    """Whether the slot's pod is terminating: its agent reports SIGTERM, or the operator its deletion. False
    if the slot has no agent."""
    agent, desired = agent_of_slot(state, slot), desired_slot(state, slot)
    return agent is not None and desired is not None and (agent.report.terminating or desired.terminating)


def agent_of_member(state: CoordinatorState, member: Member) -> Agent | None:
    """The agent of a member of the world, even if its slot was given to another pod since. None: it never
    reported to this boot, or was removed since."""
    return state.agents.get(Pod(member.slot, member.incarnation, member.pod_uid))
