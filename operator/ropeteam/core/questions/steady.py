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
from ropeteam.core.questions.live import live_answer
from ropeteam.core.questions.pending import MOUNTING
from ropeteam.core.seen import names
from ropeteam.core.seen.classify import PodClass
from ropeteam.core.seen.observation import Role
from ropeteam.core.seen.view import View

ASSUMED_UP_TO_DATE_SECONDS = 60.0
"""Seconds for which a Secret counts as present after the API server confirmed it. Then creating it again is
one request: of a job that creates pods, or whose pods wait."""


def steady_answer(view: View, status: JobStatus) -> Answer:
    """Answer about a started job that needs no change of status. There is always one: with creations and
    deletions, or else with what the coordinator reports."""
    pods = (*_coordinator_creation(view), *_worker_creations(view))
    creations = (
        *_secret_creations(view, bool(pods)),
        *policy.missing_policy_actions(view),
        *_service_action(view),
        *pods,
    )
    actions = (*creations, *_superseded_deletions(view))
    if creations:
        why = "creating missing objects"
    elif actions:
        why = "deleting superseded objects"
    else:
        why = (view.report.why if view.report else "") or "waiting for its pods"
    return live_answer(view, status, why, actions)


def _secret_creations(view: View, needed: bool) -> tuple[Action, ...]:
    """Creation of the job's Secret and the agent's, unless the job's is known to exist. Somebody may delete
    it; so after ASSUMED_UP_TO_DATE_SECONDS both are created again where pods are `needed` or still mount."""
    doubted = view.seen.secret_age >= ASSUMED_UP_TO_DATE_SECONDS and (needed or is_mounting(view))
    if view.seen.secret_exists and not doubted:
        return ()
    return (manifests.secret_creation(view.seen, view.spec), EnsureAgent())


def is_mounting(view: View) -> bool:
    """Whether a container of a current pod waits for a volume to mount, or for its image."""
    pods = (*view.workers.values(), *([view.coordinator] if view.coordinator else []))
    return any(each.waiting_reason in MOUNTING for pod in pods for each in (pod.init, pod.container))


def _service_action(view: View) -> tuple[Action, ...]:
    """Creation of the Service, or its change to the coordinator of this term. Empty: it leads there."""
    service, term = view.seen.service, view.status.coordinator.term
    if service is None:
        return (CreateService(manifests.service(view.seen)),)
    if service.term == term:
        return ()
    return (PointService(service.name, service.uid, names.coordinator_selector(view.job, term)),)


def _coordinator_creation(view: View) -> tuple[Action, ...]:
    """Creation of this term's coordinator pod, once. Empty also where status has its UID and the pod is gone:
    no name is used twice, and recovery.py opens the next term."""
    coordinator = view.status.coordinator
    is_backing_off = _is_backing_off(view, coordinator.start_time, coordinator.consecutive_failures)
    if view.coordinator is not None or coordinator.pod_uid or is_backing_off:
        return ()
    return (CreatePod(manifests.coordinator_pod(view.seen, view.spec)),)


def _worker_creations(view: View) -> tuple[Action, ...]:
    """Creations of missing worker pods, with that of the agent's Secret, which they mount.

    Empty until the coordinator's address and pod UID are in status and the NetworkPolicy exists. Empty too
    while the spec differs from that of running pods, and before the operator's first poll."""
    coordinator = view.status.coordinator
    if not coordinator.address or not coordinator.pod_uid or policy.blocks_gang_start(view):
        return ()
    if gang.has_pod_spec_changed(view) or _is_unpolled(view):
        return ()
    missing = [slot for slot in view.status.slots if _needs_pod(view, slot)]
    pods = (CreatePod(worker_pod(view.seen, view.spec, slot)) for slot in missing)
    return (EnsureAgent(), *pods) if missing else ()


def _is_unpolled(view: View) -> bool:
    """Whether the coordinator runs and was not polled yet, as in the first reconcile after the operator's
    start. Its report may have later incarnations than a restored status: then pods are not created here."""
    pod = view.coordinator
    runs = pod is not None and pod.container.running
    return runs and view.report is None and not view.seen.report_error


def _needs_pod(view: View, slot: SlotStatus) -> bool:
    """Whether the pod of this incarnation was never observed, and no backoff holds it up. One that was
    observed and is gone is not created again: recovery.py opens the next incarnation."""
    existed = slot.slot in view.workers or slot.pod_uid
    return not existed and not _is_backing_off(view, slot.replacement_time, slot.consecutive_failures)


def _is_backing_off(view: View, since: datetime | None, failures: int) -> bool:
    """Whether the backoff after so many `failures` in a row has not passed. False too if `since` is in the
    future: the wall clock has stepped back, and must not prolong the backoff."""
    retry_at = backoff.retry_at(since, failures)
    return since is not None and retry_at is not None and since <= view.now < retry_at


def _superseded_deletions(view: View) -> tuple[Action, ...]:
    """Deletions of superseded pods. Workers are deleted at once. Coordinators stay while an old worker runs:
    its agent waits for orders of its coordinator to exit."""
    old = view.pods[PodClass.SUPERSEDED]
    workers = tuple(pod for pod in old if pod.role is not Role.COORDINATOR)
    left = any(pod.container.running and not pod.node_lost for pod in workers)
    coordinators = () if left else tuple(pod for pod in old if pod.role is Role.COORDINATOR)
    return tuple(DeletePod(pod.name, pod.uid) for pod in (*workers, *coordinators) if not pod.deleting)
