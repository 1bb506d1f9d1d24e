"""What is each pod to the job, and why did a pod end? Kubernetes' evidence only; the coordinator knows the
ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ropeteam.core.seen import names
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role
from ropeteam_trainer.contract.world import Cause


class Bucket(StrEnum):
    """Every pod is in exactly one."""

    CURRENT = "Current"
    """The pod that status names: this incarnation of a slot, or the coordinator of this term."""
    SUPERSEDED = "Superseded"
    """An earlier incarnation or term: to be deleted."""
    AHEAD = "Ahead"
    """Later than status knows: this status is an old copy, or it went back (a backup of etcd). To be left
    alone until status knows of it; what we would save of an old copy is refused."""
    FOREIGN = "Foreign"
    """Its name does not fit its labels: not made by us, never touched."""


def bucket(pod: PodSeen, job: str, incarnations: Mapping[int, int], term: int) -> Bucket:
    """`incarnations` by slot, and `term`: as saved in status."""
    if pod.role is Role.COORDINATOR:
        if pod.name != names.coordinator(job, pod.term):
            return Bucket.FOREIGN
        return _compare(pod.term, term)
    if pod.name != names.worker(job, pod.slot, pod.incarnation):
        return Bucket.FOREIGN
    if pod.slot in incarnations:
        return _compare(pod.incarnation, incarnations[pod.slot])
    highest = max(incarnations.values(), default=0)  # a new attempt with more slots begins above all of these
    return Bucket.AHEAD if pod.incarnation > highest else Bucket.SUPERSEDED


def _compare(found: int, expected: int) -> Bucket:
    if found == expected:
        return Bucket.CURRENT
    return Bucket.SUPERSEDED if found < expected else Bucket.AHEAD


EVICTIONS = frozenset(
    (
        "Evicted",
        "Preempting",
        "Preempted",
        "PreemptionByScheduler",
        "EvictionByEvictionAPI",
        "DeletionByTaintManager",
        "Shutdown",
        "NodeShutdown",
        "Terminated",
        "TerminationByKubelet",
    )
)
"""pod.status.reason, or the reason of its condition DisruptionTarget: somebody needed the place."""
LOST_NODES = frozenset({"NodeLost", "DeletionByPodGC"})


def finished_cleanly(pod: PodSeen) -> bool:
    """Its trainer container exited 0. Agents do that on RELEASE only: the job is complete."""
    code = pod.container.exit_code
    return code == 0 or (code is None and pod.phase == "Succeeded")


def cannot_write(pod: PodSeen) -> bool:
    """Proof that none of its processes can touch a checkpoint: the kubelet saw it end, or it never began."""
    return pod.container.exit_code is not None or not pod.node or pod.init.exit_code not in (None, 0)


def has_ended(pod: PodSeen) -> bool:
    """Only the kubelet tells of an exit, and of a phase that no restart follows."""
    over = pod.phase in ("Succeeded", "Failed") and pod.reason not in LOST_NODES
    return over and pod.container.exit_code is not None


def cause_of(pod: PodSeen | None) -> tuple[Cause, str]:
    """Why a worker pod was lost, as cause and sentence. None: the object is gone."""
    if pod is None:
        return Cause.POD_DELETED, "The pod was deleted."
    strong = strong_evidence(pod)
    if strong is not None:
        return strong
    if pod.deleting:
        return Cause.POD_DELETED, f"Pod {pod.name} was deleted."
    return Cause.POD_FAILED, f"Pod {pod.name} ended: {last_words(pod)}"


def strong_evidence(pod: PodSeen) -> tuple[Cause, str] | None:
    """A cause that holds even if we have deleted the pod ourselves in the meantime."""
    if pod.reason in EVICTIONS:
        return Cause.EVICTED, f"Pod {pod.name} was evicted ({pod.reason}). {pod.message}".strip()
    if pod.node_lost or pod.reason in LOST_NODES:
        return Cause.NODE_LOST, f"Node {pod.node or 'of the pod'} is lost, and pod {pod.name} with it."
    if pod.container.exit_reason == "OOMKilled":
        words = "it used more memory than its limit; raise spec.resources.limits.memory"
        return Cause.OUT_OF_MEMORY, f"Pod {pod.name} was killed: {words}."
    return None


def last_words(pod: PodSeen) -> str:
    """How its containers ended, in words."""
    if pod.container.exit_code is not None:
        return _ending("container trainer", pod.container)
    if pod.init.exit_code is not None:
        return _ending(f"init container {pod.init.name}", pod.init)
    return " ".join(word for word in (f"phase {pod.phase}.", pod.reason, pod.message) if word)


def _ending(which: str, ended: ContainerSeen) -> str:
    reason = f" ({ended.exit_reason})" if ended.exit_reason else ""
    message = f": {ended.exit_message}" if ended.exit_message else "."
    return f"{which} exited with code {ended.exit_code}{reason}{message}"
