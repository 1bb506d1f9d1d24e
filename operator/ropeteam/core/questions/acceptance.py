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


def invalid_spec_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer about an invalid spec; None: it is valid. No question after this one is tried, so running pods
    continue and nothing is created. A started job keeps its state."""
    if not view.problems:
        return None
    reason = FailReason.INVALID_SPEC.value
    message = "; ".join(view.problems)
    state = status.state if status.attempt > 0 and status.state else "Invalid"
    return Answer(
        f"the spec is invalid: {message}", status, state, conditions.not_accepted_facts(reason, message)
    )


def refused_pod_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer about a job that cannot start, because the API server refuses its worker pod in a dry run.

    None: no refusal is known, the pod is admitted as a non-root user, or pods run already (see `facts`)."""
    refusal = view.seen.refusal
    if refusal is None or refusal.user is not None or (status.attempt > 0 and not view.suspended):
        return None
    message = f"{_OF_FIRST_POD}{refusal.message}{_NON_ROOT_TOO if refusal.by_pod_security else ''}"
    return Answer(message, status, "Invalid", conditions.not_accepted_facts("PodRefused", message))


def facts(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Facts about Accepted and Stalled: the first that applies of changed pod fields, a refused replacement
    pod, and acceptance."""
    if gang.has_pod_spec_changed(view):
        message = (
            "Fields of the spec that define the pods were changed while pods run. These pods keep the "
            "previous values, and a lost pod is not replaced. Revert the fields, or set spec.suspend to true "
            "and then to false to start pods with the new values."
        )
        return conditions.not_accepted_facts("ImmutableField", message)
    refused = _refused_replacement_facts(view, status)
    return refused or (conditions.accepted_fact(status.run_as_user), conditions.NOT_STALLED)


def _refused_replacement_facts(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Facts about a job that runs, if a replacement pod would be refused; else empty."""
    refusal = view.seen.refusal
    if refusal is None or not (refusal.user is None or _runs_as_template_user(view, status)):
        return ()
    message = f"{_OF_NEW_POD}{refusal.message}"
    if refusal.user is not None:
        message += f". To continue as user {refusal.user}, set spec.suspend to true and then to false"
    return conditions.not_accepted_facts("PodRefused", message)


def _runs_as_template_user(view: View, status: JobStatus) -> bool:
    """Whether pods of this attempt run as the user of image and template, so that a replacement has to, too:
    all pods of an attempt share a checkpoint folder."""
    return status.attempt > 0 and status.run_as_user is None and not view.suspended


def reported_refusal(status: JobStatus, generation: int) -> Refusal | None:
    """Refusal of the worker pod of this `generation`, read back from the condition Accepted: `ropeteam
    explain` may request no dry run, and decides the same with it. None: status reports none.

    Inverse of the messages above: it removes the texts that they add, but not the advice on the user.
    """
    accepted = status.condition(ConditionType.ACCEPTED)
    if accepted is None or accepted.reason != "PodRefused" or accepted.observed_generation != generation:
        return None
    message = accepted.message.removeprefix(_OF_FIRST_POD).removeprefix(_OF_NEW_POD)
    return Refusal(message=message.removesuffix(_NON_ROOT_TOO))
