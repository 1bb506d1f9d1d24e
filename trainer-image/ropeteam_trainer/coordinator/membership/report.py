"""The JobReport to the operator: a projection of the state."""

from __future__ import annotations

from ropeteam_trainer.contract.desired import JobReport, ReplacementRequest, SlotReport, WorldPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.membership import forming, groups, lease, stage, unstartable
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slots import (
    agent_of_slot,
    holds_slot,
    is_lost,
    is_terminating,
    member_pod,
)
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState

_LINEAGE_SHOWN = 10


def job_report(state: CoordinatorState, now: float) -> JobReport:
    """The report of the state at this moment. World size, notice and groups are those of a world that runs;
    once the job is over nothing is requested and nothing is stalled."""
    world = state.world
    live = world is not None and state.is_world_live
    return JobReport(
        job_uid=state.config.job_uid,
        term=state.config.term,
        boot=state.boot,
        phase=state.phase,
        why=state.why + state.lateness.suffix(now),
        stage=stage.current_stage(state),
        world_id=world.plan.world_id if world else None,
        world_size=world.plan.world_size - len(world.plan.absent) if world and live else 0,
        slots=_slot_reports(state, now),
        feature_level=state.feature_level,
        launcher=state.launcher,
        progress=state.progress,
        lineage=state.lineage[:_LINEAGE_SHOWN],
        checkpoint_unix_ms=state.checkpoint_unix_ms,
        incidents=tuple(fault.incident for fault in state.faults),
        replacement_requests=_replacement_requests(state, now),
        replace_all=state.failure_history.replace_all_of is not None and not _is_over(state),
        failure=state.failure if state.phase is WorldPhase.FAILED else None,
        stalled=None if _is_over(state) else unstartable.stalled_problem(state),
        notice=groups.notice(state, now) or forming.absence_notice(state, now),
        process_groups=groups.shown_groups(state),
        newer_term=state.newer_term,
        observed_generation=state.desired.generation if state.desired else 0,
        sent=now,
        lease_valid=lease.is_valid(state, now),
        lag_seconds=state.lateness.seconds(now),
    )


def _is_over(state: CoordinatorState) -> bool:
    """Whether the job's end is decided, although ranks or agents may still live."""
    return state.phase in (WorldPhase.COMPLETING, WorldPhase.COMPLETE, WorldPhase.FAILED)


def _slot_reports(state: CoordinatorState, now: float) -> dict[str, SlotReport]:
    """Reports of the slots that have an agent, its lease valid or not, by slot number as text."""
    found = {}
    for slot in range(state.config.slots):
        agent = agent_of_slot(state, slot)
        if agent:
            found[str(slot)] = SlotReport(
                incarnation=agent.report.incarnation,
                pod_uid=agent.report.pod_uid,
                node=agent.report.node,
                registered=not is_lost(state, agent, now),
                terminating=is_terminating(state, slot),
                preserved=not state.is_world_live and state.is_slot_live(slot),
                term=agent.report.term,
                silent_seconds=round(max(0.0, now - agent.received_at), 1),
            )
    return found


def _replacement_requests(state: CoordinatorState, now: float) -> tuple[ReplacementRequest, ...]:
    """Requests to replace pods, at most one per slot. The agent's expired lease comes before ranks that do
    not end, these before repeated faults. None while WAITING, when agents may not have reported yet, nor once
    the job is over."""
    if _is_over(state) or state.phase is WorldPhase.WAITING:
        return ()
    silent = {
        slot: request
        for slot in range(state.config.slots)
        if (request := _request_for_silent_agent(state, slot, now))
    }
    failing = {
        request.slot: request
        for request in (
            *state.failure_history.replacement_requests,
            *unstartable.replacement_requests(state, now),
        )
    }
    return tuple(
        request
        for _, request in sorted({**failing, **_requests_for_stuck_ranks(state, now), **silent}.items())
    )


def _requests_for_stuck_ranks(state: CoordinatorState, now: float) -> dict[int, ReplacementRequest]:
    """Requests to replace the pods in which ranks should have ended and have not, by slot."""
    found = {}
    for slot in slotset.each(forming.stuck_slots(state, now)):
        seconds = forming.UNENDING_SECONDS
        message = (
            f"the ranks of slot {slot} were ordered to end, and have not for {seconds:.0f} s: they, or their "
            "agent, hang"
        )
        agent = agent_of_slot(state, slot)
        assert agent is not None
        found[slot] = ReplacementRequest(slot, agent.report.incarnation, Cause.AGENT_LOST, message)
    return found


def _request_for_silent_agent(state: CoordinatorState, slot: int, now: float) -> ReplacementRequest | None:
    """Request to replace the slot's pod, if its agent's lease has expired or a member of the world never
    registered with this boot. None: neither."""
    agent = agent_of_slot(state, slot)
    member = member_pod(state.world, slot) if state.world else None
    if agent:
        incarnation, gone = agent.report.incarnation, is_lost(state, agent, now)
    elif member and holds_slot(state, member):
        incarnation, gone = member.incarnation, True
    else:
        return None
    message = f"the agent of slot {slot} has not reported for more than {state.config.timeouts.lost} s"
    return ReplacementRequest(slot, incarnation, Cause.AGENT_LOST, message) if gone else None
