"""What a job asks for and nobody is seen to serve: queues, other schedulers, gates of pods.

Judged from the job and its own pods alone, since the operator may not read what belongs to Kueue or to a
scheduler. So the sentences say what was looked for and not seen, never that there is no such thing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ropeteam.api.rule import at
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View

QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "kueue.x-k8s.io"
MANAGED = f"{KUEUE}/managed"
"""The label that Kueue gives to each pod that it queues."""
DEFAULT_SCHEDULER = "default-scheduler"
SILENT_SECONDS = 30
"""Schedulers say within a second or two why a pod has no node; but a cluster may just be starting one."""
_READERS = {
    "scheduling.k8s.io": "Volcano",
    "scheduling.volcano.sh": "Volcano",
    "volcano.sh": "Volcano",
    "pod-group.scheduling.sigs.k8s.io": "the coscheduling plugin",
    "scheduling.x-k8s.io": "the coscheduling plugin",
    "gang.scheduling.koordinator.sh": "Koordinator",
    "kai.scheduler": "KAI Scheduler",
    "runai": "KAI Scheduler",
    "yunikorn.apache.org": "YuniKorn",
}
"""By the prefix of a label or annotation: which scheduler reads it. kube-scheduler reads none of them."""


def asks(key: str) -> bool:
    """Whether a label or annotation of this name asks for a queue or a gang."""
    return key == QUEUE or key.partition("/")[0] in _READERS


def of_labels(view: View) -> tuple[tuple[str, str], ...]:
    """What has no effect, as a word and a sentence each: pods run, or will, but not as was asked for."""
    found = (_queue_of_job(view), _queue_of_pods(view), _gang(view), _group(view))
    return tuple(each for each in found if each is not None)


def _queue_of_job(view: View) -> tuple[str, str] | None:
    queue = view.job.labels.get(QUEUE)
    if queue is None:
        return None
    return "QueueNotServed", (
        f"Label {QUEUE} of this TrainingJob (queue {queue}) has no effect: no integration of Kueue for kind "
        "TrainingJob is known to this release, so no queue holds the job back or lets it start. Remove the "
        "label; or put it into spec.template.metadata.labels, where Kueue's integration `pod` queues each "
        "pod by itself."
    )


def _queue_of_pods(view: View) -> tuple[str, str] | None:
    pods = _living(view)
    if QUEUE not in _template(view, "labels") or not pods or any(pod.queued for pod in pods):
        return None
    return "QueueNotServed", (
        f"Label {QUEUE} in spec.template.metadata.labels has no effect: no pod of this job has Kueue's label "
        f"{MANAGED}, so none of them is queued. Enable Kueue's integration `pod` for namespace "
        f"{view.job.namespace}, or remove the label."
    )


def _gang(view: View) -> tuple[str, str] | None:
    """Judged by the pods: a webhook may have given them another scheduler than the template names."""
    pods = _living(view)
    keys = {
        *view.job.labels,
        *view.job.annotations,
        *_template(view, "labels"),
        *_template(view, "annotations"),
    }
    asked = sorted(key for key in keys if asks(key) and key != QUEUE)
    if not asked or not pods or not all(_is_default(pod) for pod in pods):
        return None
    readers = ", ".join(sorted({_READERS[key.partition("/")[0]] for key in asked}))
    return "GangSchedulingNotServed", (
        f"{', '.join(asked[:4])}: read by {readers}, while the pods of this job are for the scheduler "
        f"{DEFAULT_SCHEDULER}, which as Kubernetes ships it reads none of that: pods get nodes one by one. "
        "Set spec.template.spec.schedulerName to the scheduler that is meant, or remove what is for it."
    )


def _group(view: View) -> tuple[str, str] | None:
    pods = _living(view)
    wanted = [name for name in ("schedulingGroup", "workloadRef") if at(view.spec.template, f"spec.{name}")]
    if not wanted or not pods or any(pod.grouped for pod in pods):
        return None
    return "GangSchedulingNotServed", (
        f"spec.template.spec.{wanted[0]} has no effect: the API server has dropped it from the pods, so this "
        "cluster has no such field (it depends on the release of Kubernetes and the feature gate "
        "GenericWorkload): pods get nodes one by one. Remove it, or enable the gate."
    )


def _template(view: View, part: str) -> dict[str, object]:
    found = at(view.spec.template, f"metadata.{part}")
    return found if isinstance(found, dict) else {}


def _living(view: View) -> list[PodSeen]:
    return [pod for pod in view.workers.values() if not pod.deleting]


def _is_default(pod: PodSeen) -> bool:
    return pod.scheduler in ("", DEFAULT_SCHEDULER)


def gates(view: View) -> str:
    """Why pods with scheduling gates wait, and who removes them. Empty: none has any."""
    pods = _living(view)
    gated = [pod for pod in pods if pod.gates and not pod.node]
    if not gated:
        return ""
    names = sorted({gate for pod in gated for gate in pod.gates})
    others = [name for name in names if not name.startswith(f"{KUEUE}/")]
    told = (
        f"{len(gated)} of {len(pods)} workers have scheduling gates ({', '.join(names)}): no scheduler looks "
        "at a pod before all of them are removed."
    )
    if len(others) < len(names):
        look = f"kubectl get workloads -n {view.job.namespace}"
        told += f" Kueue removes its own when a queue admits the pod (see {look})."
    if others:
        told += (
            f" Ropeteam removes none: who has set {', '.join(others)} (spec.template.spec.schedulingGates, "
            "or an admission webhook) has to, from these pods and from each that replaces one."
        )
    return told


def silent_at(view: View) -> datetime | None:
    """When the scheduler that the pods name, if it is not the default one, has been silent about all of them
    for SILENT_SECONDS, by the clock of the API server. None: it has spoken."""
    pods = [pod for pod in _living(view) if not _is_default(pod)]
    made = [pod.created for pod in pods if pod.created is not None]
    if not made or any(pod.node or pod.scheduled for pod in pods):
        return None
    return min(made) + timedelta(seconds=SILENT_SECONDS)


def silent(view: View) -> str:
    """That no scheduler of that name seems to run. Empty: not for so long, or it has spoken."""
    due = silent_at(view)
    if due is None or view.now < due:
        return ""
    names = sorted({pod.scheduler for pod in _living(view) if not _is_default(pod)})
    return (
        f"No pod of this job has got a node, or a word why not, for {SILENT_SECONDS} s: no scheduler named "
        f"{', '.join(names)} seems to run. See to it, or suspend the job and correct "
        "spec.template.spec.schedulerName."
    )


def resumption(view: View) -> str:
    """Who lifts a suspension."""
    told = (
        f"No pod runs. Set spec.suspend to false to go on: kubectl patch tj {view.job.name} "
        f'-n {view.job.namespace} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    queue = view.job.labels.get(QUEUE)
    if queue is None:
        return told
    return f"{told} (Queue {queue}, of the label {QUEUE}, is not known to do it: see the condition Degraded.)"
