"""Status with the observation merged in: which pods exist, the coordinator's report, which incidents
are final; and the counts of pods.

No decision of the operator is in here: merging one observation twice gives the same status.
"""

from __future__ import annotations

from datetime import datetime

from ropeteam.api.status import CoordinatorStatus, JobStatus, SlotStatus, WorkersStatus
from ropeteam.core.questions.pending import was_running
from ropeteam.core.seen import previouscoordinators
from ropeteam.core.seen.classify import is_proven_stopped, strong_evidence
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View, with_changes
from ropeteam.core.status import incidents, progress
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.fence import longest_life
from ropeteam_trainer.contract.world import Cause


def merged_status(view: View) -> JobStatus:
    """The saved status with this observation merged in; not complete yet: conditions, state and counts follow
    from the decision.

    Order: pods and coordinator, then the report's incidents, then Kubernetes' evidence for them, and last
    their end, since a final incident takes no evidence."""
    report, policy = view.report, view.spec.recovery
    by_uid = {pod.uid: pod for pod in view.all_workers}
    slots = tuple(_merged_slot(view, slot, by_uid.get(slot.previous_pod_uid)) for slot in view.status.slots)
    status = with_changes(
        view.status,
        slots=slots,
        coordinator=_merged_coordinator(view),
        coordinator_unreachable_start_time=_unreachable_since(view),
    )
    if report is not None:
        status = incidents.with_reported_incidents(status, report.incidents, view.now)
        status = with_changes(
            status,
            launcher=report.launcher[:256] or status.launcher,  # limits: as in JobStatus
            feature_level=max(status.feature_level, min(5, report.feature_level)),
            progress=progress.merged_progress(status.progress, report, view.now),
            checkpoint=progress.merged_checkpoint(view, report),
        )

    def evidence(slot: SlotStatus) -> tuple[Cause, str] | None:
        pod = by_uid.get(slot.previous_pod_uid)
        return strong_evidence(pod) if pod is not None else None

    return incidents.with_final_incidents(
        incidents.with_better_causes(status, evidence), policy, view.now, view.job_time
    )


def _merged_coordinator(view: View) -> CoordinatorStatus:
    """The coordinator's status. UID, node and address are taken once, when first observed: a later pod or
    Service of that name has others, and recovery.py compares."""
    coordinator, pod, service = view.status.coordinator, view.coordinator, view.seen.service
    report = view.report
    return with_changes(
        coordinator,
        pod_uid=coordinator.pod_uid or (pod.uid if pod else ""),
        node=coordinator.node or (pod.node if pod else ""),
        previous=previouscoordinators.remaining(view),
        address=coordinator.address or (service.cluster_ip if service else ""),
        boot=max(0, report.boot) if report else coordinator.boot,
        consecutive_failures=0 if report else coordinator.consecutive_failures,
    )


def _unreachable_since(view: View) -> datetime | None:
    """Time of the first reconcile in which a requested report did not come, or the coordinator's container
    did not run although there was a world; kept until a report comes. None: there is a report, or neither has
    happened."""
    since = view.status.coordinator_unreachable_start_time
    if view.report is not None:
        return None
    pod = view.coordinator
    not_running = was_running(view) and (pod is None or not pod.container.running)
    return since or (view.now if view.seen.report_error or not_running else None)


def _merged_slot(view: View, slot: SlotStatus, old: PodSeen | None) -> SlotStatus:
    """The slot's status. `old`: the pod that this incarnation replaces, if its object still exists.

    The previous pod is fenced by proof of its end, or by time: longest_life since its replacement by the wall
    clock, and by this process' clock since the coordinator answers no older incarnation. The wall clock may
    have stepped, so it alone is not enough; if it stepped back, the other decides alone. During a handover
    the previous pod still holds the slot, so time proves nothing."""
    pod = view.workers.get(slot.slot)
    life = longest_life(view.spec.recovery.fence_seconds)
    stepped_back = slot.replacement_time is not None and view.now < slot.replacement_time
    time_passed = view.has_passed(slot.replacement_time, life) or stepped_back
    fenced = time_passed and view.seconds_held(slot) >= life
    proven = is_proven_stopped(old) if old is not None else slot.previous_pod_uid in view.seen.ended_pods
    trains = view.report is not None and view.report.phase is WorldPhase.RUNNING and view.is_registered(slot)
    return with_changes(
        slot,
        pod_uid=slot.pod_uid or (pod.uid if pod else _reported_pod_uid(view, slot)),
        previous_pod_fenced=slot.previous_pod_fenced or proven or (fenced and not slot.handover_pending),
        consecutive_failures=0 if trains else slot.consecutive_failures,
    )


def _reported_pod_uid(view: View, slot: SlotStatus) -> str:
    """UID that the coordinator's report has for this incarnation, or empty.

    The coordinator receives UIDs from status alone. If status has none, it was restored from a backup of
    etcd. Ranks of that pod may live even if no pod is observed, so the UID is taken over."""
    reported = view.report.slots.get(str(slot.slot)) if view.report else None
    return reported.pod_uid if reported and reported.incarnation == slot.incarnation else ""


def worker_counts(view: View, status: JobStatus) -> WorkersStatus:
    """Counts of pods for status.workers, of the slots of `status`: pods of replaced incarnations do not
    count. Without a report, ready is at most what was saved last: agents report to the coordinator only."""
    slots = status.slots
    pods = [
        pod for slot in slots if (pod := view.workers.get(slot.slot)) and pod.incarnation == slot.incarnation
    ]
    finished = status.completion_time is not None  # pods that still run exit soon
    running = 0 if finished else sum(pod.container.running and not pod.deleting for pod in pods)
    registered = sum(view.is_registered(slot) for slot in slots) if view.report else view.status.workers.ready
    desired = len(slots) or view.spec.slots
    replacing = sum(slot.incarnation > 1 and slot.consecutive_failures > 0 for slot in slots)
    return WorkersStatus(desired=desired, ready=min(running, registered), replacing=replacing)
