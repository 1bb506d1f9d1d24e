"""The end of a job, and what is left to do then. Terminal is final: from then on status does not change, and
only cleaning up is left.

Complete: the agent of a pod that holds its slot exited 0 (agents do on the order `release` only), or the
coordinator reports it. A pod that was replaced does not count: its world may be an older one. Failed: the
coordinator reports a reason, more incidents are charged than allowed, a slot's pods fail again and again
outside any world, or the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ropeteam.api.job import CleanPodPolicy
from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.objects.actions import Action, DeleteJob, DeleteService
from ropeteam.core.questions import degraded
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.desired import desired_state
from ropeteam.core.questions.gang import deletions, may_any_run
from ropeteam.core.questions.handover import holder
from ropeteam.core.seen.classify import finished_cleanly
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, one_line, with_changes
from ropeteam.core.status import incidents
from ropeteam.core.status.conditions import SUCCEEDED, ended_facts
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import EXIT_FAILED
from ropeteam_trainer.contract.world import FailReason

RELEASE_SECONDS, DISMISS_SECONDS = 10, 20
"""Seconds for agents to receive that the job is Complete, or Failed, and to exit by themselves before their
pods are deleted: with cleanPodPolicy Running a pod that has ended stays, with its log."""


def deletion_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer about a job that is being deleted: nothing is left to do, the garbage collector deletes its
    objects. None: it is not."""
    if view.seen.metadata.deletion_timestamp is None:
        return None
    return Answer("the job is being deleted, and its objects with it", status, status.state, is_last=True)


def completion_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer that ends the job as Complete; None: nothing proves that it is. During a handover both pods of a
    slot count. The condition's reason is NoProcessGroup if the ranks may have trained each for itself."""
    holders = {uid for slot in status.slots for uid in (slot.pod_uid, holder(slot).pod_uid)}
    pods = (pod for pod in view.all_workers if pod.uid in holders)
    released = next((pod for pod in pods if finished_cleanly(pod)), None)
    reported = view.report is not None and view.report.phase is WorldPhase.COMPLETE
    if released is None and not reported:
        return None
    why = f"pod {released.name} was released" if released else "the coordinator reports all ranks as done"
    step = f" at step {status.progress.step}" if status.progress else ""
    facts = ended_facts(True, SUCCEEDED, f"All ranks have finished{step}.")
    if notice := degraded.no_process_group_message(view):
        facts = ended_facts(
            True, FailReason.NO_PROCESS_GROUP.value, f"All ranks have finished{step}, but: {notice}"
        )
    return Answer(f"complete: {why}", _ended_status(view, status), "Complete", facts)


def failure_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer that ends the job as Failed, or first requests the reason from the coordinator. None: it has not
    failed, as far as is known. The deadline is another question."""
    failure = _reason_and_message(view, status)
    if failure is None:
        return _report_needed_answer(view, status)
    return _failed_answer(view, status, *failure)


def _failed_answer(view: View, status: JobStatus, reason: str, message: str) -> Answer:
    """Answer that ends the job as Failed, with a note if its pods' logs are deleted."""
    why = f"failed: {reason}: {message}"
    if view.spec.clean_pod_policy is CleanPodPolicy.ALL:
        message += " Its pods are deleted with their logs, as spec.cleanPodPolicy defines (All)."
    return Answer(why, _ended_status(view, status), "Failed", ended_facts(False, reason, message))


def _report_needed_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer that changes nothing, so that the coordinator is polled before any pod is replaced: a worker's
    exit code shows that the coordinator has failed the job, but not why.

    None: no worker exited so, the coordinator was polled, or there is none. If it is lost, the reason is lost
    with it, and the job continues with new pods."""
    polled = view.seen.report is not None or view.seen.report_error or desired_state(view, status) is None
    if polled or not any(pod.container.exit_code == EXIT_FAILED for pod in view.workers.values()):
        return None
    return Answer("a worker exited because the job failed; requesting the reason", view.status, status.state)


def _reason_and_message(view: View, status: JobStatus) -> tuple[str, str] | None:
    """Reason and message of the condition Failed; None: the job has not failed. First match wins: the
    coordinator's report, the failure budget, pods of a slot that never trained."""
    reported = view.report.failure if view.report else None
    if reported is not None:
        return reported.reason.value, reported.message
    charged, allowed = status.failures.charged, view.spec.recovery.max_failures
    if charged > allowed:
        last = _last_sentence(each.message for each in status.incidents if each.charged)
        window = f"within {view.spec.recovery.window_seconds} seconds"
        fix = "Fix the cause, or raise spec.recovery.maxFailures, and create the job again."
        message = f"{charged} incidents {window}, and {allowed} are allowed. {last}{fix}"
        return FailReason.BUDGET_SPENT.value, message
    limit = view.spec.recovery.no_progress_limit
    for slot in status.slots:
        if incidents.pods_failed_in_a_row(status, slot) >= limit:
            return FailReason.REPEATED_ERROR.value, _pods_failed_message(status, slot, limit)
    return None


def _pods_failed_message(status: JobStatus, slot: SlotStatus, limit: int) -> str:
    """Message that `limit` pods of a slot in a row failed outside any world, with the newest incident
    there."""
    last = _last_sentence(each.message for each in status.incidents if each.slot == slot.slot)
    return (
        f"{limit} pods of slot {slot.slot} in a row ended before they could train. {last}Fix the cause, or "
        "raise spec.recovery.noProgressLimit, and create the job again."
    )


def _last_sentence(messages: Iterable[str]) -> str:
    """Sentence with the last of these messages of incidents, and a space; "" if there is none: status keeps
    the newest incidents only."""
    last = one_line(next(reversed([*messages]), "")).rstrip(".")
    return f"The last: {last}. " if last else ""


def deadline_answer(view: View, status: JobStatus) -> Answer | None:
    """Answer that fails a job after activeDeadlineSeconds, by the job's clock, since its start or last
    resume. None: there is no deadline, it has not passed, or the job is or is to be suspended."""
    limit = view.spec.active_deadline_seconds
    if limit is None or view.spec.suspend or view.suspended or status.start_time is None:
        return None
    if view.job_time < status.start_time + timedelta(seconds=limit):
        return None
    message = (
        f"The job has run for {limit} seconds, which is spec.activeDeadlineSeconds. Raise it, or remove it, "
        "and create the job again."
    )
    return _failed_answer(view, status, FailReason.DEADLINE_EXCEEDED.value, message)


def _ended_status(view: View, status: JobStatus) -> JobStatus:
    """Status of a job that ends now: all incidents are final, and nothing is waited for."""
    final = frozenset(each.id for each in status.incidents)
    finalized = incidents.with_final_incidents(status, view.spec.recovery, view.now, view.job_time, final)
    return with_changes(
        finalized, completion_time=view.now, drain_start_time=None, coordinator_unreachable_start_time=None
    )


def exit_seconds(status: JobStatus) -> int:
    """Seconds after the end of the job that its pods have to exit by themselves, before they are deleted."""
    return DISMISS_SECONDS if status.state == "Failed" else RELEASE_SECONDS


def cleanup_answer(view: View, _: JobStatus) -> Answer | None:
    """Answer about a finished job, with what is to be deleted now; None: it has not finished.

    First match wins. The TTL has passed: the job itself, and with it all else. Then wait for workers that
    exit by themselves; delete workers by spec.cleanPodPolicy; when none that is to go may run, delete
    coordinators and Service."""
    status = view.status
    if not status.finished:
        return None
    ttl = view.spec.ttl_seconds_after_finished
    if ttl is not None and view.has_passed(status.completion_time, ttl):
        deletion = DeleteJob(view.job.name, view.job.uid)
        return _finished_answer(
            view, "spec.ttlSecondsAfterFinished has passed: deleting the job", (deletion,)
        )
    failed, keeps_pods = status.state == "Failed", view.spec.clean_pod_policy is CleanPodPolicy.NONE
    if may_any_run(view.all_workers) and not view.has_passed(status.completion_time, exit_seconds(status)):
        return _finished_answer(view, "the workers are about to exit by themselves", ())
    workers = _pods_to_delete(view)
    if workers:
        return _finished_answer(view, "the job has ended: deleting pods", deletions(workers))
    if may_any_run(view.all_workers) and (failed or not keeps_pods):
        return _finished_answer(view, "deleting the workers, then the coordinator", ())
    service = view.seen.service
    more: tuple[Action, ...] = (DeleteService(service.name, service.uid),) if service else ()
    return _finished_answer(view, "the job has ended", (*deletions(view.all_coordinators), *more))


def _pods_to_delete(view: View) -> tuple[PodSeen, ...]:
    """Worker pods to delete: by spec.cleanPodPolicy, but of a failed job also with None those that run, so
    that they free their resources."""
    policy = view.spec.clean_pod_policy
    if policy is CleanPodPolicy.NONE and view.status.state != "Failed":
        return ()
    ended_too = policy is CleanPodPolicy.ALL
    # A pod whose trainer has ended but that still runs has a sidecar, which nothing else ends.
    late = view.has_passed(view.status.completion_time, RELEASE_SECONDS)
    return tuple(
        pod
        for pod in view.all_workers
        if not pod.deleting and (ended_too or not pod.ended or (late and pod.phase == "Running"))
    )


def _finished_answer(view: View, why: str, actions: tuple[Action, ...]) -> Answer:
    """Answer with these actions about a finished job, whose status stays."""
    return Answer(why, view.status, view.status.state, actions=actions)
