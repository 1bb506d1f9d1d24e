"""The end of a job, and what is left to do then. Terminal is final: from then on status stays, and only
cleaning is done.

Complete: the agent of a pod that holds its slot exited 0 (agents do on the order `release` only), or the
coordinator reports it. A pod that was replaced does not count: its world may have been left behind. Failed:
the coordinator reports a reason, more incidents are charged than allowed, a slot's pods fail again and again
outside any world, or the deadline has passed.
"""

from __future__ import annotations

from datetime import timedelta

from ropeteam.api.job import CleanPodPolicy
from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.objects.actions import Action, DeleteJob, DeletePod, DeleteService
from ropeteam.core.questions import degraded
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.desired import desired_state
from ropeteam.core.questions.gang import any_active
from ropeteam.core.questions.handover import holder
from ropeteam.core.seen.classify import finished_cleanly
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, one_line, with_changes
from ropeteam.core.status import incidents
from ropeteam.core.status.conditions import SUCCEEDED, ended
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import EXIT_FAILED
from ropeteam_trainer.contract.world import FailReason

RELEASE_SECONDS, DISMISS_SECONDS = 10, 20
"""Time for agents to receive that the job is Complete, or Failed, and to exit by themselves before their pods
are deleted: a pod that has ended stays, with its log."""


def being_deleted(view: View, status: JobStatus) -> Answer | None:
    if view.seen.metadata.deletion_timestamp is None:
        return None
    return Answer("the job is being deleted, and its objects with it", status, status.state, is_last=True)


def complete(view: View, status: JobStatus) -> Answer | None:
    holders = {uid for slot in status.slots for uid in (slot.pod_uid, holder(slot).pod_uid)}
    pods = (pod for pod in view.all_workers if pod.uid in holders)
    released = next((pod for pod in pods if finished_cleanly(pod)), None)
    reported = view.report is not None and view.report.phase is WorldPhase.COMPLETE
    if released is None and not reported:
        return None
    why = f"pod {released.name} was released" if released else "the coordinator reports all ranks as done"
    step = f" at step {status.progress.step}" if status.progress else ""
    facts = ended(True, SUCCEEDED, f"All ranks have finished{step}.")
    if notice := degraded.no_process_group_message(view):
        facts = ended(
            True, FailReason.NO_PROCESS_GROUP.value, f"All ranks have finished{step}, but: {notice}"
        )
    return Answer(f"complete: {why}", _ended_status(view, status), "Complete", facts)


def failed(view: View, status: JobStatus) -> Answer | None:
    failure = _failure(view, status)
    if failure is None:
        return _failed_unreported(view, status)
    return _fail(view, status, *failure)


def _fail(view: View, status: JobStatus, reason: str, message: str) -> Answer:
    why = f"failed: {reason}: {message}"
    if view.spec.clean_pod_policy is CleanPodPolicy.ALL:
        message += " Its pods are deleted with their logs, as spec.cleanPodPolicy defines (All)."
    return Answer(why, _ended_status(view, status), "Failed", ended(False, reason, message))


def _failed_unreported(view: View, status: JobStatus) -> Answer | None:
    """The coordinator has failed the job while the operator was away: its report is fetched before any pod is
    replaced. If the coordinator is lost too, nobody knows the reason, and the job is tried again."""
    polled = view.seen.report is not None or view.seen.report_error or desired_state(view, status) is None
    if polled or not any(pod.container.exit_code == EXIT_FAILED for pod in view.workers.values()):
        return None
    return Answer("a worker exited because the job failed; requesting the reason", view.status, status.state)


def _failure(view: View, status: JobStatus) -> tuple[str, str] | None:
    reported = view.report.failure if view.report else None
    if reported is not None:
        return reported.reason.value, reported.message
    charged, allowed = status.failures.charged, view.spec.recovery.max_failures
    if charged > allowed:
        last = next((one_line(each.message) for each in reversed(status.incidents) if each.charged), "")
        window = f"within {view.spec.recovery.window_seconds} seconds"
        fix = "Fix the cause, or raise spec.recovery.maxFailures."
        message = f"{charged} incidents {window}, and {allowed} are allowed. The last: {last} {fix}"
        return FailReason.BUDGET_SPENT.value, message
    limit = view.spec.recovery.no_progress_limit
    for slot in status.slots:
        if incidents.pods_failed_in_a_row(status, slot) >= limit:
            return FailReason.REPEATED_ERROR.value, _never_trained(status, slot, limit)
    return None


def _never_trained(status: JobStatus, slot: SlotStatus, limit: int) -> str:
    messages = (each.message for each in reversed(status.incidents) if each.slot == slot.slot)
    last = one_line(next(messages, ""))
    return f"{limit} pods of slot {slot.slot} in a row ended before they could train. The last: {last}"


def deadline(view: View, status: JobStatus) -> Answer | None:
    """Time suspended, or spent on suspending, does not count."""
    limit = view.spec.active_deadline_seconds
    if limit is None or view.spec.suspend or view.suspended or status.start_time is None:
        return None
    if view.job_time < status.start_time + timedelta(seconds=limit):
        return None
    message = f"The job has run for {limit} seconds, which is spec.activeDeadlineSeconds."
    return _fail(view, status, FailReason.DEADLINE_EXCEEDED.value, message)


def _ended_status(view: View, status: JobStatus) -> JobStatus:
    final = frozenset(each.id for each in status.incidents)
    finalized = incidents.finalize(status, view.spec.recovery, view.now, view.job_time, final)
    return with_changes(
        finalized, completion_time=view.now, drain_start_time=None, coordinator_unreachable_start_time=None
    )


def exit_seconds(status: JobStatus) -> int:
    """Seconds that pods have after the job's end to exit by themselves."""
    return DISMISS_SECONDS if status.state == "Failed" else RELEASE_SECONDS


def clean_up(view: View, _: JobStatus) -> Answer | None:
    """Cleaning after the end: pods by policy, then the Service, then, after its TTL, the job itself."""
    status = view.status
    if not status.finished:
        return None
    ttl = view.spec.ttl_seconds_after_finished
    if ttl is not None and view.has_passed(status.completion_time, ttl):
        deletion = DeleteJob(view.job.name, view.job.uid)
        return _cleanup(view, "the job ended spec.ttlSecondsAfterFinished ago", (deletion,))
    failed, keeps_pods = status.state == "Failed", view.spec.clean_pod_policy is CleanPodPolicy.NONE
    if any_active(view.all_workers) and not view.has_passed(status.completion_time, exit_seconds(status)):
        return _cleanup(view, "the workers are about to exit by themselves", ())
    workers = _pods_to_delete(view)
    if workers:
        return _cleanup(view, "the job has ended: deleting pods", _deletions(workers))
    if any_active(view.all_workers) and (failed or not keeps_pods):
        return _cleanup(view, "deleting the workers, then the coordinator", ())
    service = view.seen.service
    more: tuple[Action, ...] = (DeleteService(service.name, service.uid),) if service else ()
    return _cleanup(view, "the job has ended", (*_deletions(view.all_coordinators), *more))


def _pods_to_delete(view: View) -> tuple[PodSeen, ...]:
    """Worker pods to delete. No policy lets a failed job keep the resources of a pod that runs."""
    policy = view.spec.clean_pod_policy
    if policy is CleanPodPolicy.NONE and view.status.state != "Failed":
        return ()
    ended_too = policy is CleanPodPolicy.ALL
    # A sidecar outlives the trainer; without one a pod has ended a moment after its container.
    late = view.has_passed(view.status.completion_time, RELEASE_SECONDS)
    return tuple(
        pod
        for pod in view.all_workers
        if not pod.deleting and (ended_too or not pod.ended or (late and pod.phase == "Running"))
    )


def _deletions(pods: tuple[PodSeen, ...]) -> tuple[Action, ...]:
    return tuple(DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting)


def _cleanup(view: View, why: str, actions: tuple[Action, ...]) -> Answer:
    return Answer(why, view.status, view.status.state, actions=actions)
