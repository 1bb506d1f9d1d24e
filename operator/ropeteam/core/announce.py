"""Kubernetes events: what changed between two statuses, recorded once, after the write that made it true.

An event is one line. The lines that a script wrote before it died stay in status.incidents.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.decision import Announcement
from ropeteam.core.seen.view import one_line
from ropeteam.core.status.conditions import SUCCEEDED, accepted

_MAX_LENGTH = 1024
_ANNOUNCED = {
    ConditionType.ACCEPTED: False,
    ConditionType.SUSPENDED: True,
    ConditionType.RUNNING: True,
    ConditionType.COMPLETE: True,
    ConditionType.FAILED: True,
    ConditionType.STALLED: True,
    ConditionType.DEGRADED: True,
}
"""Conditions that are announced, and the side to which they flip then."""
_WARNINGS = frozenset(
    {ConditionType.ACCEPTED, ConditionType.FAILED, ConditionType.STALLED, ConditionType.DEGRADED}
)


def announcements(old: JobStatus, new: JobStatus, why: str) -> tuple[Announcement, ...]:
    return (*_attempts(old, new, why), *_user(old, new), *_incidents(old, new), *_conditions(old, new))


def _attempts(old: JobStatus, new: JobStatus, why: str) -> Iterator[Announcement]:
    if new.attempt != old.attempt:
        yield Announcement("Normal", "Started", _line(why))
        return
    if new.coordinator.term != old.coordinator.term:
        yield Announcement("Warning", "CoordinatorReplaced", _line(why))
    if [slot.incarnation for slot in new.slots] != [slot.incarnation for slot in old.slots]:
        yield Announcement("Warning", "WorkerReplaced", _line(why))


def _user(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    if new.run_as_user is not None and new.run_as_user != old.run_as_user:
        fact = accepted(new.run_as_user)
        yield Announcement("Normal", fact.reason, _line(fact.message))


def _incidents(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    known = {each.id for each in old.incidents}
    for each in new.incidents:
        if each.id not in known:
            where = f"slot {each.slot}" + (f", rank {each.rank}" if each.rank is not None else "")
            yield Announcement("Warning", each.cause, _line(f"{each.id}: {where}: {each.message}"))


def _conditions(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    for each in new.conditions:
        if _ANNOUNCED.get(each.type) is each.holds and _is_new(old.condition(each.type), each):
            message = _line(each.message) or f"{each.type} is {each.status}."
            yield Announcement("Warning" if _is_warning(each) else "Normal", each.reason, message)


def _is_new(before: Condition | None, now: Condition) -> bool:
    """Degraded may hold for one reason after another; each is announced."""
    has_new_reason = now.type is ConditionType.DEGRADED and before is not None and before.reason != now.reason
    return before is None or before.holds is not now.holds or has_new_reason


def _is_warning(condition: Condition) -> bool:
    return condition.type in _WARNINGS or (
        condition.type is ConditionType.COMPLETE and condition.reason != SUCCEEDED
    )


def _line(text: str) -> str:
    return one_line(text)[:_MAX_LENGTH]
