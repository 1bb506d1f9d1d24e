"""Decide what a training job needs next.

Every decision of the operator is made in `core`: an observation goes in, a decision comes out.
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
from ropeteam.core.merge import merged_status, worker_counts
from ropeteam.core.questions import (
    acceptance,
    completion,
    degraded,
    gang,
    handover,
    recovery,
    release,
    steady,
)
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.desired import desired_state
from ropeteam.core.questions.gang import may_any_run
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View, build_view, with_changes
from ropeteam.core.status import conditions, progress
from ropeteam_trainer.contract.desired import Desired

QUESTIONS: tuple[Callable[[View, JobStatus], Answer | None], ...] = (
    completion.deletion_answer,
    completion.cleanup_answer,
    completion.completion_answer,
    completion.failure_answer,
    acceptance.invalid_spec_answer,
    acceptance.refused_pod_answer,
    completion.deadline_answer,
    gang.stop_answer,
    gang.start_answer,
    release.release_answer,
    recovery.coordinator_replacement_answer,
    recovery.changed_address_answer,
    recovery.gang_replacement_answer,
    recovery.newer_incarnations_answer,
    handover.handover_answer,
    recovery.worker_replacement_answer,
    steady.steady_answer,
)
"""Questions, by priority: deletion and cleaning up; the end of the job, before any repair; an unusable spec;
suspension, before a start; then losses, the largest first, since a new attempt replaces all that is below it.
The last one always has an answer."""


def decide(seen: Observation) -> Decision:
    """The decision about one observation. Never raises. The observation's facts are merged into status first,
    so each question is given `view`, with status as saved, and `status`, as it is now."""
    view = build_view(seen)
    status = merged_status(view)
    answers = (question(view, status) for question in QUESTIONS)
    return _decision_from(view, next(answer for answer in answers if answer is not None))


def _decision_from(view: View, answer: Answer) -> Decision:
    """The decision that an answer leads to. A decision that writes status has no actions, and is followed by
    another at once; of a finished job it has, since its actions follow from the end that is saved already."""
    saved = view.seen.status
    if answer.is_last:
        return Decision(saved, answer.actions, answer.why)
    status, delay_seconds = _status_to_save_and_delay(view, _complete_status(view, answer))
    desired = _desired_to_send(view, status)
    writes = status != saved
    return Decision(
        status=status,
        actions=() if writes and not saved.finished else answer.actions,
        why=answer.why,
        announcements=announce.announcements(saved, status, answer.why) if writes else (),
        desired=desired,
        requeue_after_seconds=0.0
        if writes
        else _shortest(
            delay_seconds,
            answer.requeue_after_seconds,
            deadlines.requeue_after(view, status),
            deadlines.seconds_to_next_poll(view, status) if desired else None,
        ),
    )


def _complete_status(view: View, answer: Answer) -> JobStatus:
    """Status of the answer with state, conditions, counts of pods and texts for columns. Of a finished job
    only generation and state are set: it was complete when the end was saved.

    Order: the answer's facts win over acceptance, and Degraded comes last."""
    generation = view.job.generation
    status = with_changes(answer.status, observed_generation=generation, state=answer.state)
    if view.seen.status.finished:
        return status
    facts = (*acceptance.facts(view, status), *answer.facts, *degraded.facts(view, status))
    status = with_changes(status, workers=worker_counts(view, status))
    return with_columns(conditions.with_facts(status, facts, view.now, generation))


def _status_to_save_and_delay(view: View, status: JobStatus) -> tuple[JobStatus, float | None]:
    """Status to save now, and the seconds until details that are left out may be saved; None: none are.

    Progress and details are saved at intervals (status/progress.py), so that etcd is not filled. Progress
    that is left out comes again with the next report. The saved status is returned if nothing is to be
    written; one that is to be written has the job's clock, as of now."""
    saved, now = view.seen.status, view.now
    if saved.finished:
        return status, None
    status = progress.throttled(saved, status, now)
    delay = progress.write_delay_seconds(saved, status, now, view.seen.written_at)
    if delay is not None or status == saved:
        return saved, delay
    return with_changes(status, clock=ClockStatus(job=view.job_time, wall=now)), None


def _desired_to_send(view: View, status: JobStatus) -> Desired | None:
    """Desired state for the coordinator. None: no coordinator can receive it, or the job has ended. A failed
    job's is sent until no worker runs: its agents exit when the coordinator receives that status has it."""
    done = status.finished and (status.state != "Failed" or not may_any_run(view.all_workers))
    return None if done else desired_state(view, status)


def _shortest(*seconds: float | None) -> float | None:
    """The least of the values. None: all are None."""
    return min((each for each in seconds if each is not None), default=None)
