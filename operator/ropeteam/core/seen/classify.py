"""The class of each pod of a job, and the cause of a pod's end, by Kubernetes' evidence alone. How ranks
exited is in the coordinator's report.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ropeteam.core.seen import names
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role
from ropeteam_trainer.contract.world import Cause


class PodClass(StrEnum):
    """Classes of pods. Every pod is in exactly one."""

    CURRENT = "Current"
    """The pod that status names: this incarnation of a slot, or the coordinator of this term."""
    SUPERSEDED = "Superseded"
    """An earlier incarnation or term: to be deleted."""
    AHEAD = "Ahead"
    """A later one than in status: this status is stale, or was restored from a backup of etcd. To be left
    alone until status has it too; a write based on a stale copy is refused."""
    FOREIGN = "Foreign"
    """A name that does not fit the labels: not created by us, never touched."""


def pod_class(pod: PodSeen, job: str, incarnations: Mapping[int, int], term: int) -> PodClass:
    """The class of a pod. `job`: its name; `incarnations` by slot, and `term`: as saved in status. Pods of
    slots that status does not have are of a larger attempt before it or after it."""
    if pod.role is Role.COORDINATOR:
        if pod.name != names.coordinator(job, pod.term):
            return PodClass.FOREIGN
        return _class_by_number(pod.term, term)
    if pod.name != names.worker(job, pod.slot, pod.incarnation):
        return PodClass.FOREIGN
    if pod.slot in incarnations:
        return _class_by_number(pod.incarnation, incarnations[pod.slot])
    highest = max(incarnations.values(), default=0)  # a new attempt with more slots begins above all of these
    return PodClass.AHEAD if pod.incarnation > highest else PodClass.SUPERSEDED


def _class_by_number(found: int, expected: int) -> PodClass:
    """The class by the pod's incarnation or term, and the one in status."""
    if found == expected:
        return PodClass.CURRENT
    return PodClass.SUPERSEDED if found < expected else PodClass.AHEAD


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
"""Values of PodSeen.reason (status.reason, or the reason of the condition DisruptionTarget) of a pod that had
to make place."""
LOST_NODES = frozenset({"NodeLost", "DeletionByPodGC"})
"""Values of PodSeen.reason of a pod whose node is gone."""


def finished_cleanly(pod: PodSeen) -> bool:
    """Whether the trainer container exited 0. Agents do that on the order `release` only, so the job is
    complete. Without an exit code the pod's phase decides."""
    code = pod.container.exit_code
    return code == 0 or (code is None and pod.phase == "Succeeded")


def is_proven_stopped(pod: PodSeen) -> bool:
    """Whether none of the pod's processes can write a checkpoint any more: the trainer's container has
    exited, or can never have started, because the pod has no node or an init container failed."""
    return pod.container.exit_code is not None or not pod.node or pod.init.exit_code not in (None, 0)


def is_end_reported(pod: PodSeen) -> bool:
    """Whether the kubelet reported that the pod has ended for good: a terminal phase with an exit code. The
    phase alone is no proof: the pod garbage collector sets it for pods of lost nodes, too."""
    terminal = pod.phase in ("Succeeded", "Failed") and pod.reason not in LOST_NODES
    return terminal and pod.container.exit_code is not None


def cause_and_message(pod: PodSeen | None) -> tuple[Cause, str]:
    """Cause of the loss of a worker pod, and a sentence for people. `pod` None: its object is gone. First
    match wins: strong evidence, a deletion, then an end by itself."""
    if pod is None:
        return Cause.POD_DELETED, "The slot's pod was deleted."
    evidence = strong_evidence(pod)
    if evidence is not None:
        return evidence
    if pod.deleting:
        return Cause.POD_DELETED, f"Pod {pod.name} was deleted."
    return Cause.POD_FAILED, f"Pod {pod.name} ended: {exit_description(pod)}"


def strong_evidence(pod: PodSeen) -> tuple[Cause, str] | None:
    """Cause and sentence that hold even if the operator has deleted the pod since; None: there are none.
    First match wins: eviction, a lost node, an OOM kill."""
    if pod.reason in EVICTIONS:
        return Cause.EVICTED, f"Pod {pod.name} was evicted ({pod.reason}). {pod.message}".strip()
    if pod.node_lost or pod.reason in LOST_NODES:
        return Cause.NODE_LOST, f"Node {pod.node or 'of the pod'} is lost, and pod {pod.name} with it."
    if pod.container.exit_reason == "OOMKilled":
        message = "it used more memory than its limit or its node has; raise spec.resources.limits.memory"
        return Cause.OUT_OF_MEMORY, f"Pod {pod.name} was killed: {message}."
    return None


def exit_description(pod: PodSeen) -> str:
    """How the pod's trainer container, or else an init container, exited; without an exit code: phase, reason
    and message of the pod."""
    if pod.container.exit_code is not None:
        return _exit_text("container trainer", pod.container)
    if pod.init.exit_code is not None:
        return _exit_text(f"init container {pod.init.name}", pod.init)
    return " ".join(part for part in (f"phase {pod.phase}.", pod.reason, pod.message) if part)


def _exit_text(container: str, terminated: ContainerSeen) -> str:
    reason = f" ({terminated.exit_reason})" if terminated.exit_reason else ""
    message = f": {terminated.exit_message}" if terminated.exit_message else "."
    return f"{container} exited with code {terminated.exit_code}{reason}{message}"
