"""Requests of a job that no controller is seen to serve: queues, other schedulers, scheduling gates.

Derived from the job and its own pods alone, since the operator may not read objects of Kueue or of a
scheduler. So messages state what no pod shows, never that a controller does not exist.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ropeteam.api.rule import at
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label by which a job or pod requests a queue of Kueue."""
KUEUE = "kueue.x-k8s.io"
MANAGED = f"{KUEUE}/managed"
"""Label that Kueue sets on each pod that it queues."""
DEFAULT_SCHEDULER = "default-scheduler"
SILENT_SECONDS = 30
"""Seconds after which a scheduler that has reported on no pod counts as silent. One that runs reports within
a second or two; it may just be starting."""
_SCHEDULER_BY_PREFIX = {
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


def is_queue_or_gang_key(key: str) -> bool:
    """Whether a label or annotation of this name requests a queue or a gang."""
    return key == QUEUE or key.partition("/")[0] in _SCHEDULER_BY_PREFIX


def ignored_requests(view: View) -> tuple[tuple[str, str], ...]:
    """Requests without effect, each a reason and a message for the condition Degraded: pods run, or will, but
    not as requested. Empty: there are none."""
    found = (
        _ignored_queue_of_job(view),
        _ignored_queue_of_pods(view),
        _ignored_gang_keys(view),
        _ignored_scheduling_group(view),
    )
    return tuple(each for each in found if each is not None)


def _ignored_queue_of_job(view: View) -> tuple[str, str] | None:
    """Reason and message that the queue label of the TrainingJob itself has no effect. None: it has none."""
    queue = view.job.labels.get(QUEUE)
    if queue is None:
        return None
    return "QueueNameIgnored", (
        f"Label {QUEUE} of this TrainingJob (queue {queue}) has no effect: this release knows no integration "
        "of Kueue for kind TrainingJob, so no queue holds or admits the job. Remove the label; or put it "
        "into spec.template.metadata.labels, where Kueue's integration `pod` queues each pod by itself."
    )


def _ignored_queue_of_pods(view: View) -> tuple[str, str] | None:
    """Reason and message that the template's queue label has no effect. None: there is none, no pods exist
    yet, or Kueue manages one of them."""
    pods = _live_pods(view)
    if QUEUE not in _template_metadata(view, "labels") or not pods or any(pod.queued for pod in pods):
        return None
    return "QueueNameIgnored", (
        f"Label {QUEUE} in spec.template.metadata.labels has no effect: no pod of this job has Kueue's label "
        f"{MANAGED}, so none of them is queued. Enable Kueue's integration `pod` for namespace "
        f"{view.job.namespace}, or remove the label."
    )


def _ignored_gang_keys(view: View) -> tuple[str, str] | None:
    """Reason and message that labels or annotations request a gang, but all pods use the default scheduler.
    None otherwise. The pods count, not the template: a webhook may have set another scheduler."""
    pods = _live_pods(view)
    keys = {
        *view.job.labels,
        *view.job.annotations,
        *_template_metadata(view, "labels"),
        *_template_metadata(view, "annotations"),
    }
    requested = sorted(key for key in keys if is_queue_or_gang_key(key) and key != QUEUE)
    if not requested or not pods or not all(_uses_default_scheduler(pod) for pod in pods):
        return None
    readers = ", ".join(sorted({_SCHEDULER_BY_PREFIX[key.partition("/")[0]] for key in requested}))
    return "GangSchedulingIgnored", (
        f"Labels or annotations without effect: {', '.join(requested[:4])} (read by {readers}). The pods of "
        f"this job use the scheduler {DEFAULT_SCHEDULER}, which as shipped does not read them, so pods are "
        "scheduled one by one. Set spec.template.spec.schedulerName to the intended scheduler, or remove "
        "these labels and annotations."
    )


def _ignored_scheduling_group(view: View) -> tuple[str, str] | None:
    """Reason and message that the template names a group of Kubernetes' gang scheduling, and no pod has it.
    None otherwise."""
    pods = _live_pods(view)
    wanted = [name for name in ("schedulingGroup", "workloadRef") if at(view.spec.template, f"spec.{name}")]
    if not wanted or not pods or any(pod.grouped for pod in pods):
        return None
    return "GangSchedulingIgnored", (
        f"spec.template.spec.{wanted[0]} has no effect: the API server has dropped it from the pods, so this "
        "cluster has no such field (it depends on the release of Kubernetes and the feature gate "
        "GenericWorkload). Pods are scheduled one by one. Remove the field, or enable the gate."
    )


def _template_metadata(view: View, part: str) -> dict[str, object]:
    """Labels or annotations (`part`) of spec.template; empty if they are of another type."""
    found = at(view.spec.template, f"metadata.{part}")
    return found if isinstance(found, dict) else {}


def _live_pods(view: View) -> list[PodSeen]:
    """Current pods of the slots that are not terminating. The coordinator's pod is no user's request."""
    return [pod for pod in view.workers.values() if not pod.deleting]


def _uses_default_scheduler(pod: PodSeen) -> bool:
    """Whether the pod names the default scheduler, or none yet."""
    return pod.scheduler in ("", DEFAULT_SCHEDULER)


def gates_message(view: View) -> str:
    """Message about the scheduling gates that pods wait for, and what removes them. Empty: no pod waits."""
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


def scheduler_silent_at(view: View) -> datetime | None:
    """Time from which on a scheduler other than the default one counts as silent: SILENT_SECONDS after the
    first creation of a pod that names it, by the API server's clock. It may be in the future.

    None: no pod names one, or it has reported on one of them, or bound one."""
    pods = [pod for pod in _live_pods(view) if not _uses_default_scheduler(pod)]
    created = [pod.created for pod in pods if pod.created is not None]
    if not created or any(pod.node or pod.scheduled for pod in pods):
        return None
    return min(created) + timedelta(seconds=SILENT_SECONDS)


def silent_scheduler_message(view: View) -> str:
    """Message that no scheduler of the name in the pods seems to run. Empty: it is not silent, or not yet."""
    due = scheduler_silent_at(view)
    if due is None or view.now < due:
        return ""
    names = sorted({pod.scheduler for pod in _live_pods(view) if not _uses_default_scheduler(pod)})
    return (
        f"No pod of this job has got a node, or a scheduler's message, for {SILENT_SECONDS} s: no scheduler "
        f"named {', '.join(names)} seems to run. Start it; or set spec.suspend to true, correct "
        "spec.template.spec.schedulerName, and resume."
    )
