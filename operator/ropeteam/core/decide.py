"""Decide what a training job needs next.

Every decision of the operator is made in `core`: an observation goes in, what to do comes out.
The questions are tried from top to bottom; the first one with an answer wins.
Rules that bind every answer:
  - Intent before effect. An answer that changes status carries no actions; the next reconcile runs them.
  - Idempotent. Deciding again about an unchanged job gives no actions and no write.
  - Terminal is final. After Complete or Failed there is only cleaning up.
  - Total. There is an answer for every observation, and a sentence `why`.

Example: a job `mnist` of 3 workers runs, and somebody deletes the pod of slot 1 by force.

    observation                          decision                                  why
    status: slot 1 is incarnation 1;     status: slot 1 is incarnation 2, and an   slot 1: PodDeleted,
    the pod mnist-1-1 is gone            incident, not charged; no actions         incarnation 2
    the saved status; no pod mnist-1-2   create mnist-1-2; the status stays        creating missing objects
    the pod mnist-1-2 exists             status: slot 1 has its UID; no actions    (the coordinator's)

A crash before the write of the first row changes nothing; a crash after it is made good by the second row,
which any operator can compute from the cluster alone.
"""

from __future__ import annotations

from collections.abc import Callable

from ropeteam.api.columns import with_columns
from ropeteam.api.status import ClockStatus, JobStatus
from ropeteam.core import announce, deadlines
from ropeteam.core.decision import Decision
from ropeteam.core.merge import count_workers, merge_observed
from ropeteam.core.questions import completion, degraded, gang, handover, recovery, refusal, release
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.desired import desired_state
from ropeteam.core.questions.gang import any_active
from ropeteam.core.questions.steady import ensure_children
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View, build_view, with_changes
from ropeteam.core.status import conditions, progress
from ropeteam.core.status.conditions import ConditionFact
from ropeteam_trainer.contract.world import FailReason

Question = Callable[[View, JobStatus], Answer | None]


def decide(seen: Observation) -> Decision:
    """The decision about one observation. Never raises."""
    view = build_view(seen)
    if seen.metadata.deletion_timestamp is not None:
        return Decision(seen.status, (), "the job is being deleted, and its objects with it")
    cleanup = completion.clean_up(view)
    if cleanup is not None:
        return _decision(view, cleanup)
    status = merge_observed(view)
    answers = (question(view, status) for question in QUESTIONS)
    answer = next((answer for answer in answers if answer is not None), None)
    return _decision(view, answer or ensure_children(view, status))


def invalid(view: View, status: JobStatus) -> Answer | None:
    """The spec is not valid. Running pods continue; nothing new is created."""
    if not view.problems:
        return None
    reason = FailReason.INVALID_SPEC.value
    message = "; ".join(view.problems)
    facts = conditions.not_accepted(reason, message)
    return Answer(f"the spec is invalid: {message}", status, _last_state(status, "Invalid"), facts)


def _last_state(status: JobStatus, default: str) -> str:
    return status.state if status.attempt > 0 and status.state else default


QUESTIONS: tuple[Question, ...] = (
    completion.complete,
    completion.failed,
    invalid,
    refusal.refused,
    completion.deadline,
    gang.stop,
    gang.start,
    release.release_partial_gang,
    recovery.replace_coordinator,
    recovery.replace_address,
    recovery.replace_all,
    recovery.adopt_newer_incarnations,
    handover.take_over,
    recovery.replace_workers,
)


def _acceptance(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Facts on whether the running pods are those of the present spec."""
    if gang.has_pod_spec_changed(view):
        message = (
            "Fields that define the pods were changed while pods run. These pods keep the previous values, "
            "and no pod is recreated. Revert the fields, or set spec.suspend to true first."
        )
        return conditions.not_accepted("ImmutableField", message)
    refused = refusal.new_pod_refused(view, status)
    return refused or (conditions.accepted(status.run_as_user), conditions.NOT_STALLED)


def _decision(view: View, answer: Answer) -> Decision:
    saved, now, job = view.seen.status, view.now, view.job
    wait = None
    status = with_changes(answer.status, observed_generation=job.generation, state=answer.state)
    if not saved.finished:
        facts = (*_acceptance(view, status), *answer.facts, *degraded.facts(view, status))
        status = with_changes(status, workers=count_workers(view, status))
        status = conditions.with_facts(status, facts, now, job.generation)
        status = with_columns(status)
        status = progress.throttle(saved, status, now)
        wait = progress.write_delay_seconds(saved, status, now, view.seen.written_at)
        status = status if wait is None else saved
    writes = status != saved
    if writes and not saved.finished:
        status = with_changes(status, clock=ClockStatus(job=view.job_time, wall=now))
    done = status.finished and (status.state != "Failed" or not any_active(view.all_workers))
    desired = None if done else desired_state(view, status)
    looks = [wait, answer.requeue_after_seconds, deadlines.requeue_after(view, status)]
    if desired is not None:
        looks.append(deadlines.next_poll(view, status))
    return Decision(
        status=status,
        actions=() if writes and not saved.finished else answer.actions,
        why=answer.why,
        announcements=announce.announcements(saved, status, answer.why) if writes else (),
        desired=desired,
        requeue_after_seconds=0.0
        if writes
        else min((each for each in looks if each is not None), default=None),
    )
