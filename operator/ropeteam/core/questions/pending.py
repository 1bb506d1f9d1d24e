"""Whether a started job runs, and if not, why not: Kubernetes' own message, then what the job requests.

One place builds the conditions Running, Recovering and Stalled of a live job, its text in the column
STATE, and the answer that holds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.api.claims import claims
from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import GPU
from ropeteam.api.status import JobStatus
from ropeteam.core.objects import policy
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.answer import Answer
from ropeteam.core.seen import names, previouscoordinators, unservedrequests
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role
from ropeteam.core.seen.view import View
from ropeteam.core.status.conditions import NOT_SUSPENDED, ConditionFact
from ropeteam_trainer.contract import SIGNED, VERSION
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import Stage, WorldPhase
from ropeteam_trainer.contract.fence import longest_life

_RUNNING_PHASES = frozenset(
    {WorldPhase.RUNNING, WorldPhase.DRAINING, WorldPhase.COMPLETING, WorldPhase.COMPLETE}
)
_BEFORE_THE_FIRST_STEP = frozenset(
    stage.value for stage in Stage if stage not in (Stage.UNKNOWN, Stage.TRAINING)
)
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_ALL_TRAIN = "All workers train together."
MOUNTING = frozenset({"ContainerCreating", "PodInitializing"})
"""Waiting reasons of a container: for a volume that its pod mounts, or for its image."""
UNREACHED_SECONDS = 60
"""A coordinator whose pod runs answers within seconds."""
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True)
class Reason:
    """A reason why the job does not run. `stalled`: it will not run by itself."""

    reason: str
    message: str
    stalled: bool = False


def is_running(view: View) -> bool:
    """Whether there is a world, as far as is known. While the coordinator does not answer, or has just
    booted, the world counts as unchanged: for as long as workers can be without a coordinator."""
    report = view.report
    if report is None or report.phase is WorldPhase.WAITING:
        return was_running(view) and not is_unknown(view)
    return report.phase in _RUNNING_PHASES


def was_running(view: View) -> bool:
    """Whether there was a world when status was saved."""
    saved = view.status.condition(ConditionType.RUNNING)
    return saved is not None and (saved.holds or saved.reason in _BEFORE_THE_FIRST_STEP)


def is_training(view: View) -> bool:
    """Whether the job runs, and was observed to make steps."""
    report = view.report
    if report is None or report.phase is WorldPhase.WAITING:
        return is_running(view) and view.status.holds(ConditionType.RUNNING)
    return is_running(view) and report.stage.value not in _BEFORE_THE_FIRST_STEP


def is_unknown(view: View) -> bool:
    """The coordinator has not answered for so long that without it every worker has ended its ranks."""
    limit = longest_life(view.spec.recovery.fence_seconds)
    return view.report is None and view.has_passed(view.status.coordinator_unreachable_start_time, limit)


def is_recovering(view: View, status: JobStatus) -> bool:
    """Whether a job that does not train did before in this attempt, or has had an incident since."""
    if is_training(view):
        return False
    was = view.status.holds(ConditionType.RUNNING) or view.status.holds(ConditionType.RECOVERING)
    known = {each.id for each in view.status.incidents}
    return was or any(each.id not in known for each in status.incidents)


def live_state(view: View, status: JobStatus) -> str:
    if is_training(view):
        return "Running"
    if is_recovering(view, status):
        return "Recovering"
    running = sum(pod.container.running for pod in view.workers.values())
    return "Starting" if running == len(status.slots) else "Pending"


def live_answer(view: View, status: JobStatus, why: str, actions: tuple[Action, ...] = ()) -> Answer:
    """The answer for a job that was started and has not ended."""
    return Answer(why, status, live_state(view, status), live_facts(view, status), actions)


def live_facts(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Conditions of a job that was started and has not ended."""
    running = _running_fact(view)
    recovering = is_recovering(view, status)
    last = status.incidents[-1] if status.incidents else None
    cause = last.cause if last is not None and recovering else "NotRecovering"
    facts = (
        NOT_SUSPENDED,
        running,
        ConditionFact(
            ConditionType.RECOVERING, recovering, cause, last.message if last and recovering else ""
        ),
    )
    obstacle = _reported_obstacle(view) or (None if is_running(view) else worst_obstacle(view))
    if obstacle is not None and obstacle.stalled:
        return (*facts, ConditionFact(ConditionType.STALLED, True, obstacle.reason, obstacle.message))
    return facts


def _running_fact(view: View) -> ConditionFact:
    return _trains_fact(view) if is_training(view) else _waits_fact(view)


def _trains_fact(view: View) -> ConditionFact:
    report, pod = view.report, view.coordinator
    away = bool(view.seen.report_error) or pod is None or not pod.container.running
    if away and report is None:
        return ConditionFact(
            ConditionType.RUNNING, True, "CoordinatorUnreachable", _unreachable_message(view)
        )
    if report is not None and report.phase is WorldPhase.WAITING:
        return ConditionFact(
            ConditionType.RUNNING, True, "CoordinatorRestarted", _adoption_message(report.why)
        )
    if report is not None and report.phase is WorldPhase.COMPLETING:
        return ConditionFact(ConditionType.RUNNING, True, "WorldCompleting", report.why)
    if report is not None and report.lag_seconds:
        return ConditionFact(
            ConditionType.RUNNING, True, "CoordinatorOverloaded", _late_message(view, report.lag_seconds)
        )
    if pod is not None and pod.contract < SIGNED:
        return ConditionFact(ConditionType.RUNNING, True, "CoordinatorOutdated", _unsigned_message(view, pod))
    return ConditionFact(ConditionType.RUNNING, True, "WorldRunning", _running_message(view))


def _waits_fact(view: View) -> ConditionFact:
    """The condition Running, with what the first step waits for."""
    report, saved = view.report, view.status.condition(ConditionType.RUNNING)
    if is_running(view):
        reason, message = (saved.reason, saved.message) if saved else ("", "")
        if report is not None:
            reason, message = report.stage.value or reason, report.why
        return ConditionFact(ConditionType.RUNNING, False, reason, message)
    if (obstacle := worst_obstacle(view)) is not None:
        return ConditionFact(ConditionType.RUNNING, False, obstacle.reason, obstacle.message)
    if report is not None:
        return ConditionFact(ConditionType.RUNNING, False, "WorldForming", report.why)
    return ConditionFact(ConditionType.RUNNING, False, "PodsStarting", "Pods are being created and started.")


def _running_message(view: View) -> str:
    has_notice = view.report is not None and view.report.notice is not None
    return "All workers run, but see the condition Degraded." if has_notice else _ALL_TRAIN


def _unreachable_message(view: View) -> str:
    """Message of what is known, what is not, and what can be done."""
    since, fence = (
        view.status.coordinator_unreachable_start_time or view.now,
        view.spec.recovery.fence_seconds,
    )
    intro = f"The operator has not reached the job's coordinator since {since:%Y-%m-%d %H:%M:%S} UTC."
    if not is_unknown(view):
        return (
            f"{intro} Whether training continues is unknown: workers continue for {fence} s after their "
            "coordinator's last answer."
        )
    name = names.coordinator(view.job.name, view.status.coordinator.term)
    return (
        f"{intro} If it does not answer the workers either, each has ended its ranks by now, and the kubelet "
        "restarts the coordinator. If only the operator cannot reach it (network policy?), training may "
        f"continue. To replace its pod: kubectl delete pod -n {view.job.namespace} {name}"
    )


def _late_message(view: View, seconds: int) -> str:
    pod, node = names.coordinator(view.job.name, view.status.coordinator.term), view.status.coordinator.node
    return (
        f"{_running_message(view)} Their coordinator does not keep up: it was late by up to {seconds} s, "
        "and recovery from a fault takes as much longer. No worker counts as lost because of that. If this "
        f"persists, pod {pod} gets too little CPU time on node {node}."
    )


def _unsigned_message(view: View, pod: PodSeen) -> str:
    return (
        f"{_running_message(view)} Their coordinator is of an earlier release (contract {pod.contract}, "
        f"this one has {VERSION}). Messages between it and the operator are not signed: anyone with access "
        "to that traffic can replay or forge them. The job continues. To give it a coordinator of this "
        f"release, which adopts the running world: kubectl delete pod -n {view.job.namespace} {pod.name}"
    )


def _adoption_message(why: str) -> str:
    return f"The coordinator has restarted and is {why}. Until then it is unknown whether training continues."


def _reported_obstacle(view: View) -> Reason | None:
    """Obstacle that the coordinator reports, and against which it tries again and again."""
    stalled = view.report.stalled if view.report else None
    return Reason(stalled.reason.value, stalled.message, stalled=True) if stalled else None


def worst_obstacle(view: View) -> Reason | None:
    """The worst obstacle that keeps pods from running. The same message of all pods is given once."""
    pods = [pod for pod in (*view.workers.values(), view.coordinator) if pod is not None and not pod.deleting]
    return (
        _policy_refused(view)
        or _unscheduled(view, pods)
        or _stuck_container(pods)
        or _secret_missing(view, pods)
        or _unreachable(view)
        or _previous_coordinator(view)
        or _secret_mounting(view, pods)
        or _initializing(view, pods)
    )


def _policy_refused(view: View) -> Reason | None:
    refusal = view.seen.policy.refusal
    if not refusal or not policy.blocks_gang_start(view):
        return None
    return Reason(
        "NetworkPolicyRefused", f"The job's NetworkPolicy cannot be created: {refusal}.", stalled=True
    )


def _previous_coordinator(view: View) -> Reason | None:
    """The world waits only for proof that a previous coordinator has ended."""
    report, message = view.report, previouscoordinators.message(view)
    if not message or report is None or report.phase is not WorldPhase.FORMING:
        return None
    return Reason("PreviousCoordinatorMayRun", message, stalled=previouscoordinators.needs_confirmation(view))


def _unscheduled(view: View, pods: list[PodSeen]) -> Reason | None:
    for reason, found in (
        ("SchedulingGated", unservedrequests.gates(view)),
        ("SchedulerNotResponding", unservedrequests.silent(view)),
    ):
        if found:
            return Reason(reason, found, stalled=True)
    waiting = [pod for pod in pods if not pod.node and pod.scheduled_message]
    if not waiting:
        return None
    text = waiting[0].scheduled_message
    volume = "persistentvolumeclaim" in text.lower()
    fix = _claim_fix(view, text) if volume else _requests(view)
    message = f"{len(waiting)} of {len(pods)} pods wait for a node. The scheduler reports: {text} {fix}"
    return Reason("VolumeClaimNotBound" if volume else "Unschedulable", message, stalled=True)


def _claim_fix(view: View, text: str) -> str:
    """Fix of a claim. The scheduler names one that does not exist; of an unbound one it reports only that."""
    requested = claims(view.seen.spec)
    missing = next((name for name in requested if f'"{name}"' in text), None)
    if missing is not None:
        return f"{requested[missing]} requires it: create the claim {missing}, or correct its name there."
    named = "; ".join(f"{name} ({field})" for name, field in requested.items())
    look = f"for the reason: kubectl describe pvc -n {view.job.namespace}"
    return f"The job's claims: {named or 'none'}; {look}"


def _requests(view: View) -> str:
    """Resources that the whole job requests, to be compared with those of the cluster."""
    spec = view.spec
    resources = spec.resources or {}
    requested: dict[str, object] = {}
    for part in (resources.get("limits"), resources.get("requests")):
        requested |= part if isinstance(part, dict) else {}
    if spec.gpus_per_worker:
        requested[GPU] = spec.gpus_per_worker
    per_worker = ", ".join(f"{amount} {name}" for name, amount in sorted(requested.items()))
    slots = len(view.status.slots)
    if not per_worker:
        return f"This job requests {slots} pods."
    servers = f", and {spec.servers} parameter servers" if spec.servers else ""
    return f"This job requests {slots - spec.servers} x ({per_worker}){servers}."


def _stuck_container(pods: list[PodSeen]) -> Reason | None:
    for pod in pods:
        for container in (pod.init, pod.container):
            reason, prefix = container.waiting_reason, _prefix(container)
            if reason in _IMAGE_REASONS:
                return Reason("ImagePullFailed", _image_message(pod, container), stalled=True)
            if reason in _CONFIG_REASONS:
                text = f"{container.waiting_message or reason}. Correct what the pod refers to."
                return Reason("ContainerConfigError", f"Pod {pod.name}: {prefix}{text}", stalled=True)
            if reason == "CrashLoopBackOff":
                command = f"kubectl logs {pod.name}{f' -c {container.name}' if prefix else ''}"
                message = f"Pod {pod.name}: {prefix}exits again and again: see `{command}`."
                return Reason("CrashLoopBackOff", message, stalled=True)
    return None


def _prefix(container: ContainerSeen) -> str:
    return f"init container {container.name}: " if container.name else ""


def _initializing(view: View, pods: list[PodSeen]) -> Reason | None:
    """An init container of the user that takes its time, and is no part of the training."""
    pod = next((each for each in pods if each.init.running), None)
    if pod is None:
        return None
    message = (
        f"Pod {pod.name}: {_prefix(pod.init)}running; the trainer starts after it has ended: "
        f"kubectl logs -n {view.job.namespace} {pod.name} -c {pod.init.name}"
    )
    return Reason("PodsStarting", message)


def _signing_secret(view: View, pods: list[PodSeen]) -> tuple[str, list[ContainerSeen]]:
    """Name of the job's Secret of keys, and containers that may wait for it."""
    signing = view.spec.checkpoint.signing if view.spec.checkpoint else None
    workers = (pod.container for pod in pods if pod.role is not Role.COORDINATOR)
    waiting = [each for each in workers if signing and each.waiting_reason in MOUNTING]
    return signing.secret_name if signing else "", waiting


def _secret_missing(view: View, pods: list[PodSeen]) -> Reason | None:
    name, waiting = _signing_secret(view, pods)
    message = next((each.waiting_message for each in waiting if f'"{name}"' in each.waiting_message), "")
    fix = "Create it, or correct spec.checkpoint.signing.secretName."
    return Reason("SecretNotFound", f"{message}. {fix}", stalled=True) if message else None


def _secret_mounting(view: View, pods: list[PodSeen]) -> Reason | None:
    """Containers that may wait for the Secret. Most kubelets report a failed mount in events alone."""
    name, waiting = _signing_secret(view, pods)
    if not waiting:
        return None
    message = (
        f"Pods are being created and started. They mount Secret {name} (spec.checkpoint.signing.secretName), "
        f"and wait until it exists: kubectl get secret -n {view.job.namespace} {name}"
    )
    return Reason("PodsStarting", message)


def _image_message(pod: PodSeen, container: ContainerSeen) -> str:
    fix = "Correct spec.image."
    if pod.role is Role.COORDINATOR:
        fix = "Set the operator's image so that this cluster can pull it."
    elif container is pod.init:
        fix = "Correct its image in spec.template."
    return (
        f"Pod {pod.name}: {_prefix(container)}{container.waiting_message or container.waiting_reason}. {fix}"
    )


def _unreachable(view: View) -> Reason | None:
    pod = view.coordinator
    if view.report is not None or not view.seen.report_error or pod is None or not pod.container.running:
        return None
    if is_unknown(view):
        return Reason("CoordinatorUnreachable", _unreachable_message(view), stalled=True)
    late = view.has_passed(view.status.coordinator_unreachable_start_time, UNREACHED_SECONDS)
    message = "The coordinator's pod runs but does not answer the operator yet."
    return Reason("CoordinatorUnreachable", _unreached_message(view, pod) if late else message, late)


def _unreached_message(view: View, pod: PodSeen) -> str:
    namespace, service = view.job.namespace, names.service(view.job.name)
    return (
        f"The operator has not reached the job's coordinator for {UNREACHED_SECONDS} s, and no world can "
        f"form until it does: Service {service}, port {COORDINATOR_HTTP_PORT}: {view.seen.report_error}. "
        f"Check that no NetworkPolicy of namespace {namespace} blocks the operator. For the coordinator's "
        f"log: kubectl logs -n {namespace} {pod.name}"
    )
