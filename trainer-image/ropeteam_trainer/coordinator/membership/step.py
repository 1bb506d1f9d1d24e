"""The decisions of the coordinator: which processes form the world. Pure.

An event comes in, the next state comes out, with a sentence from the branch that decided (`why`);
`orders_for_slot`, `orders_for_sender` and `job_report` (orders.py, report.py) are projections.
Order of a step: extend leases by pauses of our own event loop, and note them -> apply the event -> go
through the phases until nothing more follows. So the plan of a new world is published in the same step in
which the last condition for it was met.

    WAITING ------> FORMING ------> RUNNING ------> COMPLETING ------> COMPLETE
       | adopts a      ^  |            | terminating pods, drain
       | world,        |  v            v
       | then RUNNING  | DRAINED    DRAINING                  anything but completion: -> FAILED
       |               |               |
       +-----------> STOPPING <--------+---- a fault (from RUNNING, DRAINING)

With parameter servers, and under sync Exact, ranks of healthy slots live on from STOPPING to RUNNING
(preserving.py). Under sync Exact a world may begin without slots that are missing; RUNNING goes to STOPPING
without a fault, and all ranks live on, when they are ready (forming.py).
Promises: the number of a world grows strictly; a plan needs every slot that it does not name as absent, and
every rank of the world before it dead, fenced or preserved by that plan; once all ranks are done the decision
is final; the lineage grows only by grants to ranks that live; never raises.

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
from ropeteam_trainer.coordinator.membership.evidence import (
    Evidence,
    collect_evidence,
    has_acknowledged_completion,
    is_world_done,
)
from ropeteam_trainer.coordinator.membership.forming import wake_at
from ropeteam_trainer.coordinator.membership.lease import may_answer
from ropeteam_trainer.coordinator.membership.orders import (
    Replies,
    affected_slots,
    orders_for_sender,
    orders_for_slot,
)
from ropeteam_trainer.coordinator.membership.report import job_report
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.desired import (
    changed_slots,
    is_newer_lineage,
    is_stale,
    with_known_uids,
)
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
from ropeteam_trainer.coordinator.membership.state.slots import (
    holds_slot,
    is_accepted,
    is_member,
    refusal_reason,
)
from ropeteam_trainer.coordinator.membership.state.state import (
    Agent,
    CoordinatorState,
    Decided,
    enter_phase,
    is_new_attempt,
)

__all__ = [
    "CoordinatorState",
    "DesiredReceived",
    "Event",
    "LeasesRenewed",
    "Replies",
    "ReportReceived",
    "ReportsReceived",
    "Tick",
    "affected_slots",
    "initial_state",
    "job_report",
    "may_answer",
    "orders_for_sender",
    "orders_for_slot",
    "step",
    "wake_at",
]


def initial_state(config: CoordinatorConfig, boot: int, now: float) -> CoordinatorState:
    """State of a coordinator that has just booted: it knows no agent and sends no orders. `boot`: number of
    the container's restart. `now`: monotonic seconds."""
    return CoordinatorState(config, boot, phase_since=now, why=lease.WAITING_FOR_OPERATOR)


def step(state: CoordinatorState, event: Event, now: float, unix_ms: int) -> CoordinatorState:
    """The state after `event`. Never raises: any decodable messages are accepted, in any order.

    Order: leases first, so that a pause of this process is no fault of an agent; then the event; then expired
    leases; then the phases, unless this coordinator is silent. `touched` and facts are complete before a
    phase reads them. LeasesRenewed only records times and decides nothing: the caller applies another event
    in the same turn (server.py).
    """
    at = Moment(now, unix_ms)
    state = slotindex.extend_leases_by_pause(state, now)
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
    current = slotindex.note_expired_leases(state, now)
    state = replace(current, touched=current.touched | slotindex.differing_slots(state.facts, current.facts))
    why = lease.silence_reason(state, now)
    if not why:
        state, why = _advance_phases(state, at)
    if isinstance(event, DesiredReceived):
        state = commits.note_lineage_sent(state)
    return replace(state, due=wake_at(state, now), why=why)


def _take_reports(
    state: CoordinatorState, reports_received: tuple[ReportReceived, ...], at: Moment
) -> CoordinatorState:
    """The state after reports. Those of refused pods are dropped first.

    A report of a pod that is not in the desired state yet is stored, and may show a newer coordinator, but is
    no progress of the world. Once superseded no progress is recorded at all: a newer coordinator decides.
    """
    reports_received = tuple(each for each in reports_received if not refusal_reason(state, each.report))
    reports = tuple(each.report for each in reports_received)
    state = slotindex.note_reports(state, (Agent(report, at.now) for report in reports), at.now)
    state = replace(
        state,
        numbers_used=max(state.numbers_used, *(_reported_n(state, report) for report in reports), 0),
    )
    for report in reports:
        claimed = lease.claimed_term(state, report)
        if superseded := lease.superseded_reason(state, report, claimed):
            newer = claimed or max(report.term, report.plan.world_id.term if report.plan else 0)
            newer_term = max(newer, state.newer_term)
            state = replace(state, superseded=state.superseded or superseded, newer_term=newer_term)
    reports_received = tuple(each for each in reports_received if holds_slot(state, pod_of(each.report)))
    if not lease.is_valid(state, at.now):  # there may be orders that were not sent
        reports_received = tuple(replace(each, applied=False) for each in reports_received)
    if not state.superseded:
        state = progress.record_reports(state, reports_received, at)
    return replace(state, touched=slotset.of(report.slot for report in reports))


def _reported_n(state: CoordinatorState, report: AgentReport) -> int:
    """The greatest n of a reported world, or of a deputy's commits, whose number has our term and boot; 0:
    there is none. After a restore of etcd another pod may have had this term and given that number: its
    values of n must not be used again."""
    found = [ref.world_id for ref in (report.granted, report.committed) if ref]
    found += [report.plan.world_id] if report.plan else []
    ours = (state.config.term, state.boot)
    return max((each.n for each in found if (each.term, each.boot) == ours), default=0)


def _take_desired(state: CoordinatorState, desired: Desired, at: Moment) -> CoordinatorState:
    """The state after a desired state; unchanged if that is stale, or for another term.

    Order: the desired state and its lineage -> agents that it refuses are removed, except members of the
    world -> facts of the changed slots -> stored reports of these slots are recorded: they did not count
    before. That of the lead slot always is: its checkpoint may extend the lineage only now.
    """
    old, before = state.desired, state
    if desired.term != state.config.term or (old and is_stale(desired, old)):
        return state
    known_uids = with_known_uids(desired, old) if old else desired
    state = replace(state, desired=known_uids, acknowledged=desired.lineage)
    if old is None:
        state = replace(state, desired_at=at.now)
    if state.phase is WorldPhase.WAITING and is_newer_lineage(desired.lineage, state.lineage):
        state = replace(state, lineage=desired.lineage[: state.config.keep])
    state = incidents.apply_desired(state)
    known = {
        pod: agent
        for pod, agent in state.agents.items()
        if is_member(state, pod) or not refusal_reason(state, agent.report)
    }
    state = replace(state, agents=known)
    changed = changed_slots(before, state)
    state = slotindex.refresh_facts(before, replace(state, touched=changed), changed, at.now)
    concerned = changed | slotset.one(state.config.lead_slot)
    received = (
        ReportReceived(agent.report) for pod, agent in known.items() if slotset.has(concerned, pod.slot)
    )
    return progress.record_reports(state, [each for each in received if is_accepted(state, each.report)], at)


def _advance_phases(state: CoordinatorState, at: Moment, rounds: int = len(WorldPhase)) -> Decided:
    """The state after its phase has decided, and each phase that was entered by that. `rounds`: limit of such
    changes, so that a bug cannot loop for ever; a world that ends as it begins takes a few."""
    decided = _PHASES[state.phase](_record_failure(state, at), at)
    if decided.state.phase is not state.phase and rounds > 0:
        return _advance_phases(decided.state, at, rounds - 1)
    return decided._replace(why=decided.why or decided.state.phase.value)


def _record_failure(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state with the job's failure, if the operator or an agent reports one. The first failure stays, and
    none follows once all ranks are done: completion is final."""
    if state.failure or state.phase in _FINAL:
        return state
    if state.desired and state.desired.failure:
        return replace(state, failure=state.desired.failure)
    return unstartable.record_problems(state, at)


def _decide_waiting(state: CoordinatorState, at: Moment) -> Decided:
    if state.failure:
        return Decided(enter_phase(state, WorldPhase.FAILED, at))
    return adopt_or_replan(state, at)


def _decide_forming(state: CoordinatorState, at: Moment) -> Decided:
    """First match wins: failure, last save of preserved ranks, requested drain, obstacle, next world. A
    checkpoint of preserved ranks is granted meanwhile; by a deputy, if the wait is for a pod."""
    state = forming.note_enough(drains.end_preserved(commits.grant_next_commit(state), at), at.now)
    if state.failure:
        return Decided(enter_phase(state, WorldPhase.FAILED, at))
    if drains.saves_first(state, at):
        return Decided(state, drains.draining_text(state))
    if state.drain_requested:
        if forming.unfinished_slots(state) | forming.unfenced_slots(state):
            return Decided(
                state,
                "the job is to be drained; waiting for its last ranks to end, or for proof that they have",
            )
        return Decided(enter_phase(state, WorldPhase.DRAINED, at))
    if obstacle := forming.obstacle(state, at.now):
        state = commits.appoint_deputy(state, at) if forming.missing_slots(state) else state
        return Decided(state, f"waiting for {obstacle}{preserving.preserved_text(state)}")
    return Decided(forming.start_next_world(state, at))


def _decide_running(state: CoordinatorState, at: Moment) -> Decided:
    """First match wins: split world, all ranks done, fault, drain, growth.

    A split world comes before done, because its ranks may all exit with 0. Done comes before evidence: a pod
    that ends afterwards is no fault. Terminating pods without which others continue end the world like a
    fault, and the ranks of these are preserved; a drain pauses all. Before a drain is begun a complete
    checkpoint is granted.
    """
    if split := groups.split_world_problem(state, at.now):
        return Decided(_end_faulty_world(replace(state, failure=state.failure or split), (), at))
    if is_world_done(state):
        return Decided(enter_phase(state, WorldPhase.COMPLETING, at))
    state = drains.record_terminating_slots(stage.note_training(state, at.now), at)
    all_evidence = (
        *collect_evidence(state, at.now),
        *drains.left_behind_evidence(state, at),
        *forming.lost_store_evidence(state),
    )
    if all_evidence or state.failure:
        return Decided(_end_faulty_world(state, all_evidence, at))
    state = commits.appoint_deputy(commits.grant_next_commit(state), at)
    if drains.is_due(state, at):
        return Decided(drains.begin_drain(state, at))
    if forming.can_grow(state, at.now):
        return Decided(preserving.stop_world(state, at))
    return Decided(state, drains.gathering_text(state) or stage.stage_text(state))


def _decide_draining(state: CoordinatorState, at: Moment) -> Decided:
    """First match wins: all ranks done, fault, wait until the drain has finished, stop. Only a drain for
    terminating pods opens an incident; a requested one is none."""
    if is_world_done(state):
        return Decided(enter_phase(state, WorldPhase.COMPLETING, at))
    state = drains.record_terminating_slots(state, at)
    all_evidence = drains.unexpected_evidence(state, collect_evidence(state, at.now))
    if all_evidence or state.failure:
        return Decided(_end_faulty_world(state, all_evidence, at))
    state = commits.grant_next_commit(drains.fix_stop_step(state, at))
    if not drains.has_finished(state, at):
        return Decided(state, drains.draining_text(state))
    return Decided(drains.end_drained(state, at))


def _end_faulty_world(
    state: CoordinatorState, all_evidence: tuple[Evidence, ...], at: Moment
) -> CoordinatorState:
    """Stop the world, and open its one incident for the strongest evidence. No incident without evidence, or
    if the operator replaces all pods (a new attempt). Terminating pods outweigh other evidence: they came
    first."""
    evidence = incidents.strongest_evidence(all_evidence)
    if evidence and not is_new_attempt(state):
        state = incidents.open_incident(state, drains.terminating_evidence(state) or evidence, at)
    return preserving.stop_world(incidents.fail_on_exit_code(state, at, slotset.ALL), at, evidence)


def _decide_stopping(state: CoordinatorState, at: Moment) -> Decided:
    """First match wins: failure, wait until all ranks have ended, next world. Before that the cause of the
    incident is reclassified: by slots that changed, and by all slots once the last rank has ended."""
    among = state.touched if forming.unfinished_slots(state) else slotset.ALL
    state = incidents.fail_on_exit_code(incidents.reclassify_incident(state, at, among), at, among)
    state = drains.end_preserved(commits.grant_next_commit(state), at)
    if state.failure:
        return Decided(enter_phase(state, WorldPhase.FAILED, at))
    if forming.unfinished_slots(state):
        return Decided(state, forming.stopping_text(state, at.now))
    return Decided(enter_phase(incidents.close_incident(state, at), WorldPhase.FORMING, at))


def _decide_completing(state: CoordinatorState, at: Moment) -> Decided:
    """Enter COMPLETE, which releases all agents, once every agent that still can has acknowledged completion,
    and the last checkpoint is committed and saved in status, or given up: after AWAITED_COMMIT_SECONDS, or
    as the agent that would write its manifest is lost. Until then nothing is a fault any more."""
    state = commits.grant_next_commit(state)
    awaited = commits.awaited_commit(state, at.now)
    if awaited or not has_acknowledged_completion(state, at.now):
        return Decided(state, f"all ranks are done; waiting for {awaited or 'every agent to acknowledge it'}")
    return Decided(enter_phase(state, WorldPhase.COMPLETE, at))


def _decide_drained(state: CoordinatorState, at: Moment) -> Decided:
    if state.failure:
        return Decided(enter_phase(state, WorldPhase.FAILED, at))
    if not state.drain_requested:
        return Decided(enter_phase(state, WorldPhase.FORMING, at))
    return Decided(state, "drained: all ranks have ended, as requested")


def _decide_complete(state: CoordinatorState, _: Moment) -> Decided:
    return Decided(state, "complete: all ranks are done, and every agent has acknowledged it")


def _decide_failed(state: CoordinatorState, at: Moment) -> Decided:
    """Stay in FAILED. Agents may exit (`dismissed`) once status has the failure, or after fenceSeconds if the
    operator is away. The incident is reclassified while ranks end, and closed afterwards."""
    saved = state.desired is not None and state.desired.failure is not None
    if saved or at.now - state.phase_since >= state.config.timeouts.fence:
        state = replace(state, dismissed=True)
    unfinished = forming.unfinished_slots(state)
    state = incidents.reclassify_incident(state, at, state.touched if unfinished else slotset.ALL)
    assert state.failure is not None
    why = f"failed: {state.failure.reason.value}: {state.failure.message}"
    return Decided(state if unfinished else incidents.close_incident(state, at), why)


_FINAL = (WorldPhase.COMPLETING, WorldPhase.COMPLETE, WorldPhase.FAILED)
_PHASES: dict[WorldPhase, Callable[[CoordinatorState, Moment], Decided]] = {
    WorldPhase.WAITING: _decide_waiting,
    WorldPhase.FORMING: _decide_forming,
    WorldPhase.RUNNING: _decide_running,
    WorldPhase.DRAINING: _decide_draining,
    WorldPhase.STOPPING: _decide_stopping,
    WorldPhase.DRAINED: _decide_drained,
    WorldPhase.COMPLETING: _decide_completing,
    WorldPhase.COMPLETE: _decide_complete,
    WorldPhase.FAILED: _decide_failed,
}
