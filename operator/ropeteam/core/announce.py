"""Kubernetes events: what changed between two statuses, said once, after the write that made it true."""

from __future__ import annotations

from collections.abc import Iterator

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.conditions import accepted
from ropeteam.core.decision import Announcement

_LONGEST = 1024
_WORTH_SAYING = {
    ConditionType.ACCEPTED: False,
    ConditionType.SUSPENDED: True,
    ConditionType.RUNNING: True,
    ConditionType.COMPLETE: True,
    ConditionType.FAILED: True,
    ConditionType.STALLED: True,
}
"""Which conditions, when they flip to which side."""
_BAD = frozenset({ConditionType.ACCEPTED, ConditionType.FAILED, ConditionType.STALLED})


def changes(old: JobStatus, new: JobStatus, why: str) -> tuple[Announcement, ...]:
    return (*_attempts(old, new, why), *_user(old, new), *_incidents(old, new), *_conditions(old, new))


def _attempts(old: JobStatus, new: JobStatus, why: str) -> Iterator[Announcement]:
    if new.attempt != old.attempt:
        yield Announcement("Normal", "Started", why[:_LONGEST])
        return
    if new.coordinator.term != old.coordinator.term:
        yield Announcement("Warning", "CoordinatorReplaced", why[:_LONGEST])
    if [slot.incarnation for slot in new.slots] != [slot.incarnation for slot in old.slots]:
        yield Announcement("Warning", "WorkerReplaced", why[:_LONGEST])


def _user(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    if new.user is not None and new.user != old.user:
        fact = accepted(new.user)
        yield Announcement("Normal", fact.reason, fact.message[:_LONGEST])


def _incidents(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    known = {each.id for each in old.incidents}
    for each in new.incidents:
        if each.id not in known:
            place = f"slot {each.slot}" + (f", rank {each.rank}" if each.rank is not None else "")
            yield Announcement("Warning", each.cause, f"{each.id}: {place}: {each.message}"[:_LONGEST])


def _conditions(old: JobStatus, new: JobStatus) -> Iterator[Announcement]:
    for each in new.conditions:
        before = old.condition(each.type)
        if _WORTH_SAYING.get(each.type) is each.holds and (before is None or before.holds is not each.holds):
            message = each.message or f"{each.type} is {each.status}."
            yield Announcement("Warning" if each.type in _BAD else "Normal", each.reason, message[:_LONGEST])
