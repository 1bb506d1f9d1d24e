"""Requests of a job that no controller is seen to serve: queues, other schedulers, scheduling gates.

Derived from the job and its own pods alone, since the operator may not read objects of Kueue or of a
scheduler. So the sentences state what was looked for and not seen, never that there is no such thing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ropeteam.api.rule import at
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View

QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "kueue.x-k8s.io"
MANAGED = f"{KUEUE}/managed"
"""Label that Kueue sets on each pod that it queues."""
DEFAULT_SCHEDULER = "default-scheduler"
SILENT_SECONDS = 30
"""Schedulers report within a second or two why a pod has no node; but one may just be starting."""
_SCHEDULERS = {
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
"""Scheduler that reads a label or annotation, by its prefix. kube-scheduler reads none of them."""


def is_request(key: str) -> bool:
    """Whether a label or annotation of this name requests a queue or a gang."""
    return key == QUEUE or key.partition("/")[0] in _SCHEDULERS


def of_labels(view: View) -> tuple[tuple[str, str], ...]:
    """Requests without effect, a reason and a message each: pods run, or will, but not as requested."""
    found = (_queue_of_job(view), _queue_of_pods(view), _gang(view), _scheduling_group(view))
    return tuple(each for each in found if each is not None)


def _queue_of_job(view: View) -> tuple[str, str] | None:
    queue = view.job.labels.get(QUEUE)
    if queue is None:
        return None
    return "QueueNameIgnored", (
        f"Label {QUEUE} of this TrainingJob (queue {queue}) has no effect: this release knows no integration "
        "of Kueue for kind TrainingJob, so no queue holds or admits the job. Remove the label; or put it "
        "into spec.template.metadata.labels, where Kueue's integration `pod` queues each pod by itself."
    )


def _queue_of_pods(view: View) -> tuple[str, str] | None:
    pods = _live_pods(view)
    if QUEUE not in _template_metadata(view, "labels") or not pods or any(pod.queued for pod in pods):
        return None
    return "QueueNameIgnored", (
        f"Label {QUEUE} in spec.template.metadata.labels has no effect: no pod of this job has Kueue's label "
        f"{MANAGED}, so none of them is queued. Enable Kueue's integration `pod` for namespace "
        f"{view.job.namespace}, or remove the label."
    )


def _gang(view: View) -> tuple[str, str] | None:
    """Gang request without a scheduler that serves it, by the pods: a webhook may have set another one."""
    pods = _live_pods(view)
    keys = {
        *view.job.labels,
        *view.job.annotations,
        *_template_metadata(view, "labels"),
        *_template_metadata(view, "annotations"),
    }
    requested = sorted(key for key in keys if is_request(key) and key != QUEUE)
    if not requested or not pods or not all(_is_default(pod) for pod in pods):
        return None
    readers = ", ".join(sorted({_SCHEDULERS[key.partition("/")[0]] for key in requested}))
    return "GangSchedulingIgnored", (
        f"{', '.join(requested[:4])}: read by {readers}, but the pods of this job use the scheduler "
        f"{DEFAULT_SCHEDULER}, which does not read these as shipped: pods are scheduled one by one. Set "
        "spec.template.spec.schedulerName to the intended scheduler, or remove these labels and annotations."
    )


def _scheduling_group(view: View) -> tuple[str, str] | None:
    pods = _live_pods(view)
    wanted = [name for name in ("schedulingGroup", "workloadRef") if at(view.spec.template, f"spec.{name}")]
    if not wanted or not pods or any(pod.grouped for pod in pods):
        return None
    return "GangSchedulingIgnored", (
        f"spec.template.spec.{wanted[0]} has no effect: the API server has dropped it from the pods, so this "
        "cluster has no such field (it depends on the release of Kubernetes and the feature gate "
        "GenericWorkload): pods are scheduled one by one. Remove it, or enable the gate."
    )


def _template_metadata(view: View, part: str) -> dict[str, object]:
    found = at(view.spec.template, f"metadata.{part}")
    return found if isinstance(found, dict) else {}


def _live_pods(view: View) -> list[PodSeen]:
    return [pod for pod in view.workers.values() if not pod.deleting]


def _is_default(pod: PodSeen) -> bool:
    return pod.scheduler in ("", DEFAULT_SCHEDULER)


def gates(view: View) -> str:
    """Message: the gates that pods wait for, and the controller that removes them. Empty: no gates."""
    pods = _live_pods(view)
    gated = [pod for pod in pods if pod.gates and not pod.node]
    if not gated:
        return ""
    names = sorted({gate for pod in gated for gate in pod.gates})
    others = [name for name in names if not name.startswith(f"{KUEUE}/")]
    text = (
        f"{len(gated)} of {len(pods)} workers have scheduling gates ({', '.join(names)}): no pod is "
        "scheduled before all of its gates are removed."
    )
    if len(others) < len(names):
        look = f"kubectl get workloads -n {view.job.namespace}"
        text += f" Kueue removes its own when a queue admits the pod (see {look})."
    if others:
        text += (
            f" Ropeteam removes none: the owner of {', '.join(others)} (spec.template.spec.schedulingGates, "
            "or an admission webhook) must remove them, from these pods and from each replacement."
        )
    return text


def silent_at(view: View) -> datetime | None:
    """Time at which the scheduler that the pods name, if not the default one, has reported on none of them
    for SILENT_SECONDS, by the clock of the API server. None: it has reported."""
    pods = [pod for pod in _live_pods(view) if not _is_default(pod)]
    created = [pod.created for pod in pods if pod.created is not None]
    if not created or any(pod.node or pod.scheduled for pod in pods):
        return None
    return min(created) + timedelta(seconds=SILENT_SECONDS)


def silent(view: View) -> str:
    """Message that no scheduler of that name seems to run. Empty: not for so long yet, or it has reported."""
    due = silent_at(view)
    if due is None or view.now < due:
        return ""
    names = sorted({pod.scheduler for pod in _live_pods(view) if not _is_default(pod)})
    return (
        f"No pod of this job has got a node, or a scheduler's message, for {SILENT_SECONDS} s: no scheduler "
        f"named {', '.join(names)} seems to run. Check it, or suspend the job and correct "
        "spec.template.spec.schedulerName."
    )


def resumption(view: View) -> str:
    """Message: how a suspension is lifted."""
    text = (
        f"No pod runs. Set spec.suspend to false to resume: kubectl patch tj {view.job.name} "
        f'-n {view.job.namespace} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    queue = view.job.labels.get(QUEUE)
    if queue is None:
        return text
    return f"{text} (Queue {queue}, of the label {QUEUE}, does not resume it: see the condition Degraded.)"
