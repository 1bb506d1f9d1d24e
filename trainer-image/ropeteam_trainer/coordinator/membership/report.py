"""The JobReport to the operator: a projection of the state, with one sentence on decision and reason."""

from __future__ import annotations

from collections.abc import Callable

from ropeteam_trainer.contract.desired import JobReport, ReplacementRequest, SlotReport, WorldPhase
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.coordinator.membership import groups, lease, stage, unstartable
from ropeteam_trainer.coordinator.membership.commits import awaited_commit
from ropeteam_trainer.coordinator.membership.drains import ranks_terminated
from ropeteam_trainer.coordinator.membership.forming import obstacle, unfinished
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.state import (
    State,
    agent_of_slot,
    holds_slot,
    leaving,
    lost,
    member_pod,
)

_LINEAGE_SHOWN = 10
UNENDING_SECONDS = 60.0
"""SIGKILL takes milliseconds; if a rank has not ended by then, the rank hangs in the kernel, or its agent
hangs."""


def job_report(state: State, now: float) -> JobReport:
    world = state.world
    live = world is not None and state.running
    return JobReport(
        job_uid=state.config.job_uid,
        term=state.config.term,
        boot=state.boot,
        phase=state.phase,
        why=why(state, now),
        stage=stage.stage(state),
        epoch=world.plan.epoch if world else None,
        world_size=world.plan.world_size if world and live else 0,
        slots=_slots(state, now),
        feature_level=state.feature_level,
        launcher=state.launcher,
        progress=state.progress,
        lineage=state.lineage[:_LINEAGE_SHOWN],
        checkpoint_unix_ms=state.checkpoint_unix_ms,
        incidents=tuple(fault.incident for fault in state.faults),
        replacement_requests=_replacements(state, now),
        replace_all=state.failure_history.replace_all_of is not None and not _is_over(state),
        failure=state.failure if state.phase is WorldPhase.FAILED else None,
        stalled=None if _is_over(state) else unstartable.stalled(state),
        notice=groups.notice(state, now),
        process_groups=groups.shown(state),
        newer_term=state.newer_term,
        observed_generation=state.desired.generation if state.desired else 0,
        sent=now,
        lease_valid=lease.holds(state, now),
        lag_seconds=state.lateness.seconds(now),
    )


def _is_over(state: State) -> bool:
    return state.phase in (WorldPhase.COMPLETING, WorldPhase.COMPLETE, WorldPhase.FAILED)


def _slots(state: State, now: float) -> dict[str, SlotReport]:
    found = {}
    for slot in range(state.config.slots):
        agent = agent_of_slot(state, slot)
        if agent:
            found[str(slot)] = SlotReport(
                incarnation=agent.report.incarnation,
                pod_uid=agent.report.pod_uid,
                node=agent.report.node,
                registered=not lost(state, agent, now),
                terminating=leaving(state, slot),
                term=agent.report.term,
                silent_seconds=round(max(0.0, now - agent.received_at), 1),
            )
    return found


def _replacements(state: State, now: float) -> tuple[ReplacementRequest, ...]:
    """Requests to replace pods: those whose agent's lease has expired, those in which the job fails again and
    again, and those whose ranks do not end."""
    if _is_over(state) or state.phase is WorldPhase.WAITING:
        return ()
    silent = {
        slot: request for slot in range(state.config.slots) for request in _silent_agent(state, slot, now)
    }
    failing = {
        request.slot: request
        for request in (
            *state.failure_history.replacement_requests,
            *unstartable.replacement_requests(state, now),
        )
    }
    return tuple(request for _, request in sorted({**failing, **_stuck_ranks(state, now), **silent}.items()))


def _stuck_ranks(state: State, now: float) -> dict[int, ReplacementRequest]:
    """Requests for slots whose ranks should have ended long ago and have not: only another pod helps."""
    if state.phase is not WorldPhase.STOPPING or now - state.phase_since < UNENDING_SECONDS:
        return {}
    found = {}
    for slot in slotset.each(unfinished(state)):
        message = f"the ranks of slot {slot} were ordered to end, and have not for {UNENDING_SECONDS:.0f} s"
        agent = agent_of_slot(state, slot)
        assert agent is not None
        found[slot] = ReplacementRequest(slot, agent.report.incarnation, Cause.AGENT_LOST, message)
    return found


def _silent_agent(state: State, slot: int, now: float) -> tuple[ReplacementRequest, ...]:
    agent = agent_of_slot(state, slot)
    member = member_pod(state.world, slot) if state.world else None
    if agent:
        incarnation, gone = agent.report.incarnation, lost(state, agent, now)
    elif member and holds_slot(state, member):
        incarnation, gone = member.incarnation, True  # it never registered with us after a restart
    else:
        return ()
    message = f"the agent of slot {slot} has not reported for more than {state.config.timeouts.lost} s"
    return (ReplacementRequest(slot, incarnation, Cause.AGENT_LOST, message),) if gone else ()


def why(state: State, now: float) -> str:
    """One sentence on the decision. It changes only with the decision, the awaited condition or our own
    lateness: each change is a line in the log."""
    late = state.lateness.seconds(now)
    return f"{_why(state, now)}; this coordinator is late, by up to {late} s" if late else _why(state, now)


def _why(state: State, now: float) -> str:
    if state.superseded:
        return f"sending no orders: {state.superseded}"
    if state.desired is None:
        return "waiting for the operator's first request"
    if not lease.holds(state, now):
        return (
            f"sending no orders: no contact with an operator for {state.config.lease} s "
            "(spec.recovery.selfFence)"
        )
    sentence = _SENTENCES[state.phase]
    return sentence if isinstance(sentence, str) else sentence(state, now)


def _forming(state: State, now: float) -> str:
    if state.draining:
        return "the job is to be drained; no world is started"
    missing = obstacle(state, now)
    return f"waiting for {missing}{_preserved_text(state)}" if missing else "starting the next world"


def _running(state: State, _: float) -> str:
    world = state.world
    assert world is not None
    if world.terminating_since is not None:
        pods = _pods_text(world.terminating_slots)
        return f"world {world.plan.epoch} runs; terminating: {pods}; waiting for others that terminate too"
    return stage.sentence(state)


def _draining(state: State, _: float) -> str:
    world = state.world
    assert world is not None
    reason = (
        f"terminating: {_pods_text(world.terminating_slots)}"
        if world.terminating_slots
        else "the job is to be drained"
    )
    goal = f"step {world.stop_at} to be saved" if world.stop_at is not None else "its ranks to pause"
    if ranks_terminated(state):
        goal = "its ranks to end after SIGTERM (a script below feature level 2 saves by itself)"
    return f"{reason}; world {world.plan.epoch} waits for {goal}"


def _stopping(state: State, now: float) -> str:
    fault, world = state.fault, state.world
    assert world is not None
    reason = f"{fault.incident.cause.value}: {fault.incident.message}" if fault else "its plan was withdrawn"
    more = f"{_stuck_text(state, now)}{_preserved_text(state)}"
    return f"ending the ranks of world {world.plan.epoch}, because {reason}{more}"


def _stuck_text(state: State, now: float) -> str:
    slots = sorted(_stuck_ranks(state, now))
    some = ", ".join(map(str, slots[:5])) + (" and more" if len(slots) > 5 else "")
    late = f"those of slots {some} have not ended for {UNENDING_SECONDS:.0f} s: other pods are requested"
    return f"; {late}" if slots else ""


def _preserved_text(state: State) -> str:
    preserved = state.world.preserved.bit_count() if state.world else 0
    return f"; the ranks of {preserved} {'slot' if preserved == 1 else 'slots'} continue" if preserved else ""


def _completing(state: State, now: float) -> str:
    rest = awaited_commit(state, now) or "every agent to acknowledge it"
    return f"all ranks are done; waiting for {rest}"


def _failed(state: State, _: float) -> str:
    assert state.failure is not None
    return f"failed: {state.failure.reason.value}: {state.failure.message}"


def _pods_text(slots: tuple[int, ...]) -> str:
    return (
        "the pods of slots " + ", ".join(str(slot) for slot in slots)
        if len(slots) > 1
        else f"the pod of slot {slots[0]}"
    )


_SENTENCES: dict[WorldPhase, Callable[[State, float], str] | str] = {
    WorldPhase.WAITING: "waiting for the agents to report what they run, so that a world can be adopted",
    WorldPhase.FORMING: _forming,
    WorldPhase.RUNNING: _running,
    WorldPhase.DRAINING: _draining,
    WorldPhase.STOPPING: _stopping,
    WorldPhase.DRAINED: "drained: all ranks have ended, as requested",
    WorldPhase.COMPLETING: _completing,
    WorldPhase.COMPLETE: "complete: all ranks are done, and every agent has acknowledged it",
    WorldPhase.FAILED: _failed,
}
