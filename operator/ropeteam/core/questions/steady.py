"""A started job: create missing objects, delete superseded pods, and otherwise leave the job alone.

The order of a start is kept by what each object needs: worker pods need the Service's address and a
coordinator pod that is known by UID, both saved in status, and the job's NetworkPolicy.
"""

from __future__ import annotations

from datetime import datetime

from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core import backoff
from ropeteam.core.objects import manifests, policy
from ropeteam.core.objects.actions import (
    Action,
    CreatePod,
    CreateService,
    DeletePod,
    EnsureAgent,
    PointService,
)
from ropeteam.core.objects.workerpod import worker_pod
from ropeteam.core.questions import gang
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.pending import MOUNTING, live_answer
from ropeteam.core.seen import names
from ropeteam.core.seen.classify import PodClass
from ropeteam.core.seen.observation import Role
from ropeteam.core.seen.view import View

ASSUMED_UP_TO_DATE_SECONDS = 60.0
"""Seconds for which a Secret counts as present after the API server confirmed it. Then creating it again is
one request: of a job that creates pods, or whose pods wait."""


def ensure_children(view: View, status: JobStatus) -> Answer:
    pods = (*_coordinator(view), *_workers(view))
    creations = (*_secrets(view, bool(pods)), *policy.missing_policy_actions(view), *_service(view), *pods)
    actions = (*creations, *_superseded(view))
    if creations:
        why = "creating missing objects"
    elif actions:
        why = "deleting superseded objects"
    else:
        why = (view.report.why if view.report else "") or "waiting for its pods"
    return live_answer(view, status, why, actions)


def _secrets(view: View, needed: bool) -> tuple[Action, ...]:
    """Secrets to create; again where pods are `needed` or wait, since somebody may have deleted them."""
    doubted = view.seen.secret_age >= ASSUMED_UP_TO_DATE_SECONDS and (needed or is_mounting(view))
    if view.seen.secret_exists and not doubted:
        return ()
    return (manifests.secret(view.seen, view.spec), EnsureAgent())


def is_mounting(view: View) -> bool:
    """Whether some pod has a node and no container yet: it waits for a volume to mount, or for its image."""
    pods = (*view.workers.values(), *([view.coordinator] if view.coordinator else []))
    return any(each.waiting_reason in MOUNTING for pod in pods for each in (pod.init, pod.container))


def _service(view: View) -> tuple[Action, ...]:
    service, term = view.seen.service, view.status.coordinator.term
    if service is None:
        return (CreateService(manifests.service(view.seen)),)
    if service.term == term:
        return ()
    return (PointService(service.name, service.uid, names.coordinator_selector(view.job, term)),)


def _coordinator(view: View) -> tuple[Action, ...]:
    coordinator = view.status.coordinator
    backs_off = _backs_off(view, coordinator.start_time, coordinator.consecutive_failures)
    if view.coordinator is not None or coordinator.pod_uid or backs_off:
        return ()
    return (CreatePod(manifests.coordinator_pod(view.seen, view.spec)),)


def _workers(view: View) -> tuple[Action, ...]:
    coordinator = view.status.coordinator
    if not coordinator.address or not coordinator.pod_uid or policy.blocks_gang_start(view):
        return ()
    if gang.has_pod_spec_changed(view) or _is_unpolled(view):
        return ()
    missing = [slot for slot in view.status.slots if _is_missing(view, slot)]
    pods = (CreatePod(worker_pod(view.seen, view.spec, slot)) for slot in missing)
    return (EnsureAgent(), *pods) if missing else ()


def _is_unpolled(view: View) -> bool:
    """Whether the coordinator runs and was not polled yet: in the first reconcile after the operator's
    start. It may know of pods that status has forgotten."""
    pod = view.coordinator
    runs = pod is not None and pod.container.running
    return runs and view.report is None and not view.seen.report_error


def _is_missing(view: View, slot: SlotStatus) -> bool:
    exists = slot.slot in view.workers or slot.pod_uid
    return not exists and not _backs_off(view, slot.replacement_time, slot.consecutive_failures)


def _backs_off(view: View, since: datetime | None, failures: int) -> bool:
    """Whether backoff holds the pod up: one that is lost again and again is not created again at once. A wall
    clock that has stepped back holds none up."""
    retry_at = backoff.retry_at(since, failures)
    return since is not None and retry_at is not None and since <= view.now < retry_at


def _superseded(view: View) -> tuple[Action, ...]:
    """Deletions: old workers at once; an old coordinator when none of them is left to wait for its orders."""
    old = view.pods[PodClass.SUPERSEDED]
    workers = tuple(pod for pod in old if pod.role is not Role.COORDINATOR)
    left = any(pod.container.running and not pod.node_lost for pod in workers)
    coordinators = () if left else tuple(pod for pod in old if pod.role is Role.COORDINATOR)
    return tuple(DeletePod(pod.name, pod.uid) for pod in (*workers, *coordinators) if not pod.deleting)
