"""Coordinators of earlier terms that may still run, and what proves that they do not.

A previous coordinator that is partitioned together with its agents keeps them and their world alive: nothing
there is fenced. Below feature level 2, where the script writes its own checkpoints, no fence of a replaced
pod is therefore counted before each previous coordinator is proven to have ended: by the kubelet's report
(also of a pod that is gone since: Observation.ended_pods), by a node that is confirmed dead
(Observation.dead_nodes), by a person (COORDINATORS_ENDED), or because all agents follow the
current coordinator.
From feature level 2 on the storage decides which checkpoints count.
A coordinator that only agents report, because status was restored from before it (a backup of etcd), counts
too.
With recovery.selfFence no proof is needed: such a coordinator answers no agent once its lease has expired
(View.seconds_silent).
Limits: a coordinator whose pod was never observed on a node, and that no agent follows, is not recorded.
"""

from __future__ import annotations

import math

from ropeteam.api.status import CoordinatorStatus, PreviousCoordinatorStatus
from ropeteam.core.seen.classify import is_end_reported
from ropeteam.core.seen.names import COORDINATORS_ENDED
from ropeteam.core.seen.names import coordinator as coordinator_name
from ropeteam.core.seen.view import View
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.fence import longest_lease

MAX_COORDINATORS = 16

Coordinators = tuple[PreviousCoordinatorStatus, ...]


def with_retired(view: View, old: CoordinatorStatus, newest: int = 0) -> Coordinators:
    """Value of status.coordinator.previous once `old` is replaced, oldest first: those before `old`; `old`,
    unless it had no node or is proven to have ended; and those up to term `newest` that status does not have.

    Beyond MAX_COORDINATORS the oldest are merged into one without pod and node. Only a person can confirm its
    end."""
    this = PreviousCoordinatorStatus(
        term=old.term, pod_uid=old.pod_uid, node=old.node, lease_seconds=old.lease_seconds
    )
    known = old.previous
    is_known = any(each.pod_uid == old.pod_uid for each in known)
    if old.pod_uid and old.node and not is_known and not _has_ended(view, this):
        known = (*known, this)
    known = (*known, *_coordinators_missing_in_status(view, old.term, newest))
    if len(known) <= MAX_COORDINATORS:
        return known
    oldest = PreviousCoordinatorStatus(term=known[-MAX_COORDINATORS].term)
    return (oldest, *known[1 - MAX_COORDINATORS :])


def _coordinators_missing_in_status(view: View, known: int, newest: int) -> Coordinators:
    """Coordinators of terms after `known`, up to `newest`, which a restored status does not have. A pod that
    is not observed may run all the same, so it is listed without UID and node."""
    pods = {pod.term: pod for pod in view.all_coordinators}
    found = ((term, pods.get(term)) for term in range(max(known, newest - MAX_COORDINATORS) + 1, newest + 1))
    return tuple(
        PreviousCoordinatorStatus(term=term, pod_uid=pod.uid if pod else "", node=pod.node if pod else "")
        for term, pod in found
    )


def remaining(view: View) -> Coordinators:
    """Previous coordinators that may still run and matter. Empty from feature level 2 on, and once all agents
    follow the current coordinator."""
    previous = view.status.coordinator.previous
    commits = view.status.feature_level >= FeatureLevel.CHECKPOINTS
    if not previous or commits or _have_agents_moved(view):
        return ()
    return tuple(each for each in previous if not _has_ended(view, each))


def waiting_message(view: View) -> str:
    """Message: which coordinators may still run, why the job waits for them, and what ends that. Empty: it
    waits for none, or no slot has a previous pod that may still write."""
    previous = remaining(view)
    unfenced = [slot for slot in view.status.slots if not slot.previous_pod_fenced]
    if not previous or not unfenced:
        return ""
    pods = ", ".join(
        f"{coordinator_name(view.job.name, each.term)} on node {each.node or 'unknown'}" for each in previous
    )
    head = (
        f"A previous coordinator may still run (pod {pods}), and with it a previous pod of slot "
        f"{unfenced[0].slot} that writes its own checkpoints."
    )
    if not needs_confirmation(view):
        longest = max(each.lease_seconds for each in previous)
        return (
            f"{head} The job continues by itself when no operator has had contact with that coordinator for "
            f"{longest} s (spec.recovery.selfFence), and spec.recovery.fenceSeconds later."
        )
    return (
        f"{head} The job waits until the kubelet reports its end. If you know that it has ended, as its node "
        "is off: taint that node with node.kubernetes.io/out-of-service, or confirm the end "
        f"of all these pods: kubectl annotate trainingjob -n {view.job.namespace} {view.job.name} "
        f"{COORDINATORS_ENDED}={previous[-1].term} --overwrite"
    )


def needs_confirmation(view: View) -> bool:
    """Whether a coordinator that may still run has no lease, so that only evidence or a person can end the
    wait."""
    return any(not each.lease_seconds for each in remaining(view))


def seconds_to_lease_expiry(view: View, previous: PreviousCoordinatorStatus) -> float:
    """Seconds until the lease of a coordinator expires, and with it its answers to agents. 0 or less: it has
    expired. Infinite: it has no lease."""
    if not previous.lease_seconds:
        return math.inf
    return longest_lease(previous.lease_seconds) - view.seconds_silent(previous.term)


def _have_agents_moved(view: View) -> bool:
    """Whether no pod can follow a previous coordinator: previous pods are fenced, and the agent of every slot
    is registered with the current one, has seen its term, and so refuses lower ones."""
    reports = view.report.slots if view.report else {}
    term = view.status.coordinator.term
    return bool(view.status.slots) and all(
        slot.previous_pod_fenced and view.is_registered(slot) and reports[str(slot.slot)].term >= term
        for slot in view.status.slots
    )


def _has_ended(view: View, previous: PreviousCoordinatorStatus) -> bool:
    """Whether the end is proven: by a person's annotation, a dead node, an expired lease, or the kubelet. An
    annotation that is no number is ignored; 18 digits are more than any term has."""
    text = view.job.annotations.get(COORDINATORS_ENDED, "")
    if text.isascii() and text.isdigit() and int(text[:18]) >= previous.term:
        return True
    if previous.node in view.seen.dead_nodes or seconds_to_lease_expiry(view, previous) <= 0:
        return True
    pods = (pod for pod in view.all_coordinators if pod.uid == previous.pod_uid)
    return previous.pod_uid in view.seen.ended_pods or any(is_end_reported(pod) for pod in pods)
