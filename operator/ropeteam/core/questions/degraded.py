"""What is odd about a job although it goes on: as its coordinator tells, or since nobody serves what it asks.

One condition, Degraded: there while something is odd, and False once nothing is any more. A job that never
had any has no such condition.
"""

from __future__ import annotations

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.questions.pending import runs
from ropeteam.core.seen import unservedrequests
from ropeteam.core.seen.view import View
from ropeteam.core.status.conditions import Fact
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import FailReason

_OF_REPORTS = frozenset(reason.value for reason in FailReason)


def facts(view: View, status: JobStatus) -> tuple[Fact, ...]:
    """`status`: as it will be saved."""
    saved = status.condition(ConditionType.DEGRADED)
    if status.completion_time is not None:
        return (Fact(ConditionType.DEGRADED, False, "Finished"),) if saved else ()
    if saved is not None and _is_kept(view, saved):
        return (Fact(ConditionType.DEGRADED, True, saved.reason, saved.message),)
    notice = view.report.notice if view.report else None
    told = ((notice.reason.value, notice.message),) if notice else ()
    found = (*told, *unservedrequests.of_labels(view))
    if found:
        return (Fact(ConditionType.DEGRADED, True, found[0][0], " ".join(words for _, words in found)),)
    return (Fact(ConditionType.DEGRADED, False, "AsExpected"),) if saved else ()


def _is_kept(view: View, saved: Condition) -> bool:
    """While the coordinator is silent, or has just booted, the world is as it was."""
    return saved.holds and saved.reason in _OF_REPORTS and _knows_nothing(view) and runs(view)


def _knows_nothing(view: View) -> bool:
    return view.report is None or view.report.phase is WorldPhase.WAITING


def without_group(view: View) -> str:
    """Why a job that has ended well may have trained in no world at all. Empty: nothing says so."""
    saved = view.status.condition(ConditionType.DEGRADED)
    if view.report is not None:
        notice = view.report.notice
        return notice.message if notice and notice.reason is FailReason.NO_PROCESS_GROUP else ""
    told = saved is not None and saved.holds and saved.reason == FailReason.NO_PROCESS_GROUP.value
    return saved.message if saved and told else ""
