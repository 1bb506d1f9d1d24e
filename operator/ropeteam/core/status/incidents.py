"""Incidents, one for each fault: the coordinator's reports joined with Kubernetes' evidence, and the budget
they are charged to.

A world that ends is one incident, reported by the coordinator (id: the world's number). A pod that ends is
evidence. It is an incident of its own (`pod-<slot>-<incarnation>`) until the world's one is reported and
takes its cause over; if none is reported, the pod was in no world, and its incident stays. Cause and charge
are provisional until `final_at`; only a final incident is charged. Charges are stored by id until the window
has passed: no restart of any process refills the budget.
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
"""The newest stay in status; older ones become final and leave it."""
MAX_CHARGES = 1001
"""The newest stay: one more than the largest spec.recovery.maxFailures."""
NO_WORLD = WorldId(0, 0, 0)
"""Older than every world."""
_POD_PREFIX = "pod-"
_OF_KUBERNETES = frozenset(
    {Cause.EVICTED, Cause.NODE_LOST, Cause.OUT_OF_MEMORY, Cause.POD_DELETED, Cause.POD_FAILED}
)
"""Causes for which Kubernetes' evidence is the best there is."""
_UNCERTAIN = frozenset({Cause.AGENT_LOST, Cause.SIGNAL, Cause.UNKNOWN, Cause.POD_DELETED, Cause.POD_FAILED})
"""Causes that Kubernetes' evidence about the pod replaces, because it is better."""


def pod_incident(slot: SlotStatus, cause: Cause, message: str, node: str, now: datetime) -> IncidentStatus:
    """Incident of the loss of `slot`'s current pod, not in any status yet."""
    return IncidentStatus(
        id=pod_incident_id(slot.slot, slot.incarnation),
        time=now,
        cause=cause.value,
        charged=cause.charged,
        slot=slot.slot,
        node=node,
        message=message[:4096],
    )


def pod_incident_id(slot: int, incarnation: int) -> str:
    return f"{_POD_PREFIX}{slot}-{incarnation}"


def is_of_pod(incident: IncidentStatus) -> bool:
    """Whether this is the incident of a pod alone. False: it is a world's."""
    return incident.id.startswith(_POD_PREFIX)


def with_pod_incident(status: JobStatus, found: IncidentStatus, alone: bool) -> JobStatus:
    """Status with the evidence `found` of a lost pod, once.

    It is joined to the newest world's incident that is not final and after which no world was planned. If
    there is none, or the pod was in no world (`alone`), it is added as an incident of its own."""
    if any(each.id == found.id for each in status.incidents):
        return status
    ends = (each for each in reversed(status.incidents) if not is_of_pod(each) and not each.final)
    world = next((each for each in ends if each.recovery_milliseconds.planned is None), None)
    if alone or world is None:
        return with_changes(
            status, incidents=(*status.incidents, with_changes(found, attempt=status.attempt))
        )
    joined = _with_pod_evidence(world, (found,))
    return with_changes(
        status, incidents=tuple(joined if each is world else each for each in status.incidents)
    )


def with_reported_incidents(status: JobStatus, reported: tuple[Incident, ...], now: datetime) -> JobStatus:
    """Status with the coordinator's `reported` incidents: known ones updated, new ones added.

    New is a world after failures.lastWorld: a coordinator repeats its last ten, and status may have dropped
    some. Evidence of pods that is not final is joined to the new ones, and no incident of its own any
    more."""
    known = {each.id: each for each in status.incidents}
    last = _parsed_world_id(status.failures.last_world)
    unknown = (each for each in reported if each.id not in known and _parsed_world_id(each.id) > last)
    new = sorted(unknown, key=lambda each: _parsed_world_id(each.id))
    updates = {each.id: _with_report(known[each.id], each, now) for each in reported if each.id in known}
    listed = [updates.get(each.id, each) for each in status.incidents]
    if new:
        evidence = tuple(each for each in listed if is_of_pod(each) and not each.final)
        listed = [each for each in listed if each not in evidence]
        found = (with_changes(_incident_status(each, now), attempt=status.attempt) for each in new)
        listed += [_with_pod_evidence(each, evidence) for each in found]
        last = _parsed_world_id(new[-1].id)
    failures = with_changes(status.failures, last_world=str(last) if last > NO_WORLD else "")
    return with_changes(status, incidents=tuple(listed), failures=failures)


def with_better_causes(
    status: JobStatus, evidence: Callable[[SlotStatus], tuple[Cause, str] | None]
) -> JobStatus:
    """Status in which `evidence` about the pod that a slot's incarnation replaced gives the cause, where the
    incident is not final and its cause is uncertain. `evidence` returns cause and sentence, or None."""
    slots = {slot.slot: slot for slot in status.slots}
    listed = []
    for each in status.incidents:
        found = None
        if not each.final and each.slot in slots and each.cause in _UNCERTAIN:
            found = evidence(slots[each.slot])
        listed.append(_with_cause(each, *found) if found else each)
    return with_changes(status, incidents=tuple(listed))


def with_final_incidents(
    status: JobStatus,
    policy: Recovery,
    now: datetime,
    job_time: datetime,
    final: frozenset[str] = frozenset(),
) -> JobStatus:
    """Status in which incidents that are old enough, have ids in `final`, or are too many, are final, and
    those of them with a charge are charged. Charges older than the window, by the job's clock, are
    dropped."""
    fenced = {slot.slot: slot.previous_pod_fenced for slot in status.slots}
    overflow = len(status.incidents) - MAX_INCIDENTS
    listed = [
        with_changes(each, final=True)
        if each.id in final or index < overflow or now >= final_at(each, policy, fenced.get(each.slot, True))
        else each
        for index, each in enumerate(status.incidents)
    ]
    pairs = zip(status.incidents, listed, strict=True)
    newly = [after for before, after in pairs if after.final and not before.final]
    begin = job_time - timedelta(seconds=policy.window_seconds)
    charged = [each for each in newly if each.charged]
    charges = (*status.failures.charges, *(_charge_of(each, policy, now, job_time) for each in charged))
    charges = tuple(charge for charge in charges if charge.time > begin)[-MAX_CHARGES:]
    failures = FailuresStatus(
        charged=len(charges),
        allowed=policy.max_failures,
        not_charged=status.failures.not_charged + sum(not each.charged for each in newly),
        charges=charges,
        last_world=status.failures.last_world,
    )
    return with_changes(status, incidents=tuple(listed[-MAX_INCIDENTS:]), failures=failures)


def _charge_of(each: IncidentStatus, policy: Recovery, now: datetime, job_time: datetime) -> ChargeStatus:
    """Charge of an incident, with the time of the fault by the job's clock. The age is measured by the wall
    clock, which may have stepped: it is limited to the longest time in which an incident becomes final."""
    most = final_at(each, policy, previous_pod_fenced=False) - each.time
    return ChargeStatus(id=each.id, time=job_time - max(timedelta(), min(now - each.time, most)))


def final_at(incident: IncidentStatus, policy: Recovery, previous_pod_fenced: bool) -> datetime:
    """Time at which cause and charge become final, by the wall clock.

    `previous_pod_fenced`: of the incident's slot. While that is open, a lost agent may still turn out to be a
    lost node."""
    seconds = FINAL_AFTER_SECONDS
    if is_of_pod(incident):
        seconds += policy.lost_seconds  # the coordinator may take so long to report the world that it ended
    elif incident.cause == Cause.AGENT_LOST and not previous_pod_fenced:
        seconds = max(seconds, policy.fence_seconds)  # Kubernetes is slow to report a lost node
    return incident.time + timedelta(seconds=seconds)


def counted_ids(status: JobStatus, reported: tuple[str, ...]) -> tuple[str, ...]:
    """Sorted ids of worlds' incidents that Desired.allowance accounts for: final ones, charged or not, in or
    out of the window. `reported`: ids in the coordinator's report; worlds up to failures.lastWorld were
    counted even if status has dropped them.
    """
    open_ids = {each.id for each in status.incidents if not each.final}
    last = _parsed_world_id(status.failures.last_world)
    final = {each.id for each in status.incidents} | {each.id for each in status.failures.charges}
    final |= {each for each in reported if _parsed_world_id(each) <= last}
    return tuple(sorted(each for each in final - open_ids if not each.startswith(_POD_PREFIX)))


def pods_failed_in_a_row(status: JobStatus, slot: SlotStatus) -> int:
    """Number of the newest lost pods of this slot, without a gap, that have charged incidents of their own:
    they failed by themselves, outside any world. One counts while it is in status or its charge in the
    window."""
    failed = {charge.id for charge in status.failures.charges}
    failed |= {each.id for each in status.incidents if each.charged}
    count = 0
    while pod_incident_id(slot.slot, slot.incarnation - 1 - count) in failed:
        count += 1
    return count


def _with_pod_evidence(world: IncidentStatus, evidence: tuple[IncidentStatus, ...]) -> IncidentStatus:
    """Incident of a world, with the cause of the lost pod where it began: the evidence of its slot, if there
    is one and the reported cause is uncertain. Evidence of other slots is a consequence."""
    of_slot = next((each for each in evidence if each.slot == world.slot), None)
    if of_slot is None or world.cause not in _UNCERTAIN:
        return world
    return _with_cause(world, Cause(of_slot.cause), of_slot.message)


def _with_cause(incident: IncidentStatus, cause: Cause, message: str) -> IncidentStatus:
    """Incident with another cause, and so another charge, which follows from the cause."""
    return with_changes(incident, cause=cause.value, charged=cause.charged, message=message[:4096])


def _incident_status(reported: Incident, now: datetime) -> IncidentStatus:
    """Reported incident as status stores it, within the limits of its fields."""
    return IncidentStatus(
        id=reported.id,
        time=clamp_timestamp(reported.unix_ms, now),
        cause=reported.cause.value,
        charged=reported.charged,
        slot=max(0, reported.slot),
        rank=reported.rank,
        node=reported.node[:253],
        recovery_milliseconds=_recovery_times(reported),
        steps_lost=reported.steps_lost,
        message=_message_with_last_lines(reported)[:4096],
    )


def _with_report(known: IncidentStatus, reported: Incident, now: datetime) -> IncidentStatus:
    """Incident in status with a later report of it. Recovery stages are always taken over. Cause, charge and
    place are taken only until the incident is final, and not in place of Kubernetes' better evidence.
    """
    updated = with_changes(
        known, recovery_milliseconds=_recovery_times(reported), steps_lost=reported.steps_lost
    )
    has_better_cause = (
        known.slot == reported.slot and reported.cause in _UNCERTAIN and known.cause in _OF_KUBERNETES
    )
    if known.final or has_better_cause:
        return updated
    new = _incident_status(reported, now)
    fields = ("cause", "charged", "slot", "rank", "node", "message")
    return with_changes(updated, **{name: getattr(new, name) for name in fields})


def _message_with_last_lines(reported: Incident) -> str:
    """Message of the incident, then the last lines that the rank wrote, if any."""
    lines = reported.exit.last_lines if reported.exit else ()
    return "\n".join([reported.message, *lines]) if lines else reported.message


def _recovery_times(reported: Incident) -> RecoveryTimesStatus:
    stages = reported.recovery_milliseconds
    return RecoveryTimesStatus(
        stopped=stages.stopped, planned=stages.planned, started=stages.started, first_step=stages.first_step
    )


def _parsed_world_id(text: str) -> WorldId:
    """The number of a world; NO_WORLD for any other text, as a pod's incident id."""
    try:
        return WorldId.parse(text)
    except ValueError:
        return NO_WORLD
