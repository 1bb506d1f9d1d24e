"""Kubernetes events of a change of status, to be sent once the new status is saved.

An event is one line. The last lines of a script that failed are in status.incidents only.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.decision import Announcement
from ropeteam.core.seen.view import one_line
from ropeteam.core.status.conditions import SUCCEEDED, accepted_fact

_MAX_LENGTH = 1024
_ANNOUNCED_VALUES = {
    ConditionType.ACCEPTED: False,
    ConditionType.SUSPENDED: True,
    ConditionType.RUNNING: True,
    ConditionType.COMPLETE: True,
    ConditionType.FAILED: True,
    ConditionType.STALLED: True,
    ConditionType.DEGRADED: True,
}
"""Conditions that are announced, and the value at which they are. Others, and the other value, are not."""
_WARNINGS = frozenset(
    {ConditionType.ACCEPTED, ConditionType.FAILED, ConditionType.STALLED, ConditionType.DEGRADED}
)


def announcements(old: JobStatus, new: JobStatus, why: str) -> tuple[Announcement, ...]:
    """Events of the change from the saved status `old` to `new`. `why`: the decision's sentence, the message
    of events about pods. Empty: nothing changed that people wait for."""
    return (
        *_replacement_announcements(old, new, why),
        *_user_announcement(old, new),
        *_incident_announcements(old, new),
        *_condition_announcements(old, new),
    )


def _replacement_announcements(old: JobStatus, new: JobStatus, why: str) -> Iterator[Announcement]:
    """Event of a new attempt, else of a new coordinator term and of new incarnations. A new attempt has all
    of these, and is announced once."""
    if new.attempt != old.attempt:
        yield Announcement("Normal", "Started", _event_line(why))
        return
    if new.coordinator.term != old.coordinator.term:
        yield Announcement("Warning", "CoordinatorReplaced", _event_line(why))
    if [slot.incarnation for slot in new.slots] != [slot.incarnation for slot in old.slots]:
        yield Announcement("Warning", "WorkerReplaced", _event_line(why))


def _user_announcement(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    """Event that pods run as a user that the operator has chosen; at most one."""
    if new.run_as_user is not None and new.run_as_user != old.run_as_user:
        fact = accepted_fact(new.run_as_user)
        yield Announcement("Normal", fact.reason, _event_line(fact.message))


def _incident_announcements(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    known = {each.id for each in old.incidents}
    for each in new.incidents:
        if each.id not in known:
            where = f"slot {each.slot}" + (f", rank {each.rank}" if each.rank is not None else "")
            yield Announcement("Warning", each.cause, _event_line(f"{each.id}: {where}: {each.message}"))


def _condition_announcements(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    for each in new.conditions:
        if _ANNOUNCED_VALUES.get(each.type) is each.holds and _has_changed(old.condition(each.type), each):
            message = _event_line(each.message) or f"{each.type} is {each.status}."
            yield Announcement("Warning" if _is_warning(each) else "Normal", each.reason, message)


def _has_changed(before: Condition | None, now: Condition) -> bool:
    """Whether a condition is new or its value has changed. Of Degraded also its reason counts: it may hold
    for one reason after another."""
    has_new_reason = now.type is ConditionType.DEGRADED and before is not None and before.reason != now.reason
    return before is None or before.holds is not now.holds or has_new_reason


def _is_warning(condition: Condition) -> bool:
    """Whether the event has type Warning: a fault, or a completion with a notice."""
    return condition.type in _WARNINGS or (
        condition.type is ConditionType.COMPLETE and condition.reason != SUCCEEDED
    )


def _event_line(text: str) -> str:
    """The first line, cut to the length that the API server accepts in an event."""
    return one_line(text)[:_MAX_LENGTH]
