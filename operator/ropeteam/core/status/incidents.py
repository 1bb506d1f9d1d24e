"""Incidents, one for each fault: the coordinator's reports joined with Kubernetes' evidence, and the budget
they are charged to.

A world that ends is one incident, reported by the coordinator (id: the world's number). A pod that ends is
evidence. It is kept as an incident of its own (`pod-<slot>-<incarnation>`) until the world's one appears and
takes its cause over; if none appears, the pod was in no world, and its incident stays.
Cause and charge are provisional for FINAL_AFTER_SECONDS; only a final incident is charged. Charges are stored
by id until the window has passed: no restart of any process refills the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from ropeteam.api.job import Recovery
from ropeteam.api.status import (
    ChargeStatus,
    FailuresStatus,
    IncidentStatus,
    JobStatus,
    RecoveryTimesStatus,
    SlotStatus,
)
from ropeteam.core.seen.view import clamp_timestamp, with_changes
from ropeteam_trainer.contract.desired import Incident
from ropeteam_trainer.contract.world import Cause, WorldId

FINAL_AFTER_SECONDS = 10
MAX_INCIDENTS = 10
NO_WORLD = WorldId(0, 0, 0)
_OF_KUBERNETES = frozenset(
    {Cause.EVICTED, Cause.NODE_LOST, Cause.OUT_OF_MEMORY, Cause.POD_DELETED, Cause.POD_FAILED}
)
"""Causes that Kubernetes can report."""
_UNCERTAIN = frozenset({Cause.AGENT_LOST, Cause.SIGNAL, Cause.UNKNOWN, Cause.POD_DELETED, Cause.POD_FAILED})
"""Causes that a coordinator reports for a pod that is gone: Kubernetes' evidence is better."""


def pod_incident(slot: SlotStatus, cause: Cause, message: str, node: str, now: datetime) -> IncidentStatus:
    """Incident: the current pod of `slot` is lost."""
    return IncidentStatus(
        id=pod_id(slot.slot, slot.incarnation),
        time=now,
        cause=cause.value,
        charged=cause.charged,
        slot=slot.slot,
        node=node,
        message=message[:4096],
    )


def pod_id(slot: int, incarnation: int) -> str:
    return f"pod-{slot}-{incarnation}"


def is_of_pod(incident: IncidentStatus) -> bool:
    return incident.id.startswith("pod-")


def with_pod_incident(status: JobStatus, found: IncidentStatus, alone: bool) -> JobStatus:
    """Add evidence of a lost pod, once: to the world that ended with it, or (`alone`) as its own incident."""
    if any(each.id == found.id for each in status.incidents):
        return status
    ends = (each for each in reversed(status.incidents) if not is_of_pod(each) and not each.final)
    world = next((each for each in ends if each.recovery_milliseconds.planned is None), None)
    if alone or world is None:
        return with_changes(
            status, incidents=(*status.incidents, with_changes(found, attempt=status.attempt))
        )
    joined = _joined(world, (found,))
    return with_changes(
        status, incidents=tuple(joined if each is world else each for each in status.incidents)
    )


def merge(status: JobStatus, reported: tuple[Incident, ...], now: datetime) -> JobStatus:
    """Merge the coordinator's reports: new worlds that ended, and updates of those that are known."""
    known = {each.id: each for each in status.incidents}
    last = _world_id(status.failures.last_world)
    unknown = (each for each in reported if each.id not in known and _world_id(each.id) > last)
    fresh = sorted(unknown, key=lambda each: _world_id(each.id))
    updates = {each.id: _updated(known[each.id], each, now) for each in reported if each.id in known}
    listed = [updates.get(each.id, each) for each in status.incidents]
    if fresh:
        evidence = tuple(each for each in listed if is_of_pod(each) and not each.final)
        listed = [each for each in listed if each not in evidence]
        found = (with_changes(_incident_status(each, now), attempt=status.attempt) for each in fresh)
        listed += [_joined(each, evidence) for each in found]
        last = _world_id(fresh[-1].id)
    failures = with_changes(status.failures, last_world=str(last) if last > NO_WORLD else "")
    return with_changes(status, incidents=tuple(listed), failures=failures)


def with_evidence(status: JobStatus, evidence: Callable[[SlotStatus], tuple[Cause, str] | None]) -> JobStatus:
    """Look up `evidence` about the pods of slots whose incident is not final yet."""
    slots = {slot.slot: slot for slot in status.slots}
    listed = []
    for each in status.incidents:
        found = None
        if not each.final and each.slot in slots and each.cause in _UNCERTAIN:
            found = evidence(slots[each.slot])
        listed.append(_with_cause(each, *found) if found else each)
    return with_changes(status, incidents=tuple(listed))


def finalize(
    status: JobStatus,
    policy: Recovery,
    now: datetime,
    job_time: datetime,
    final: frozenset[str] = frozenset(),
) -> JobStatus:
    """Make final, and charge, incidents that are old enough or in `final`. Charges that have left the window,
    which is measured by the job's clock, are dropped."""
    gone = {slot.slot: slot.previous_pod_fenced for slot in status.slots}
    overflow = len(status.incidents) - MAX_INCIDENTS
    listed = [
        with_changes(each, final=True)
        if each.id in final or index < overflow or now >= final_at(each, policy, gone.get(each.slot, True))
        else each
        for index, each in enumerate(status.incidents)
    ]
    pairs = zip(status.incidents, listed, strict=True)
    newly = [after for before, after in pairs if after.final and not before.final]
    begin = job_time - timedelta(seconds=policy.window_seconds)
    charged = [each for each in newly if each.charged]
    charges = (*status.failures.charges, *(_charge(each, policy, now, job_time) for each in charged))
    charges = tuple(charge for charge in charges if charge.time > begin)[-1001:]
    failures = FailuresStatus(
        charged=len(charges),
        allowed=policy.max_failures,
        not_charged=status.failures.not_charged + sum(not each.charged for each in newly),
        charges=charges,
        last_world=status.failures.last_world,
    )
    return with_changes(status, incidents=tuple(listed[-MAX_INCIDENTS:]), failures=failures)


def _charge(each: IncidentStatus, policy: Recovery, now: datetime, job_time: datetime) -> ChargeStatus:
    """Charge, with its time by the job's clock. The other may have stepped: never older than it
    takes to become final."""
    most = final_at(each, policy, previous_pod_fenced=False) - each.time
    return ChargeStatus(id=each.id, time=job_time - max(timedelta(), min(now - each.time, most)))


def final_at(incident: IncidentStatus, policy: Recovery, previous_pod_fenced: bool) -> datetime:
    """Time at which cause and charge become final, unless better evidence comes before."""
    seconds = FINAL_AFTER_SECONDS
    if is_of_pod(incident):
        seconds += policy.lost_seconds  # the coordinator may take so long to report the world that it ended
    elif incident.cause == Cause.AGENT_LOST and not previous_pod_fenced:
        seconds = max(seconds, policy.fence_seconds)  # Kubernetes is slow to report a lost node
    return incident.time + timedelta(seconds=seconds)


def counted_ids(status: JobStatus, reported: tuple[str, ...]) -> tuple[str, ...]:
    """Ids of worlds' incidents that the budget has counted: final ones, charged or not, in or out of the
    window.
    """
    open_ids = {each.id for each in status.incidents if not each.final}
    last = _world_id(status.failures.last_world)
    final = {each.id for each in status.incidents} | {each.id for each in status.failures.charges}
    final |= {each for each in reported if _world_id(each) <= last}
    return tuple(sorted(each for each in final - open_ids if not each.startswith("pod-")))


def pods_failed_in_a_row(status: JobStatus, slot: SlotStatus) -> int:
    """Number of pods of this slot, up to the last one lost, that failed by themselves outside any world."""
    failed = {charge.id for charge in status.failures.charges}
    failed |= {each.id for each in status.incidents if each.charged}
    count = 0
    while pod_id(slot.slot, slot.incarnation - 1 - count) in failed:
        count += 1
    return count


def _joined(world: IncidentStatus, evidence: tuple[IncidentStatus, ...]) -> IncidentStatus:
    """Incident of a world, with the pods lost when it ended; the pod where it began gives the cause."""
    of_slot = next((each for each in evidence if each.slot == world.slot), None)
    if of_slot is None or world.cause not in _UNCERTAIN:
        return world
    return _with_cause(world, Cause(of_slot.cause), of_slot.message)


def _with_cause(incident: IncidentStatus, cause: Cause, message: str) -> IncidentStatus:
    return with_changes(incident, cause=cause.value, charged=cause.charged, message=message[:4096])


def _incident_status(reported: Incident, now: datetime) -> IncidentStatus:
    return IncidentStatus(
        id=reported.id,
        time=clamp_timestamp(reported.unix_ms, now),
        cause=reported.cause.value,
        charged=reported.charged,
        slot=max(0, reported.slot),
        rank=reported.rank,
        node=reported.node[:253],
        recovery_milliseconds=_stages(reported),
        steps_lost=reported.steps_lost,
        message=_message(reported)[:4096],
    )


def _updated(known: IncidentStatus, reported: Incident, now: datetime) -> IncidentStatus:
    """Known incident with a later report. The stages always come later; the cause changes only until the
    incident is final, and never over better evidence.
    """
    updated = with_changes(known, recovery_milliseconds=_stages(reported), steps_lost=reported.steps_lost)
    ours = known.slot == reported.slot and reported.cause in _UNCERTAIN and known.cause in _OF_KUBERNETES
    if known.final or ours:
        return updated
    fresh = _incident_status(reported, now)
    fields = ("cause", "charged", "slot", "rank", "node", "message")
    return with_changes(updated, **{name: getattr(fresh, name) for name in fields})


def _message(reported: Incident) -> str:
    """The exception, then the last lines of its rank."""
    lines = reported.exit.last_lines if reported.exit else ()
    return "\n".join([reported.message, *lines]) if lines else reported.message


def _stages(reported: Incident) -> RecoveryTimesStatus:
    stages = reported.recovery_milliseconds
    return RecoveryTimesStatus(
        stopped=stages.stopped, planned=stages.planned, started=stages.started, first_step=stages.first_step
    )


def _world_id(text: str) -> WorldId:
    try:
        return WorldId.parse(text)
    except ValueError:
        return NO_WORLD
