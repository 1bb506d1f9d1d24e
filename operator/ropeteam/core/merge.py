"""Status with the observation merged in: which pods exist, the coordinator's report, which incidents
are final.

No decision of the operator is in here: merging twice changes nothing.
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


def merge_observed(view: View) -> JobStatus:
    report, policy = view.report, view.spec.recovery
    by_uid = {pod.uid: pod for pod in view.all_workers}
    slots = tuple(_slot(view, slot, by_uid.get(slot.previous_pod_uid)) for slot in view.status.slots)
    status = with_changes(
        view.status,
        slots=slots,
        coordinator=_coordinator(view),
        coordinator_unreachable_start_time=_silent_since(view),
    )
    if report is not None:
        status = incidents.merge(status, report.incidents, view.now)
        status = with_changes(
            status,
            launcher=report.launcher[:256] or status.launcher,
            feature_level=max(status.feature_level, min(5, report.feature_level)),
            progress=progress.progress_of(status.progress, report, view.now),
            checkpoint=progress.checkpoint(view, report),
        )

    def evidence(slot: SlotStatus) -> tuple[Cause, str] | None:
        pod = by_uid.get(slot.previous_pod_uid)
        return strong_evidence(pod) if pod is not None else None

    return incidents.finalize(incidents.with_evidence(status, evidence), policy, view.now, view.job_time)


def _coordinator(view: View) -> CoordinatorStatus:
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


def _silent_since(view: View) -> datetime | None:
    since = view.status.coordinator_unreachable_start_time
    if view.report is not None:
        return None
    pod = view.coordinator
    away = was_running(view) and (pod is None or not pod.container.running)
    return since or (view.now if view.seen.report_error or away else None)


def _slot(view: View, slot: SlotStatus, old: PodSeen | None) -> SlotStatus:
    pod = view.workers.get(slot.slot)
    life = longest_life(view.spec.recovery.fence_seconds)
    stepped_back = slot.replacement_time is not None and view.now < slot.replacement_time
    fenced = (view.has_passed(slot.replacement_time, life) or stepped_back) and view.seconds_held(
        slot
    ) >= life
    proven = is_proven_stopped(old) if old is not None else slot.previous_pod_uid in view.seen.ended_pods
    trains = view.report is not None and view.report.phase is WorldPhase.RUNNING and view.is_registered(slot)
    return with_changes(
        slot,
        pod_uid=slot.pod_uid or (pod.uid if pod else _reported_pod_uid(view, slot)),
        previous_pod_fenced=slot.previous_pod_fenced or proven or (fenced and not slot.handover_pending),
        consecutive_failures=0 if trains else slot.consecutive_failures,
    )


def _reported_pod_uid(view: View, slot: SlotStatus) -> str:
    """UID of the slot's pod in the coordinator's report. The coordinator knows pods from status alone: if
    status has none, it went back (a backup of etcd), and ranks of a pod that is observed no more may live."""
    reported = view.report.slots.get(str(slot.slot)) if view.report else None
    return reported.pod_uid if reported and reported.incarnation == slot.incarnation else ""


def count_workers(view: View, status: JobStatus) -> WorkersStatus:
    """Counts of the slots as they will be saved: the incarnation that was just replaced is not ready."""
    slots = status.slots
    pods = [
        pod for slot in slots if (pod := view.workers.get(slot.slot)) and pod.incarnation == slot.incarnation
    ]
    finished = status.completion_time is not None  # pods that still run are about to exit
    running = 0 if finished else sum(pod.container.running and not pod.deleting for pod in pods)
    registered = sum(view.is_registered(slot) for slot in slots) if view.report else view.status.workers.ready
    desired = len(slots) or view.spec.slots
    lost = sum(slot.incarnation > 1 and slot.consecutive_failures > 0 for slot in slots)
    return WorkersStatus(desired=desired, ready=min(running, registered), replacing=lost)
