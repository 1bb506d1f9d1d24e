"""The decisions of the coordinator: which processes form the world. Pure.

An event comes in, the next State comes out, with a sentence from the branch that decided (`State.why`);
`orders`, `reply` and `job_report` (orders.py, report.py) are projections.
Order of a step: extend leases by pauses of our own event loop, and note them -> apply the event -> go
through the phases until nothing more follows. So the plan of a new world is published in the same step in
which the last condition for it was met.

    WAITING ------> FORMING ------> RUNNING ------> COMPLETING ------> COMPLETE
       | adopts a      ^  |            | terminating pods, drain
       | world,        |  v            v
       | then RUNNING  | DRAINED    DRAINING                  anything but completion: -> FAILED
       |               |               |
       +-----------> STOPPING <--------+---- a fault (from RUNNING, DRAINING)

With parameter servers the ranks of healthy slots live on from STOPPING to RUNNING (preserving.py).
Promises: the number of a world grows strictly; a plan needs every slot, and every rank of the world before it
dead, fenced or preserved by that plan; once all ranks are done the decision is final; the lineage grows only
by grants to ranks that live; never raises. Limits: one fixed set of slots, all of them needed; no shrinking.

Example: 3 workers with a rank each, feature level 2, world 1.0.1 runs, step 120 is committed.

    event                                         phase      plan in the orders    incident 1.0.1
    slot 1 reports: rank 1 exited by signal 9     STOPPING   none, to all three    Signal, charged, open
    slot 2 reports: its rank is killed            STOPPING   none                  the same
    slot 0 reports: its rank is killed,           RUNNING    1.0.2, to all three,  cause and charge final
      and the store of world 1.0.2 listens                   from step 120
    all report step 121, 4 s after the fault      RUNNING    1.0.2                 firstStep 4000 ms,
                                                                                   0 steps lost
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, WorldPhase
from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.contract.world import CheckpointRef
from ropeteam_trainer.coordinator.membership import (
    commits,
    drains,
    forming,
    groups,
    incidents,
    lease,
    preserving,
    progress,
    stage,
    unstartable,
)
from ropeteam_trainer.coordinator.membership.adoption import adopt_or_replan
from ropeteam_trainer.coordinator.membership.evidence import Evidence, collect, world_done
from ropeteam_trainer.coordinator.membership.forming import wake_at
from ropeteam_trainer.coordinator.membership.lease import may_answer
from ropeteam_trainer.coordinator.membership.orders import Replies, affected, orders, reply
from ropeteam_trainer.coordinator.membership.report import job_report
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import (
    DesiredReceived,
    Event,
    LeasesRenewed,
    Moment,
    ReportReceived,
    ReportsReceived,
    Tick,
    pod_of,
)
from ropeteam_trainer.coordinator.membership.state.lateness import PAUSE_SECONDS
from ropeteam_trainer.coordinator.membership.state.ranks import ranks_of_members
from ropeteam_trainer.coordinator.membership.state.slots import (
    accepted,
    desired_slot,
    holds_slot,
    is_member,
    lost,
    refusal,
)
from ropeteam_trainer.coordinator.membership.state.state import Agent, Decided, State, enter, new_attempt

__all__ = [
    "DesiredReceived",
    "Event",
    "LeasesRenewed",
    "Replies",
    "ReportReceived",
    "ReportsReceived",
    "State",
    "Tick",
    "affected",
    "initial",
    "job_report",
    "may_answer",
    "orders",
    "reply",
    "step",
    "wake_at",
]


def initial(config: CoordinatorConfig, boot: int, now: float) -> State:
    """State of a coordinator that has just booted: it knows no agent and sends no orders."""
    return State(config, boot, phase_since=now, why=lease.WAITING_FOR_OPERATOR)


def step(state: State, event: Event, now: float, unix_ms: int) -> State:
    """The state after `event`. Total: any sequence of decodable messages, in any order, is accepted."""
    at = Moment(now, unix_ms)
    state = _note_pause(state, now)
    if isinstance(event, LeasesRenewed):
        return slotindex.note_leases(state, event.received_at)
    if isinstance(event, ReportReceived):
        event = ReportsReceived((event,))
    if isinstance(event, ReportsReceived):
        state = _take_reports(state, event.reports, at)
    else:
        state = replace(state, touched=slotset.NONE)
    if isinstance(event, DesiredReceived):
        state = lease.renew(_take_desired(state, event.desired, at), event.desired, now)
    called = slotindex.note_expired_leases(state, now)
    state = replace(called, touched=called.touched | slotindex.differing(state.facts, called.facts))
    why = lease.silence(state, now)
    if not why:
        state, why = _advance(state, at)
    if isinstance(event, DesiredReceived):
        state = commits.answer(state)
    return replace(state, due=wake_at(state, now), why=why)


def _note_pause(state: State, now: float) -> State:
    """Extend leases if the event comes long after the due Tick: our own event loop paused, and no lease may
    expire by that."""
    late = now - state.due if state.due is not None else 0.0
    if late <= PAUSE_SECONDS:
        return state
    agents = {
        pod: replace(agent, received_at=agent.received_at + late) for pod, agent in state.agents.items()
    }
    waited_from = state.waited_from + late if state.waited_from is not None else None
    return replace(
        state,
        agents=agents,
        waited_from=waited_from,
        leases_until=state.leases_until + late,
        due=None,
        lateness=state.lateness.after(late, now),
    )


def _take_reports(state: State, reports_received: tuple[ReportReceived, ...], at: Moment) -> State:
    reports_received = tuple(each for each in reports_received if not refusal(state, each.report))
    reports = tuple(each.report for each in reports_received)
    state = slotindex.note_reports(state, (Agent(report, at.now) for report in reports), at.now)
    state = replace(state, n=max(state.n, *(_reported_n(state, report) for report in reports), 0))
    for report in reports:
        claimed = report.superseded.term if report.superseded and accepted(state, report) else 0
        if superseded := _newer_coordinator(state, report, claimed):
            newer = claimed or max(report.term, report.plan.world_id.term if report.plan else 0)
            newer_term = max(newer, state.newer_term)
            state = replace(state, superseded=state.superseded or superseded, newer_term=newer_term)
    reports_received = tuple(each for each in reports_received if holds_slot(state, pod_of(each.report)))
    if not lease.holds(state, at.now):  # there may be orders that were not sent
        reports_received = tuple(replace(each, applied=False) for each in reports_received)
    if not state.superseded:
        state = progress.absorb(state, reports_received, at)
    return replace(state, touched=slotset.of(report.slot for report in reports))


def _reported_n(state: State, report: AgentReport) -> int:
    """Number of the reported world, if it is of our term and boot. Not all such worlds are ours: where status
    was set back, our pod is the second of this term."""
    world_id = report.plan.world_id if report.plan else None
    return world_id.n if world_id and (world_id.term, world_id.boot) == (state.config.term, state.boot) else 0


def _newer_coordinator(state: State, report: AgentReport, claimed: int) -> str:
    """Why a newer coordinator exists, or "". An agent that has seen it refuses our orders: there must not be
    two coordinators. A world may not continue either if a world of term `claimed` has claimed its folder."""
    if claimed:
        return f"a world of term {claimed} has claimed the checkpoint folder"
    term, boot = state.config.term, state.boot
    seen = (report.plan.world_id.term, report.plan.world_id.boot) if report.plan else (term, boot)
    if report.term <= term and seen <= (term, boot):
        return ""
    return f"the agent of slot {report.slot} follows a newer coordinator than {term}.{boot}"


def _take_desired(state: State, desired: Desired, at: Moment) -> State:
    old, before = state.desired, state
    if desired.term != state.config.term or (old and _is_stale(desired, old)):
        return state  # of another coordinator, or stale
    known_uids = _with_known_uids(desired, old) if old else desired
    state = replace(state, desired=known_uids, acknowledged=desired.lineage)
    if old is None:
        state = replace(state, desired_at=at.now)
    if state.phase is WorldPhase.WAITING and _is_longer(desired.lineage, state.lineage):
        state = replace(state, lineage=desired.lineage[: state.config.keep])
    state = incidents.apply_desired(state)
    known = {
        pod: agent
        for pod, agent in state.agents.items()
        if is_member(state, pod) or not refusal(state, agent.report)
    }
    state = replace(state, agents=known)
    changed = _changed(state, before)
    state = slotindex.refresh(before, replace(state, touched=changed), changed, at.now)
    concerned = changed | slotset.one(state.config.lead_slot)
    received = (
        ReportReceived(agent.report) for pod, agent in known.items() if slotset.has(concerned, pod.slot)
    )
    return progress.absorb(state, [each for each in received if accepted(state, each.report)], at)


def _changed(state: State, before: State) -> slotset.Slots:
    """Slots whose desired state changed, or whose agents were forgotten."""
    others = slotset.of(pod.slot for pod in before.agents.keys() - state.agents.keys())
    slots = (
        slot for slot in range(state.config.slots) if desired_slot(state, slot) != desired_slot(before, slot)
    )
    return others | slotset.of(slots)


def _with_known_uids(desired: Desired, known: Desired) -> Desired:
    """`desired` with the pod UIDs that are known for the same incarnations. An operator that does not observe
    a pod at the moment withdraws nothing: another pod has another incarnation."""
    slots = {
        slot: replace(wanted, pod_uid=known.slots[slot].pod_uid)
        if not wanted.pod_uid and slot in known.slots and known.slots[slot].incarnation == wanted.incarnation
        else wanted
        for slot, wanted in desired.slots.items()
    }
    return replace(desired, slots=slots)


def _is_longer(reported: tuple[CheckpointRef, ...], known: tuple[CheckpointRef, ...]) -> bool:
    return bool(reported) and (not known or reported[0].step > known[0].step)


def _is_stale(desired: Desired, known: Desired) -> bool:
    """Stale, a late message: generations, attempts and incarnations only grow."""
    if desired.generation < known.generation or desired.attempt < known.attempt:
        return True
    return any(
        slot in known.slots and wanted.incarnation < known.slots[slot].incarnation
        for slot, wanted in desired.slots.items()
    )


def _advance(state: State, at: Moment, rounds: int = len(WorldPhase)) -> Decided:
    """Go through the phases until nothing more follows. A world that ends as it begins takes a few rounds."""
    decided = _PHASES[state.phase](_note_problems(state, at), at)
    if decided.state.phase is not state.phase and rounds > 0:
        return _advance(decided.state, at, rounds - 1)
    return decided._replace(why=decided.why or decided.state.phase.value)


def _note_problems(state: State, at: Moment) -> State:
    if state.failure or state.phase in _FINAL:
        return state
    if state.desired and state.desired.failure:
        return replace(state, failure=state.desired.failure)
    return unstartable.note(state, at)


def _waiting(state: State, at: Moment) -> Decided:
    if state.failure:
        return Decided(enter(state, WorldPhase.FAILED, at))
    return adopt_or_replan(state, at)


def _forming(state: State, at: Moment) -> Decided:
    state = commits.grant_next(preserving.shrink(state))
    if state.failure:
        return Decided(enter(state, WorldPhase.FAILED, at))
    if state.draining:
        if forming.unfinished(state) | forming.unaccounted(state):
            return Decided(state, "the job is to be drained; no world is started")
        return Decided(enter(state, WorldPhase.DRAINED, at))
    if obstacle := forming.obstacle(state, at.now):
        return Decided(state, f"waiting for {obstacle}{preserving.preserved_text(state)}")
    return Decided(forming.publish(state, at))


def _running(state: State, at: Moment) -> Decided:
    if split := groups.split_world(state, at.now):
        return Decided(_fault(replace(state, failure=state.failure or split), (), at))
    if world_done(state):
        return Decided(enter(state, WorldPhase.COMPLETING, at))
    state = drains.note_terminating(stage.note(state, at.now), at)
    signs = collect(state, at.now)
    leave = drains.terminating_workers(state, at)
    if signs or leave or state.failure:
        return Decided(_fault(state, (*signs, *leave), at))
    state = commits.grant_next(state)
    if drains.is_due(state, at):
        return Decided(drains.begin(state, at))
    return Decided(state, drains.gathering_text(state) or stage.sentence(state))


def _draining(state: State, at: Moment) -> Decided:
    if world_done(state):
        return Decided(enter(state, WorldPhase.COMPLETING, at))
    state = drains.note_terminating(state, at)
    signs = drains.unexpected(state, collect(state, at.now))
    if signs or state.failure:
        return Decided(_fault(state, signs, at))
    state = commits.grant_next(drains.fix_stop(state, at))
    if not drains.finished(state, at):
        return Decided(state, drains.draining_text(state))
    sign = drains.terminating_evidence(state)
    return Decided(preserving.stop(incidents.open_incident(state, sign, at) if sign else state, at))


def _fault(state: State, signs: tuple[Evidence, ...], at: Moment) -> State:
    """End the world: one incident for all evidence of it, now and later."""
    sign = incidents.strongest(signs)
    if sign and not new_attempt(state):
        state = incidents.open_incident(state, drains.terminating_evidence(state) or sign, at)
    return preserving.stop(incidents.fail_on_exit_code(state, at, slotset.ALL), at)


def _stopping(state: State, at: Moment) -> Decided:
    among = state.touched if forming.unfinished(state) else slotset.ALL  # at the end: all
    state = incidents.fail_on_exit_code(incidents.reclassify(state, at, among), at, among)
    if state.failure:
        return Decided(enter(state, WorldPhase.FAILED, at))
    state = commits.grant_next(preserving.shrink(state))
    if forming.unfinished(state):
        return Decided(state, forming.stopping_text(state, at.now))
    return Decided(enter(incidents.close(state, at), WorldPhase.FORMING, at))


def _completing(state: State, at: Moment) -> Decided:
    """Release all agents once all those that still can have acknowledged COMPLETE, and the last checkpoint is
    committed and known to the operator."""
    state = commits.grant_next(state)
    awaited = commits.awaited_commit(state, at.now)
    if awaited or not _is_acknowledged(state, at):
        return Decided(state, f"all ranks are done; waiting for {awaited or 'every agent to acknowledge it'}")
    return Decided(enter(state, WorldPhase.COMPLETE, at))


def _is_acknowledged(state: State, at: Moment) -> bool:
    """Whether all agents that still can have acknowledged COMPLETE."""
    for member_ranks in ranks_of_members(state, state.everybody & ~state.facts.completed):
        agent = member_ranks.agent
        waited = at.now - state.phase_since > state.config.timeouts.lost
        gone = waited if agent is None else lost(state, agent, at.now) or bool(refusal(state, agent.report))
        if not gone:
            return False
    return True


def _drained(state: State, at: Moment) -> Decided:
    if state.failure:
        return Decided(enter(state, WorldPhase.FAILED, at))
    if not state.draining:
        return Decided(enter(state, WorldPhase.FORMING, at))
    return Decided(state, "drained: all ranks have ended, as requested")


def _complete(state: State, _: Moment) -> Decided:
    return Decided(state, "complete: all ranks are done, and every agent has acknowledged it")


def _failed(state: State, at: Moment) -> Decided:
    """Let agents exit, and their pods with them, once status holds the failure: an operator that is away for
    long reads it here later."""
    saved = state.desired is not None and state.desired.failure is not None
    if saved or at.now - state.phase_since >= state.config.timeouts.fence:
        state = replace(state, dismissed=True)
    unfinished = forming.unfinished(state)
    state = incidents.reclassify(state, at, state.touched if unfinished else slotset.ALL)
    assert state.failure is not None
    why = f"failed: {state.failure.reason.value}: {state.failure.message}"
    return Decided(state if unfinished else incidents.close(state, at), why)


_FINAL = (WorldPhase.COMPLETING, WorldPhase.COMPLETE, WorldPhase.FAILED)
_PHASES: dict[WorldPhase, Callable[[State, Moment], Decided]] = {
    WorldPhase.WAITING: _waiting,
    WorldPhase.FORMING: _forming,
    WorldPhase.RUNNING: _running,
    WorldPhase.DRAINING: _draining,
    WorldPhase.STOPPING: _stopping,
    WorldPhase.DRAINED: _drained,
    WorldPhase.COMPLETING: _completing,
    WorldPhase.COMPLETE: _complete,
    WorldPhase.FAILED: _failed,
}
