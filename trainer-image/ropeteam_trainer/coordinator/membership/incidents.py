"""One incident per world: its cause, its recovery stages, and its consequences.

Order: open_incident (a fault was found) -> reclassify_incident while ranks are being stopped ->
close_incident (all stopped: cause and charge are as certain as they can be), which decides on backoff,
failure and replacement. Later worlds record recovery stages and lost steps.
Promise: an incident is closed once; a world has at most one. Limits: no knowledge of Kubernetes: the operator
may still refine a cause (an evicted pod only looks lost from here).
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.config import ExitAction
from ropeteam_trainer.contract.desired import Incident, RecoveryTimes, ReplacementRequest
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import Cause, FailReason, WorldId
from ropeteam_trainer.coordinator.membership.evidence import (
    LOST,
    POD_TERMINATING,
    Evidence,
    collect_evidence,
    exit_rule,
    fingerprint,
    is_script_fault,
    moved_to_first_hung,
)
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import ranks_of_member
from ropeteam_trainer.coordinator.membership.state.slots import desired_slot
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, FailureHistory, Fault

MAX_INCIDENTS = 10
BACKOFF_FIRST, BACKOFF_MOST = 1.0, 60.0
ASSUMED_PROGRESS_SECONDS, ASSUMED_PROGRESS_AFTER_SIGNAL_SECONDS = 60.0, 1.0
"""A script that never reports steps is assumed to have made one after running this long. An exception may
take as long as the imports to occur; a world ended from outside is assumed to have made one sooner."""


def open_incident(state: CoordinatorState, evidence: Evidence, at: Moment) -> CoordinatorState:
    """The state with a new incident of the current world. Only for a world that has none yet. Its cause is
    provisional until `close_incident`; the oldest of more than MAX_INCIDENTS is dropped."""
    assert state.world is not None
    evidence = moved_to_first_hung(state, evidence)
    incident = Incident(
        id=str(state.world.plan.world_id),
        cause=evidence.cause,
        charged=evidence.cause.charged,
        slot=evidence.slot,
        rank=evidence.rank,
        node=_node_of_slot(state, evidence.slot),
        message=evidence.message,
        step=state.world.step,
        unix_ms=at.unix_ms,
        exit=evidence.exit,
    )
    return replace(state, faults=(*state.faults, Fault(incident, at.now, evidence.weight))[-MAX_INCIDENTS:])


def _node_of_slot(state: CoordinatorState, slot: int) -> str:
    """The node of this slot's member of the world, as its agent reports it; "": unknown."""
    member_ranks = ranks_of_member(state, slot)
    return member_ranks.agent.report.node if member_ranks and member_ranks.agent else ""


def reclassify_incident(state: CoordinatorState, at: Moment, among: Slots) -> CoordinatorState:
    """The state with the open incident's cause replaced, if there is heavier evidence in `among`: slots whose
    reports have changed since.

    With nothing heavier, evidence of the very same exit replaces the message: the agent may report more of a
    rank that was only dying before. Unchanged without an open incident.
    """
    fault = state.fault
    if fault is None or fault.incident.final:
        return state
    all_evidence = collect_evidence(state, at.now, among, fault.weight)
    all_evidence = tuple(evidence for evidence in all_evidence if _may_be_cause(state, evidence, fault))
    best = strongest_evidence(all_evidence)
    if best is None or best.weight <= fault.weight:
        best = next((evidence for evidence in all_evidence if _is_same_exit(evidence, fault)), None)
    if best is None:
        return state
    best = moved_to_first_hung(state, best)
    better = replace(
        fault.incident,
        cause=best.cause,
        charged=best.cause.charged,
        slot=best.slot,
        rank=best.rank,
        node=_node_of_slot(state, best.slot),
        message=best.message,
        exit=best.exit,
    )
    return _with_last_fault(state, replace(fault, incident=better, weight=best.weight))


def _may_be_cause(state: CoordinatorState, evidence: Evidence, fault: Fault) -> bool:
    """Whether the evidence may be from before the fault. A lost agent is a consequence if it still reported
    after the fault."""
    if evidence.weight < LOST:
        return True
    member_ranks = ranks_of_member(state, evidence.slot)
    return member_ranks is None or member_ranks.agent is None or member_ranks.agent.received_at < fault.at


def _is_same_exit(evidence: Evidence, fault: Fault) -> bool:
    """Whether the evidence is of the exit that is the incident's cause already."""
    known = (fault.incident.slot, fault.incident.rank, fault.weight)
    return evidence.exit is not None and (evidence.slot, evidence.rank, evidence.weight) == known


def strongest_evidence(all_evidence: tuple[Evidence, ...]) -> Evidence | None:
    """The heaviest evidence; among equals the first. None: there is none."""
    return max(all_evidence, key=lambda evidence: evidence.weight, default=None)


def fail_on_exit_code(state: CoordinatorState, at: Moment, among: Slots) -> CoordinatorState:
    """The state with the job's failure, if an exit in `among` has action Fail in `recovery.exitCodes`. Not if
    the world ended for a terminating pod: its ranks exit because of SIGTERM."""
    fault = state.fault
    if state.failure or fault is None or fault.weight >= POD_TERMINATING or not state.config.exit_codes:
        return state
    final = (
        evidence
        for evidence in collect_evidence(state, at.now, among)
        if exit_rule(state, evidence.exit) is ExitAction.FAIL
    )
    evidence = next(final, None)
    if evidence is None or evidence.exit is None:
        return state
    message = (
        f"rank {evidence.rank} exited {evidence.exit.code}, which spec.recovery.exitCodes defines as final"
    )
    return replace(state, failure=Problem(FailReason.EXIT_CODE, message))


def close_incident(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state with the incident of the world closed, now that all its ranks are dead: final, its stage
    `stopped` recorded, counted in the failure history, unless it was for terminating pods before any
    progress: these say nothing about starts. That may fail the job: an error of the script in any pod, the
    same fault too often, or no failure allowance left. Unchanged without an open incident."""
    fault = state.fault
    if fault is None or fault.incident.final:
        return state
    assert state.world is not None
    stages = replace(fault.incident.recovery_milliseconds, stopped=_milliseconds_since(fault, at))
    incident = replace(fault.incident, final=True, step=state.world.step, recovery_milliseconds=stages)
    state = _with_last_fault(state, replace(fault, incident=incident))
    progress = made_progress(state, fault)
    if progress or fault.weight < POD_TERMINATING:
        state = replace(state, failure_history=_updated_history(state, incident, progress, at))
    failure = _script_failure(state, fault) or _terminal_failure(state, incident)
    return replace(state, failure=state.failure or failure)


def made_progress(state: CoordinatorState, fault: Fault) -> bool:
    """Whether the world made a step on all ranks. Of a script below feature level 1, which reports none, that
    is assumed after ASSUMED_PROGRESS_SECONDS."""
    world = state.world
    assert world is not None
    if state.feature_level >= FeatureLevel.STEPS or world.stepped:
        return world.stepped
    cause = fault.incident.cause
    slow = cause is Cause.UNKNOWN or is_script_fault(cause, fault.incident.exit)
    needed = ASSUMED_PROGRESS_SECONDS if slow else ASSUMED_PROGRESS_AFTER_SIGNAL_SECONDS
    return world.started_at is not None and fault.at - world.started_at >= needed


def _updated_history(
    state: CoordinatorState, incident: Incident, progress: bool, at: Moment
) -> FailureHistory:
    """The failure history with a closed incident. `progress`: `made_progress` of its world.

    Order: backoff, which doubles for each world without progress in a row -> whether the fault is the same as
    the last one with nothing gained in between -> charge -> replacement requests. A new highest step is no
    gain of a world that made no step itself: preserved ranks may have made it.
    """
    old = state.failure_history
    worlds_without_progress = 0 if progress else old.worlds_without_progress + 1
    backoff = (
        min(BACKOFF_FIRST * 2 ** min(worlds_without_progress - 1, 10), BACKOFF_MOST)
        if worlds_without_progress
        else 0.0
    )
    identity = fingerprint(incident.cause, incident.exit)
    had_preserved = state.world is not None and bool(state.world.plan.preserved)
    new_top_step = incident.step > old.top_step and (progress or not had_preserved)
    assumed_progress = progress and state.feature_level < FeatureLevel.STEPS
    is_repeated = identity == old.fingerprint and not new_top_step and not assumed_progress
    new = replace(
        old,
        worlds_without_progress=worlds_without_progress,
        not_before=at.now + backoff,
        top_step=max(old.top_step, incident.step),
        unaccounted=(*old.unaccounted, incident.id) if _is_unaccounted(state, incident) else old.unaccounted,
    )
    if identity:
        new = replace(
            new, fingerprint=identity, identical_failures=old.identical_failures + 1 if is_repeated else 1
        )
    return _with_replacement_requests(state, incident, progress, new)


def _is_unaccounted(state: CoordinatorState, incident: Incident) -> bool:
    """Whether the incident is charged, and the operator's allowance does not include it yet."""
    return incident.charged and (state.desired is None or incident.id not in state.desired.charged_incidents)


def _with_replacement_requests(
    state: CoordinatorState, incident: Incident, progress: bool, history: FailureHistory
) -> FailureHistory:
    """The history with replacement requests. Two worlds in a row without progress that ended in one pod:
    another pod in its slot, at once if only that pod cannot read the checkpoint. Two that ended anywhere: all
    pods, unless ranks were preserved, which are healthy. Not if the script has raised the same error twice:
    it would in any pod."""
    assert state.world is not None
    member = state.world.plan.member(incident.slot)
    in_place = incident.cause not in (Cause.AGENT_LOST, Cause.POD_DELETED) and member is not None
    suspect = (incident.slot, member.incarnation) if member and in_place and not progress else None
    times = history.suspect_times + 1 if suspect and suspect == history.suspect else int(suspect is not None)
    history = replace(history, suspect=suspect, suspect_times=times)
    identical_failures = is_script_fault(incident.cause, incident.exit) and history.identical_failures >= 2
    is_node = incident.exit is not None and incident.exit.storage == "here"
    if suspect and (times >= 2 or is_node) and not identical_failures:
        worlds = f"{times} worlds in a row" if times > 1 else "a world"
        where = f"ranks in slot {incident.slot} failed in {worlds} without a new step"
        message = f"{where}; last: {incident.message}"
        request = ReplacementRequest(*suspect, incident.cause, message, avoid_node=True)
        history = replace(
            history,
            replacement_requests=(
                *(each for each in history.replacement_requests if each.slot != request.slot),
                request,
            ),
        )
    if (
        history.worlds_without_progress >= 2
        and history.identical_failures < 2
        and not state.world.plan.preserved
    ):
        history = replace(history, replace_all_of=state.world.plan.attempt)
    return history


_SCRIPT_ERRORS = frozenset(
    f"builtins.{name}"
    for name in ("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError")
) | {"ropeteam_trainer.contract.strategy.StrategyError"}
_FIRST = WorldId(1, 0, 1)


def _script_failure(state: CoordinatorState, fault: Fault) -> Problem | None:
    """The failure of a script that can start in no pod; None: it is not known to be. Only of the first world
    of a job, before its first step: afterwards the pod may be the cause."""
    incident, world = fault.incident, state.world
    assert world is not None
    kind = incident.exit.error_class if incident.exit and incident.cause is Cause.ERROR else ""
    if kind not in _SCRIPT_ERRORS or world.plan.world_id != _FIRST or made_progress(state, fault):
        return None
    if "shared object" in incident.message:
        return None  # an ImportError of a driver's library, which may be missing on this node only
    text = f"{incident.message}. Correct the script, the image or spec.strategy: a restart does not fix this"
    return Problem(FailReason.SCRIPT_INVALID, f"{text}.")


def _terminal_failure(state: CoordinatorState, incident: Incident) -> Problem | None:
    """The failure of a job that must not be restarted; None: it may be. First match wins: the same fault too
    often without progress, failure allowance spent. Allowance -1: no limit."""
    history, allowance = state.failure_history, state.desired.allowance if state.desired else -1
    if (
        fingerprint(incident.cause, incident.exit)
        and history.identical_failures >= state.config.no_progress_limit
    ):
        return Problem(
            FailReason.REPEATED_ERROR,
            f"the same fault occurred {history.identical_failures} times without a new step in between "
            f"(limit: spec.recovery.noProgressLimit); last: {incident.message}",
        )
    if incident.charged and 0 <= allowance < len(history.unaccounted):
        return Problem(
            FailReason.BUDGET_SPENT,
            "the failure budget is spent: more charged incidents than spec.recovery.maxFailures; last: "
            f"{incident.message}",
        )
    return None


def apply_desired(state: CoordinatorState) -> CoordinatorState:
    """The state with the failure history brought in line with a new desired state: incidents that its
    allowance includes, replacements that were made, and a new attempt are no longer pending."""
    desired = state.desired
    assert desired is not None
    history = replace(
        state.failure_history,
        unaccounted=tuple(
            id for id in state.failure_history.unaccounted if id not in desired.charged_incidents
        ),
        replacement_requests=tuple(
            each for each in state.failure_history.replacement_requests if _is_unanswered(state, each)
        ),
    )
    if history.replace_all_of is not None and desired.attempt > history.replace_all_of:
        history = replace(history, replace_all_of=None)
    return replace(state, failure_history=history)


def _is_unanswered(state: CoordinatorState, request: ReplacementRequest) -> bool:
    """Whether the slot still has the incarnation that is to be replaced, or an older one."""
    desired = desired_slot(state, request.slot)
    return desired is not None and desired.incarnation <= request.incarnation


def record_stage(state: CoordinatorState, stage: str, at: Moment) -> CoordinatorState:
    """The state with this recovery stage recorded in each incident that has not reached it. `stage`: a field
    of RecoveryTimes."""
    return replace(state, faults=tuple(_with_stage(fault, stage, at) for fault in state.faults))


def _with_stage(fault: Fault, stage: str, at: Moment) -> Fault:
    """The fault with the milliseconds from it to `at` as this stage, unless it has that stage."""
    stages: RecoveryTimes = fault.incident.recovery_milliseconds
    if getattr(stages, stage) is not None:
        return fault
    return replace(
        fault,
        incident=replace(
            fault.incident, recovery_milliseconds=replace(stages, **{stage: _milliseconds_since(fault, at)})
        ),
    )


def count_lost_steps(state: CoordinatorState, base: int) -> CoordinatorState:
    """The state with lost steps recorded in earlier incidents that have none: the current world resumed from
    step `base`, and steps beyond it are repeated."""
    current = str(state.world.plan.world_id) if state.world else ""
    return replace(
        state,
        faults=tuple(
            fault
            if fault.incident.steps_lost is not None or fault.incident.id == current
            else replace(
                fault, incident=replace(fault.incident, steps_lost=max(0, fault.incident.step - base))
            )
            for fault in state.faults
        ),
    )


def note_later_steps(state: CoordinatorState, step: int) -> CoordinatorState:
    """The state with the last incident at this step, which ranks that lived on have made after it: it is lost
    with them."""
    fault = state.fault
    if fault is None:
        return state
    return _with_last_fault(state, replace(fault, incident=replace(fault.incident, step=step)))


def _milliseconds_since(fault: Fault, at: Moment) -> int:
    return max(0, round((at.now - fault.at) * 1000))


def _with_last_fault(state: CoordinatorState, fault: Fault) -> CoordinatorState:
    """The state with the newest fault replaced."""
    return replace(state, faults=(*state.faults[:-1], fault))
