"""One incident per world: its cause, its stages, and its consequences.

Order: open (a fault was found) -> reclassify while ranks are being stopped -> close (all stopped: cause and
charge are as certain as they can be) -> decide on backoff, failure, replacement. Later worlds fill in stages
and steps lost.
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
    collect,
    exit_rule,
    fingerprint,
    first_hung,
    is_script,
)
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import ranks_of_member
from ropeteam_trainer.coordinator.membership.state.slots import desired_slot
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import FailureHistory, Fault, State

MAX_INCIDENTS = 10
BACKOFF_FIRST, BACKOFF_MOST = 1.0, 60.0
ASSUMED_PROGRESS_SECONDS, ASSUMED_PROGRESS_AFTER_SIGNAL_SECONDS = 60.0, 1.0
"""A script that never reports steps is assumed to have made one after running this long. An exception may
take as long as the imports to occur; a world ended from outside is assumed to have made one sooner."""


def open_incident(state: State, sign: Evidence, at: Moment) -> State:
    """Open the incident of a fault: one, whatever else follows from it."""
    assert state.world is not None
    sign = first_hung(state, sign)
    incident = Incident(
        id=str(state.world.plan.world_id),
        cause=sign.cause,
        charged=sign.cause.charged,
        slot=sign.slot,
        rank=sign.rank,
        node=_node(state, sign.slot),
        message=sign.message,
        step=state.world.step,
        unix_ms=at.unix_ms,
        exit=sign.exit,
    )
    return replace(state, faults=(*state.faults, Fault(incident, at.now, sign.weight))[-MAX_INCIDENTS:])


def _node(state: State, slot: int) -> str:
    member_ranks = ranks_of_member(state, slot)
    return member_ranks.agent.report.node if member_ranks and member_ranks.agent else ""


def reclassify(state: State, at: Moment, among: Slots) -> State:
    """Replace the cause while ranks are being stopped, if a report that was on its way has a better one.
    `among`: slots not yet examined."""
    fault = state.fault
    if fault is None or fault.incident.final:
        return state
    signs = collect(state, at.now, among, fault.weight)
    signs = tuple(sign for sign in signs if _preceded(state, sign, fault))
    best = strongest(signs)
    if best is None or best.weight <= fault.weight:
        best = next((sign for sign in signs if _is_same(sign, fault)), None)
    if best is None:
        return state
    best = first_hung(state, best)
    better = replace(
        fault.incident,
        cause=best.cause,
        charged=best.cause.charged,
        slot=best.slot,
        rank=best.rank,
        node=_node(state, best.slot),
        message=best.message,
        exit=best.exit,
    )
    return _with_last_fault(state, replace(fault, incident=better, weight=best.weight))


def _preceded(state: State, sign: Evidence, fault: Fault) -> bool:
    """Whether the sign can be the cause: an agent that reported after the fault and was lost later cannot."""
    if sign.weight < LOST:
        return True
    member_ranks = ranks_of_member(state, sign.slot)
    return member_ranks is None or member_ranks.agent is None or member_ranks.agent.received_at < fault.at


def _is_same(sign: Evidence, fault: Fault) -> bool:
    """Whether the sign is of the same exit. The rank was dying and is gone now: its agent may report more."""
    known = (fault.incident.slot, fault.incident.rank, fault.weight)
    return sign.exit is not None and (sign.slot, sign.rank, sign.weight) == known


def strongest(signs: tuple[Evidence, ...]) -> Evidence | None:
    return max(signs, key=lambda sign: sign.weight, default=None)  # the first one among equals


def fail_on_exit_code(state: State, at: Moment, among: Slots) -> State:
    """Fail the job for a final exit code (`recovery.exitCodes`), except after a pod began to terminate."""
    fault = state.fault
    if state.failure or fault is None or fault.weight >= POD_TERMINATING or not state.config.exit_codes:
        return state
    signs = (sign for sign in collect(state, at.now, among) if exit_rule(state, sign.exit) is ExitAction.FAIL)
    sign = next(signs, None)
    if sign is None or sign.exit is None:
        return state
    message = f"rank {sign.rank} exited {sign.exit.code}, which spec.recovery.exitCodes defines as final"
    return replace(state, failure=Problem(FailReason.EXIT_CODE, message))


def close(state: State, at: Moment) -> State:
    """Close the incident of the world, if any, now that all its ranks are dead."""
    fault = state.fault
    if fault is None or fault.incident.final:
        return state
    assert state.world is not None
    stages = replace(fault.incident.recovery_milliseconds, stopped=_ms_since(fault, at))
    incident = replace(fault.incident, final=True, step=state.world.step, recovery_milliseconds=stages)
    state = _with_last_fault(state, replace(fault, incident=incident))
    history = _updated_history(state, incident, progressed(state, fault), at)
    state = replace(state, failure_history=history)
    failure = _script_failure(state, fault) or _terminal_failure(state, incident)
    return replace(state, failure=state.failure or failure)


def progressed(state: State, fault: Fault) -> bool:
    """Whether the world made a step on all ranks. Scripts below feature level 1 report none: see
    ASSUMED_PROGRESS_SECONDS."""
    world = state.world
    assert world is not None
    if state.feature_level >= FeatureLevel.STEPS or world.stepped:
        return world.stepped
    cause = fault.incident.cause
    slow = cause is Cause.UNKNOWN or is_script(cause, fault.incident.exit)
    needed = ASSUMED_PROGRESS_SECONDS if slow else ASSUMED_PROGRESS_AFTER_SIGNAL_SECONDS
    return world.started_at is not None and fault.at - world.started_at >= needed


def _updated_history(state: State, incident: Incident, progress: bool, at: Moment) -> FailureHistory:
    old = state.failure_history
    worlds_without_progress = 0 if progress else old.worlds_without_progress + 1
    backoff = (
        min(BACKOFF_FIRST * 2 ** min(worlds_without_progress - 1, 10), BACKOFF_MOST)
        if worlds_without_progress
        else 0.0
    )
    identity = fingerprint(incident.cause, incident.exit)
    others = state.world is not None and bool(state.world.plan.preserved)  # made the steps, if there are any
    on = incident.step > old.top_step and (progress or not others)
    lasted = (
        progress and state.feature_level < FeatureLevel.STEPS
    )  # the only progress that such a world shows
    again = identity == old.fingerprint and not on and not lasted
    new = replace(
        old,
        worlds_without_progress=worlds_without_progress,
        not_before=at.now + backoff,
        top_step=max(old.top_step, incident.step),
        unaccounted=(*old.unaccounted, incident.id) if _is_unaccounted(state, incident) else old.unaccounted,
    )
    if identity:
        new = replace(
            new, fingerprint=identity, identical_failures=old.identical_failures + 1 if again else 1
        )
    return _escalate(state, incident, progress, new)


def _is_unaccounted(state: State, incident: Incident) -> bool:
    return incident.charged and (state.desired is None or incident.id not in state.desired.charged_incidents)


def _escalate(state: State, incident: Incident, progress: bool, history: FailureHistory) -> FailureHistory:
    """Request replacements. Two worlds without progress in a row that ended in one pod: another pod. Two at
    all: all pods, except for a world that preserved ranks, which are healthy. Not if the script is at fault:
    the same error would occur in any pod."""
    assert state.world is not None
    member = state.world.plan.member(incident.slot)
    in_place = incident.cause not in (Cause.AGENT_LOST, Cause.POD_DELETED) and member is not None
    suspect = (incident.slot, member.incarnation) if member and in_place and not progress else None
    times = history.suspect_times + 1 if suspect and suspect == history.suspect else int(suspect is not None)
    history = replace(history, suspect=suspect, suspect_times=times)
    identical_failures = is_script(incident.cause, incident.exit) and history.identical_failures >= 2
    is_node = incident.exit is not None and incident.exit.storage == "here"
    if suspect and (times >= 2 or is_node) and not identical_failures:
        where = f"slot {incident.slot} ended {times} worlds in a row without a new step"
        message = f"{where}; last: {incident.message}"
        request = ReplacementRequest(*suspect, incident.cause, message, avoid_node=True)
        history = replace(
            history,
            replacement_requests=(
                *(w for w in history.replacement_requests if w.slot != request.slot),
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


def _script_failure(state: State, fault: Fault) -> Problem | None:
    """The failure of a script that cannot run in any pod. In a job that has run before, it may be the pod."""
    incident, world = fault.incident, state.world
    assert world is not None
    kind = incident.exit.error_class if incident.exit and incident.cause is Cause.ERROR else ""
    if kind not in _SCRIPT_ERRORS or world.plan.world_id != _FIRST or progressed(state, fault):
        return None
    if "shared object" in incident.message:
        return None  # of a driver, perhaps, that is missing on this node
    text = f"{incident.message}. Correct the script, the image or spec.strategy: a restart does not fix this"
    return Problem(FailReason.SCRIPT_INVALID, f"{text}.")


def _terminal_failure(state: State, incident: Incident) -> Problem | None:
    """The failure of a job that no restart can recover, or None."""
    history, allowance = state.failure_history, state.desired.allowance if state.desired else -1
    if (
        fingerprint(incident.cause, incident.exit)
        and history.identical_failures >= state.config.no_progress_limit
    ):
        return Problem(
            FailReason.REPEATED_ERROR,
            f"the same fault {history.identical_failures} times without a new step in between: "
            f"{incident.message}",
        )
    if incident.charged and 0 <= allowance < len(history.unaccounted):
        return Problem(
            FailReason.BUDGET_SPENT,
            f"the failure budget is spent (spec.recovery.maxFailures); last: {incident.message}",
        )
    return None


def apply_desired(state: State) -> State:
    """Apply a new desired state: its allowance includes some incidents now, its slots some replacements."""
    desired = state.desired
    assert desired is not None
    history = replace(
        state.failure_history,
        unaccounted=tuple(
            id for id in state.failure_history.unaccounted if id not in desired.charged_incidents
        ),
        replacement_requests=tuple(
            each for each in state.failure_history.replacement_requests if _is_open(state, each)
        ),
    )
    if history.replace_all_of is not None and desired.attempt > history.replace_all_of:
        history = replace(history, replace_all_of=None)
    return replace(state, failure_history=history)


def _is_open(state: State, request: ReplacementRequest) -> bool:
    desired = desired_slot(state, request.slot)
    return desired is not None and desired.incarnation <= request.incarnation


def record_stage(state: State, stage: str, at: Moment) -> State:
    """Record that a later world reached this stage: so did the recovery from every incident without it."""
    return replace(state, faults=tuple(_reached(fault, stage, at) for fault in state.faults))


def _reached(fault: Fault, stage: str, at: Moment) -> Fault:
    stages: RecoveryTimes = fault.incident.recovery_milliseconds
    if getattr(stages, stage) is not None:
        return fault
    return replace(
        fault,
        incident=replace(
            fault.incident, recovery_milliseconds=replace(stages, **{stage: _ms_since(fault, at)})
        ),
    )


def count_lost_steps(state: State, base: int) -> State:
    """Record the lost steps: the current world resumed from step `base`, and steps beyond it are lost."""
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


def _ms_since(fault: Fault, at: Moment) -> int:
    return max(0, round((at.now - fault.at) * 1000))


def _with_last_fault(state: State, fault: Fault) -> State:
    return replace(state, faults=(*state.faults[:-1], fault))
