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
from ropeteam.core.questions.gang import any_active
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View, build_view, with_changes
from ropeteam.core.status import conditions, progress
from ropeteam_trainer.contract.desired import Desired

QUESTIONS: tuple[Callable[[View, JobStatus], Answer | None], ...] = (
    completion.being_deleted,
    completion.clean_up,
    completion.complete,
    completion.failed,
    acceptance.invalid,
    acceptance.refused,
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
    steady.ensure_children,
)
"""The last one always has an answer."""


def decide(seen: Observation) -> Decision:
    """The decision about one observation. Never raises."""
    view = build_view(seen)
    status = merge_observed(view)
    answers = (question(view, status) for question in QUESTIONS)
    return _conclude(view, next(answer for answer in answers if answer is not None))


def _conclude(view: View, answer: Answer) -> Decision:
    """The decision: the status to save, what is sent to the coordinator then, and when to look again."""
    saved = view.seen.status
    if answer.is_last:
        return Decision(saved, answer.actions, answer.why)
    status, delay = _to_save(view, _with_facts(view, answer))
    desired = _desired(view, status)
    writes = status != saved
    return Decision(
        status=status,
        actions=() if writes and not saved.finished else answer.actions,
        why=answer.why,
        announcements=announce.announcements(saved, status, answer.why) if writes else (),
        desired=desired,
        requeue_after_seconds=0.0
        if writes
        else _earliest(
            delay,
            answer.requeue_after_seconds,
            deadlines.requeue_after(view, status),
            deadlines.next_poll(view, status) if desired else None,
        ),
    )


def _with_facts(view: View, answer: Answer) -> JobStatus:
    """Status of the answer, with its conditions, counts and columns. Those of a finished job stay."""
    generation = view.job.generation
    status = with_changes(answer.status, observed_generation=generation, state=answer.state)
    if view.seen.status.finished:
        return status
    facts = (*acceptance.facts(view, status), *answer.facts, *degraded.facts(view, status))
    status = with_changes(status, workers=count_workers(view, status))
    return with_columns(conditions.with_facts(status, facts, view.now, generation))


def _to_save(view: View, status: JobStatus) -> tuple[JobStatus, float | None]:
    """Status to save now, and the seconds after which to save what is left out. Progress and details are
    saved at intervals."""
    saved, now = view.seen.status, view.now
    if saved.finished:
        return status, None
    status = progress.throttle(saved, status, now)
    delay = progress.write_delay_seconds(saved, status, now, view.seen.written_at)
    if delay is not None or status == saved:
        return saved, delay
    return with_changes(status, clock=ClockStatus(job=view.job_time, wall=now)), None


def _desired(view: View, status: JobStatus) -> Desired | None:
    done = status.finished and (status.state != "Failed" or not any_active(view.all_workers))
    return None if done else desired_state(view, status)


def _earliest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
