"""Is the spec accepted: is it valid, does the API server take its worker pod, and do running pods have it?

Limits: pods that run continue, whatever is wrong with the spec.
"""

from __future__ import annotations

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.questions import gang
from ropeteam.core.questions.answer import Answer
from ropeteam.core.seen.observation import Refusal
from ropeteam.core.seen.view import View
from ropeteam.core.status import conditions
from ropeteam.core.status.conditions import ConditionFact
from ropeteam_trainer.contract.world import FailReason

_OF_FIRST_POD = "The API server refuses the worker pod: "
_OF_NEW_POD = "The API server refuses a new worker pod: "
_NON_ROOT_TOO = ". It is refused as a non-root user too: change spec.template"


def invalid(view: View, status: JobStatus) -> Answer | None:
    """The spec is not valid. Running pods continue; nothing new is created."""
    if not view.problems:
        return None
    reason = FailReason.INVALID_SPEC.value
    message = "; ".join(view.problems)
    state = status.state if status.attempt > 0 and status.state else "Invalid"
    return Answer(f"the spec is invalid: {message}", status, state, conditions.not_accepted(reason, message))


def refused(view: View, status: JobStatus) -> Answer | None:
    """A job without pods is Invalid; a pod that is admitted as a non-root user is not refused."""
    refusal = view.seen.refusal
    if refusal is None or refusal.user is not None or (status.attempt > 0 and not view.suspended):
        return None
    message = f"{_OF_FIRST_POD}{refusal.message}{_NON_ROOT_TOO if refusal.by_pod_security else ''}"
    return Answer(message, status, "Invalid", conditions.not_accepted("PodRefused", message))


def facts(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Facts on whether the running pods are those of the present spec."""
    if gang.has_pod_spec_changed(view):
        message = (
            "Fields that define the pods were changed while pods run. These pods keep the previous values, "
            "and no pod is recreated. Revert the fields, or set spec.suspend to true first."
        )
        return conditions.not_accepted("ImmutableField", message)
    refused = _new_pod_refused(view, status)
    return refused or (conditions.accepted(status.run_as_user), conditions.NOT_STALLED)


def _new_pod_refused(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Facts about a job that runs, if its next pod would be refused; else none."""
    refusal = view.seen.refusal
    if refusal is None or not (refusal.user is None or _runs_as_template_user(view, status)):
        return ()
    message = f"{_OF_NEW_POD}{refusal.message}"
    if refusal.user is not None:
        message += f". To continue as user {refusal.user}, set spec.suspend to true and then to false"
    return conditions.not_accepted("PodRefused", message)


def _runs_as_template_user(view: View, status: JobStatus) -> bool:
    """All pods of an attempt run as one user: they share a checkpoint folder."""
    return status.attempt > 0 and status.run_as_user is None and not view.suspended


def reported_refusal(status: JobStatus, generation: int) -> Refusal | None:
    """The refusal of this generation's pod, as status reports it: for a reader that may request no dry run.
    With it, `decide` reports the same again.
    """
    accepted = status.condition(ConditionType.ACCEPTED)
    if accepted is None or accepted.reason != "PodRefused" or accepted.observed_generation != generation:
        return None
    message = accepted.message.removeprefix(_OF_FIRST_POD).removeprefix(_OF_NEW_POD)
    return Refusal(message=message.removesuffix(_NON_ROOT_TOO))
