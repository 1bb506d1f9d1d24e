"""The condition Degraded: a job continues although something is wrong with its world, as its coordinator
reports, or no controller serves what the job requests.

True while that lasts, and False afterwards. A job that was never degraded has no such condition.
"""

from __future__ import annotations

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.questions.pending import is_running
from ropeteam.core.seen import unservedrequests
from ropeteam.core.seen.view import View
from ropeteam.core.status.conditions import ConditionFact
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import FailReason

_REPORTED_REASONS = frozenset(reason.value for reason in FailReason)


def facts(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """The fact about Degraded, or none if the job never had the condition. `status`: as it will be saved.

    First match wins: a finished job is not degraded; a reported reason stays while the coordinator's state is
    unknown; a notice that is reported, then requests that nobody serves; nothing is wrong. All messages are
    joined behind the first reason."""
    saved = status.condition(ConditionType.DEGRADED)
    if status.completion_time is not None:
        return (ConditionFact(ConditionType.DEGRADED, False, "Finished"),) if saved else ()
    if saved is not None and _is_retained(view, saved):
        return (ConditionFact(ConditionType.DEGRADED, True, saved.reason, saved.message),)
    notice = view.report.notice if view.report else None
    reported = ((notice.reason.value, notice.message),) if notice else ()
    found = (*reported, *unservedrequests.ignored_requests(view))
    if found:
        return (
            ConditionFact(
                ConditionType.DEGRADED, True, found[0][0], " ".join(message for _, message in found)
            ),
        )
    return (ConditionFact(ConditionType.DEGRADED, False, "AsExpected"),) if saved else ()


def _is_retained(view: View, saved: Condition) -> bool:
    """Whether the saved condition stays: it is True by a report, and the coordinator does not answer or has
    just booted, so that the world counts as unchanged."""
    return saved.holds and saved.reason in _REPORTED_REASONS and _is_world_unknown(view) and is_running(view)


def _is_world_unknown(view: View) -> bool:
    """Whether the coordinator does not answer, or waits after a boot for agents to report their world."""
    return view.report is None or view.report.phase is WorldPhase.WAITING


def no_process_group_message(view: View) -> str:
    """Message for a job that completes: its ranks may have formed no process group. From the report, or
    without one from the saved condition. Empty: there is no such notice."""
    saved = view.status.condition(ConditionType.DEGRADED)
    if view.report is not None:
        notice = view.report.notice
        return notice.message if notice and notice.reason is FailReason.NO_PROCESS_GROUP else ""
    applies = saved is not None and saved.holds and saved.reason == FailReason.NO_PROCESS_GROUP.value
    return saved.message if saved and applies else ""
