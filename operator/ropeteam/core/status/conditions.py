"""Conditions of a job, for people and programs, built from the facts that questions return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.seen.view import with_changes

_ORDER = {kind: index for index, kind in enumerate(ConditionType)}
_MAX_MESSAGE_LENGTH = 32_768


@dataclass(frozen=True)
class ConditionFact:
    """Value of one condition, before it has a time and a generation. `reason` is one CamelCase word; the
    message says what, where, and the next step.
    """

    type: ConditionType
    holds: bool
    reason: str
    message: str = ""


def with_facts(
    status: JobStatus, facts: tuple[ConditionFact, ...], now: datetime, generation: int
) -> JobStatus:
    """Status whose conditions of these types are replaced by `facts`; others stay. Of two facts of one type
    the last one wins. A condition whose True or False does not change keeps its lastTransitionTime."""
    conditions = {each.type: each for each in status.conditions}
    for fact in {fact.type: fact for fact in facts}.values():
        new = Condition(
            type=fact.type,
            status="True" if fact.holds else "False",
            reason=fact.reason,
            message=fact.message[:_MAX_MESSAGE_LENGTH],
            last_transition_time=now,
            observed_generation=generation,
        )
        old = conditions.get(fact.type)
        conditions[fact.type] = old.replaced_by(new) if old else new
    ordered = tuple(sorted(conditions.values(), key=lambda each: _ORDER[each.type]))
    return with_changes(status, conditions=ordered)


RUNS_AS_NON_ROOT = "RunsAsNonRoot"
NOT_SUSPENDED = ConditionFact(ConditionType.SUSPENDED, False, "NotSuspended")
NOT_STALLED = ConditionFact(ConditionType.STALLED, False, "Progressing")


def accepted_fact(user: int | None) -> ConditionFact:
    """Fact that the spec is accepted. `user`: status.runAsUser, the UID that the operator has chosen because
    Pod Security allows no root. None: the user of image and template."""
    if user is None:
        return ConditionFact(ConditionType.ACCEPTED, True, "Accepted")
    message = (
        f"Pod Security of this namespace allows no root: the container trainer runs as user {user}, with "
        "HOME=/ropeteam-home. To run as the image's own user, if that is not root, set "
        "spec.template.spec.securityContext.runAsNonRoot to true. An image that needs root needs a namespace "
        "with another label pod-security.kubernetes.io/enforce."
    )
    return ConditionFact(ConditionType.ACCEPTED, True, RUNS_AS_NON_ROOT, message)


def not_accepted_facts(reason: str, message: str) -> tuple[ConditionFact, ...]:
    """Facts that the spec is not accepted, which stalls the job."""
    return (
        ConditionFact(ConditionType.ACCEPTED, False, reason, message),
        ConditionFact(ConditionType.STALLED, True, reason, message),
    )


SUCCEEDED = "Succeeded"


def ended_facts(complete: bool, reason: str, message: str) -> tuple[ConditionFact, ...]:
    """Facts about a job that has ended as Complete (`complete`) or Failed, for good."""
    reason_finished = "Finished"
    return (
        ConditionFact(ConditionType.RUNNING, False, reason_finished),
        ConditionFact(ConditionType.RECOVERING, False, reason_finished),
        ConditionFact(ConditionType.FINISHED, True, SUCCEEDED if complete else "Failed", message),
        ConditionFact(ConditionType.COMPLETE if complete else ConditionType.FAILED, True, reason, message),
        ConditionFact(ConditionType.STALLED, False, reason_finished),
    )
