"""Coordinators of earlier terms that may still live, and what proves that they do not.

A previous coordinator that is partitioned together with its agents keeps them and their world alive: nothing
there is fenced. Below feature level 2, where the script writes its own checkpoints, no fence of a replaced
pod is therefore counted before each previous coordinator is proven to have ended: by the kubelet's report
(also of a pod that is gone since: Observation.ended_pods), by a node that is confirmed dead
(Observation.dead_nodes), by a person (COORDINATORS_ENDED), or because all agents follow the
current coordinator.
From feature level 2 on the storage decides which checkpoints count.
A coordinator that only agents report, because status was restored from before it (a backup of etcd), counts
too.
Limits: a coordinator whose pod was never seen on a node, and that no agent follows, is not remembered.
With recovery.selfFence no proof is needed: such a coordinator is silent when no operator has received
anything of it for its leaseSeconds, and that moment is known by the operator's own clock
(View.seconds_silent).
"""

from __future__ import annotations

import math

from ropeteam.api.status import CoordinatorStatus, PreviousCoordinatorStatus
from ropeteam.core.seen.classify import has_ended
from ropeteam.core.seen.names import COORDINATORS_ENDED
from ropeteam.core.seen.view import View
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.fence import longest_lease

MAX_COORDINATORS = 16

Coordinators = tuple[PreviousCoordinatorStatus, ...]


def with_retired(view: View, old: CoordinatorStatus, newest: int = 0) -> Coordinators:
    """Previous coordinators, once `old` is replaced: those that may still live, `old` among them, and
    those up to term `newest` that status does not have."""
    this = PreviousCoordinatorStatus(
        term=old.term, pod_uid=old.pod_uid, node=old.node, lease_seconds=old.lease_seconds
    )
    known = old.previous
    is_known = any(each.pod_uid == old.pod_uid for each in known)
    if old.pod_uid and old.node and not is_known and not _ended(view, this):
        known = (*known, this)
    known = (*known, *_unknown(view, old.term, newest))
    if len(known) <= MAX_COORDINATORS:
        return known
    # And those before it: only a person can confirm.
    oldest = PreviousCoordinatorStatus(term=known[-MAX_COORDINATORS].term)
    return (oldest, *known[1 - MAX_COORDINATORS :])


def _unknown(view: View, known: int, newest: int) -> Coordinators:
    """Coordinators that a restored status does not have. One whose pod is not seen may live all the same."""
    pods = {pod.term: pod for pod in view.all_coordinators}
    found = ((term, pods.get(term)) for term in range(max(known, newest - MAX_COORDINATORS) + 1, newest + 1))
    return tuple(
        PreviousCoordinatorStatus(term=term, pod_uid=pod.uid if pod else "", node=pod.node if pod else "")
        for term, pod in found
    )


def remaining(view: View) -> Coordinators:
    """Previous coordinators that may still live, as far as is known now."""
    previous = view.status.coordinator.previous
    saves = view.status.feature_level >= FeatureLevel.CHECKPOINTS
    if not previous or saves or _have_agents_moved(view):
        return ()
    return tuple(each for each in previous if not _ended(view, each))


def message(view: View) -> str:
    """Text: the reason for waiting, and the command that ends it. "": nothing is waited for."""
    previous, open_slots = (
        remaining(view),
        [slot for slot in view.status.slots if not slot.previous_pod_fenced],
    )
    if not previous or not open_slots:
        return ""
    some = ", ".join(f"term {each.term} on node {each.node or 'unknown'}" for each in previous)
    head = (
        f"A previous coordinator may still run ({some}), and with it a previous pod of slot "
        f"{open_slots[0].slot} that writes its own checkpoints."
    )
    if not needs_confirmation(view):
        longest = max(each.lease_seconds for each in previous)
        return (
            f"{head} The job continues by itself when no operator has had contact with that coordinator for "
            f"{longest} s (spec.recovery.selfFence), and spec.recovery.fenceSeconds later."
        )
    return (
        f"{head} The job waits until the kubelet reports its end. If you know that it has ended: taint that "
        "node with node.kubernetes.io/out-of-service, or "
        f"kubectl annotate trainingjob -n {view.job.namespace} {view.job.name} "
        f"{COORDINATORS_ENDED}={previous[-1].term} --overwrite"
    )


def needs_confirmation(view: View) -> bool:
    """Whether one that may live has no lease that could expire."""
    return any(not each.lease_seconds for each in remaining(view))


def lease_expires_in(view: View, previous: PreviousCoordinatorStatus) -> float:
    """Seconds until its lease expires and it answers no agent any more. Infinite, if it has no lease."""
    if not previous.lease_seconds:
        return math.inf
    return longest_lease(previous.lease_seconds) - view.seconds_silent(previous.term)


def _have_agents_moved(view: View) -> bool:
    """Whether every pod that may write is registered at the current coordinator and refuses previous ones."""
    reports = view.report.slots if view.report else {}
    term = view.status.coordinator.term
    return bool(view.status.slots) and all(
        slot.previous_pod_fenced and view.is_registered(slot) and reports[str(slot.slot)].term >= term
        for slot in view.status.slots
    )


def _ended(view: View, previous: PreviousCoordinatorStatus) -> bool:
    text = view.job.annotations.get(COORDINATORS_ENDED, "")
    if text.isascii() and text.isdigit() and int(text[:18]) >= previous.term:
        return True
    if previous.node in view.seen.dead_nodes or lease_expires_in(view, previous) <= 0:
        return True
    pods = (pod for pod in view.all_coordinators if pod.uid == previous.pod_uid)
    return previous.pod_uid in view.seen.ended_pods or any(has_ended(pod) for pod in pods)
