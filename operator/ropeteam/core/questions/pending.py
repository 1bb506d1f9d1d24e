"""Whether a started job runs, and if not, what keeps it from running: an obstacle, with Kubernetes' own
message first.

Running: there is a world. Training: that world makes steps. What follows from both: live.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.api.claims import claims
from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import GPU
from ropeteam.api.status import JobStatus
from ropeteam.core.objects import policy
from ropeteam.core.seen import names, previouscoordinators, unservedrequests
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role
from ropeteam.core.seen.view import View
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import Stage, WorldPhase
from ropeteam_trainer.contract.fence import longest_life

_RUNNING_PHASES = frozenset(
    {WorldPhase.RUNNING, WorldPhase.DRAINING, WorldPhase.COMPLETING, WorldPhase.COMPLETE}
)
_BEFORE_THE_FIRST_STEP = frozenset(
    stage.value for stage in Stage if stage not in (Stage.UNKNOWN, Stage.TRAINING)
)
"""Stages of a world on its way to its first step. Each is also the reason of Running=False then."""
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
MOUNTING = frozenset({"ContainerCreating", "PodInitializing"})
"""Waiting reasons of a container whose pod mounts volumes, or whose image is pulled."""
_UNREACHED_SECONDS = 60
"""Time without an answer after which a coordinator whose pod runs stalls the job: most answer in seconds."""
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True)
class Obstacle:
    """Something that keeps the job from running. `reason` and `message`: as in a condition."""

    reason: str
    message: str
    stalled: bool = False
    """Whether somebody has to act: the condition Stalled is True with this reason."""


def is_running(view: View) -> bool:
    """Whether there is a world, also one before its first step.

    While the coordinator does not answer, or has just booted, the world of the saved status counts as
    unchanged, until `is_training_unknown`."""
    report = view.report
    if report is None or report.phase is WorldPhase.WAITING:
        return was_running(view) and not is_training_unknown(view)
    return report.phase in _RUNNING_PHASES


def was_running(view: View) -> bool:
    """Whether there was a world when status was saved."""
    saved = view.status.condition(ConditionType.RUNNING)
    return saved is not None and (saved.holds or saved.reason in _BEFORE_THE_FIRST_STEP)


def is_training(view: View) -> bool:
    """Whether the job runs, and its world has made its first step as far as is reported."""
    report = view.report
    if report is None or report.phase is WorldPhase.WAITING:
        return is_running(view) and view.status.holds(ConditionType.RUNNING)
    return is_running(view) and report.stage.value not in _BEFORE_THE_FIRST_STEP


def is_training_unknown(view: View) -> bool:
    """Whether the coordinator has not answered the operator for so long that, if it did not answer the agents
    either, all of them have ended their ranks."""
    limit = longest_life(view.spec.recovery.fence_seconds)
    return view.report is None and view.has_passed(view.status.coordinator_unreachable_start_time, limit)


def is_recovering(view: View, status: JobStatus) -> bool:
    """Whether a job that does not train now did so by the saved status, or `status` has a new incident.
    A job that recovers stays so until it trains."""
    if is_training(view):
        return False
    was = view.status.holds(ConditionType.RUNNING) or view.status.holds(ConditionType.RECOVERING)
    known = {each.id for each in view.status.incidents}
    return was or any(each.id not in known for each in status.incidents)


def unreachable_message(view: View) -> str:
    """Message about a coordinator that does not answer the operator: what that means for training, and what
    to do. It changes once `is_training_unknown`."""
    since = view.status.coordinator_unreachable_start_time or view.now
    fence = view.spec.recovery.fence_seconds
    namespace, job = view.job.namespace, view.job.name
    pod = names.coordinator(job, view.status.coordinator.term)
    intro = f"The operator has not reached the job's coordinator since {since:%Y-%m-%d %H:%M:%S} UTC."
    if not is_training_unknown(view):
        return (
            f"{intro} Whether training continues is unknown: workers continue for {fence} s after their "
            "coordinator's last answer. Then they end their ranks, and the job resumes from its last "
            "checkpoint once the coordinator answers. Nothing needs to be done yet. To look: kubectl get pod "
            f"-n {namespace} {pod}"
        )
    return (
        f"{intro} The workers' logs show whether ranks still run (kubectl logs -n {namespace} "
        f"-l {names.JOB}={job},{names.ROLE}={Role.WORKER.value} --prefix --timestamps --tail=5): they "
        "do if lines are newer than that. If they run, only the "
        f"operator is cut off: check the network policies of namespace {namespace}. If they have ended, the "
        "coordinator answers nobody: delete its pod, and a new one resumes the job. A new coordinator adopts "
        f"ranks that run, so this stops none: kubectl delete pod -n {namespace} {pod}"
    )


def reported_obstacle(view: View) -> Obstacle | None:
    """Obstacle that the coordinator reports while it retries. None: it reports none, or does not answer."""
    stalled = view.report.stalled if view.report else None
    return Obstacle(stalled.reason.value, stalled.message, stalled=True) if stalled else None


def first_obstacle(view: View) -> Obstacle | None:
    """The obstacle to report of all that keep pods, or the world, from running. None: none is known.

    First match wins, in the order in which a start meets them: policy, node, containers, Secret, coordinator.
    What may pass by itself comes last. Of several pods with one obstacle, the first is named."""
    pods = [pod for pod in (*view.workers.values(), view.coordinator) if pod is not None and not pod.deleting]
    return (
        _policy_obstacle(view)
        or _scheduling_obstacle(view, pods)
        or _container_obstacle(view, pods)
        or _missing_secret_obstacle(view, pods)
        or _unreachable_obstacle(view)
        or _previous_coordinator_obstacle(view)
        or _secret_mount_obstacle(view, pods)
        or _init_container_obstacle(view, pods)
    )


def _policy_obstacle(view: View) -> Obstacle | None:
    """Obstacle that the NetworkPolicy is refused, and the gang waits for it. `refusal` has the next step
    already."""
    refusal = view.seen.policy.refusal
    if not refusal or not policy.blocks_gang_start(view):
        return None
    return Obstacle(
        "NetworkPolicyRefused", f"The job's NetworkPolicy cannot be created: {refusal}.", stalled=True
    )


def _previous_coordinator_obstacle(view: View) -> Obstacle | None:
    """Obstacle that the world forms, but waits for proof that a previous coordinator has ended."""
    report, message = view.report, previouscoordinators.waiting_message(view)
    if not message or report is None or report.phase is not WorldPhase.FORMING:
        return None
    return Obstacle(
        "PreviousCoordinatorMayRun", message, stalled=previouscoordinators.needs_confirmation(view)
    )


def _scheduling_obstacle(view: View, pods: list[PodSeen]) -> Obstacle | None:
    """Obstacle that pods have no node. First match wins: scheduling gates, a silent scheduler, its
    message."""
    for reason, found in (
        ("SchedulingGated", unservedrequests.gates_message(view)),
        ("SchedulerNotResponding", unservedrequests.silent_scheduler_message(view)),
    ):
        if found:
            return Obstacle(reason, found, stalled=True)
    waiting = [pod for pod in pods if not pod.node and pod.scheduled_message]
    if not waiting:
        return None
    text = waiting[0].scheduled_message
    volume = "persistentvolumeclaim" in text.lower()
    advice = _claim_advice(view, text) if volume else _requests_advice(view)
    message = f"{len(waiting)} of {len(pods)} pods wait for a node. The scheduler reports: {text} {advice}"
    return Obstacle("VolumeClaimNotBound" if volume else "Unschedulable", message, stalled=True)


def _claim_advice(view: View, text: str) -> str:
    """Advice about a claim. `text` is the scheduler's: it names a claim that does not exist, but not one
    that is unbound, so then all claims of the job are listed."""
    requested = claims(view.seen.spec)
    missing = next((name for name in requested if f'"{name}"' in text), None)
    if missing is not None:
        return f"{requested[missing]} requires it: create the claim {missing}, or correct its name there."
    named = "; ".join(f"{name} ({field})" for name, field in requested.items())
    look = f"for the reason that one is not bound: kubectl describe pvc -n {view.job.namespace}"
    return f"The job's claims: {named or 'none'}; {look}"


def _requests_advice(view: View) -> str:
    """Resources that the whole job requests, to be compared with those of the nodes, and what to do."""
    return (
        f"{_requests_sentence(view)} Add or free such nodes, or request less: set spec.suspend to true, "
        "change the spec, and resume."
    )


def _requests_sentence(view: View) -> str:
    """Sentence with the number of workers, and the resources of each; with the number of pods, if the spec's
    short form requests none."""
    spec = view.spec
    resources = spec.resources or {}
    requested: dict[str, object] = {}  # of one worker; requests win over limits
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


def _container_obstacle(view: View, pods: list[PodSeen]) -> Obstacle | None:
    """Obstacle that the kubelet cannot start a container or init container: of the first that is found."""
    for pod in pods:
        for container in (pod.init, pod.container):
            reason, prefix = container.waiting_reason, _init_prefix(container)
            if reason in _IMAGE_REASONS:
                return Obstacle("ImagePullFailed", _image_message(pod, container), stalled=True)
            if reason in _CONFIG_REASONS:
                text = f"{container.waiting_message or reason}. Correct what the pod refers to, or create it."
                return Obstacle("ContainerConfigError", f"Pod {pod.name}: {prefix}{text}", stalled=True)
            if reason == "CrashLoopBackOff":
                option = f" -c {container.name}" if prefix else ""
                message = (
                    f"Pod {pod.name}: {prefix}exits again and again. For the last lines that it wrote: "
                    f"kubectl logs -n {view.job.namespace} --previous {pod.name}{option}"
                )
                return Obstacle("CrashLoopBackOff", message, stalled=True)
    return None


def _init_prefix(container: ContainerSeen) -> str:
    """Text that names an init container. Empty: it is the trainer's or the coordinator's own."""
    return f"init container {container.name}: " if container.name else ""


def _init_container_obstacle(view: View, pods: list[PodSeen]) -> Obstacle | None:
    """Obstacle that an init container of the template still runs. This is no fault: it may be slow."""
    pod = next((each for each in pods if each.init.running), None)
    if pod is None:
        return None
    message = (
        f"Pod {pod.name}: {_init_prefix(pod.init)}running; the trainer starts after it has ended: "
        f"kubectl logs -n {view.job.namespace} {pod.name} -c {pod.init.name}"
    )
    return Obstacle("PodsStarting", message)


def _secret_and_waiting_containers(view: View, pods: list[PodSeen]) -> tuple[str, list[ContainerSeen]]:
    """Name of the Secret of spec.checkpoint.signing, and the workers' containers that may wait for it to
    exist. Empty and empty: the job does not sign."""
    signing = view.spec.checkpoint.signing if view.spec.checkpoint else None
    workers = (pod.container for pod in pods if pod.role is not Role.COORDINATOR)
    waiting = [each for each in workers if signing and each.waiting_reason in MOUNTING]
    return signing.secret_name if signing else "", waiting


def _missing_secret_obstacle(view: View, pods: list[PodSeen]) -> Obstacle | None:
    """Obstacle that the kubelet reports in a container's status that the signing Secret does not exist."""
    name, waiting = _secret_and_waiting_containers(view, pods)
    message = next((each.waiting_message for each in waiting if f'"{name}"' in each.waiting_message), "")
    fix = (
        f"Create it (kubectl create secret generic {name} -n {view.job.namespace} "
        "--from-literal=checkpoint-keys=$(openssl rand -hex 32); with a new key older checkpoints need "
        "spec.resume.trust Any), or correct spec.checkpoint.signing.secretName."
    )
    return Obstacle("SecretNotFound", f"{message}. {fix}", stalled=True) if message else None


def _secret_mount_obstacle(view: View, pods: list[PodSeen]) -> Obstacle | None:
    """Obstacle that containers may wait for the signing Secret. Most kubelets report a failed mount in events
    alone, which the operator does not read; so this is no certainty, and does not stall the job."""
    name, waiting = _secret_and_waiting_containers(view, pods)
    if not waiting:
        return None
    message = (
        f"Pods are being created and started. They mount Secret {name} (spec.checkpoint.signing.secretName), "
        f"and wait until it exists: kubectl get secret -n {view.job.namespace} {name}"
    )
    return Obstacle("PodsStarting", message)


def _image_message(pod: PodSeen, container: ContainerSeen) -> str:
    """Message about an image that cannot be pulled. The fix depends on who has chosen the image."""
    secret = "if the registry needs a login, name its Secret in spec.template.spec.imagePullSecrets."
    fix = f"Correct spec.image; {secret}"
    if pod.role is Role.COORDINATOR:
        fix = (
            "Set the operator's image so that this cluster can pull it (values image and "
            "jobDefaults.imagePullSecrets of Ropeteam's chart)."
        )
    elif container is pod.init:
        fix = f"Correct its image in spec.template; {secret}"
    text = container.waiting_message or container.waiting_reason
    return f"Pod {pod.name}: {_init_prefix(container)}{text}. {fix}"


def _unreachable_obstacle(view: View) -> Obstacle | None:
    """Obstacle that the coordinator's pod runs, but does not answer the operator. It stalls the job after
    _UNREACHED_SECONDS; before that most coordinators are just starting."""
    pod = view.coordinator
    if view.report is not None or not view.seen.report_error or pod is None or not pod.container.running:
        return None
    if is_training_unknown(view):
        return Obstacle("CoordinatorUnreachable", unreachable_message(view), stalled=True)
    late = view.has_passed(view.status.coordinator_unreachable_start_time, _UNREACHED_SECONDS)
    message = (
        "The coordinator's pod runs but does not answer the operator yet. Nothing needs to be done: most "
        "coordinators answer within seconds."
    )
    return Obstacle("CoordinatorUnreachable", _unreached_message(view, pod) if late else message, late)


def _unreached_message(view: View, pod: PodSeen) -> str:
    """Message about a coordinator that has not answered since its start: what to check, and its log."""
    namespace, service = view.job.namespace, names.service(view.job.name)
    return (
        f"The operator has not reached the job's coordinator for {_UNREACHED_SECONDS} s, and no world can "
        f"form until it does: Service {service}, port {COORDINATOR_HTTP_PORT}: {view.seen.report_error}. "
        f"Check that no NetworkPolicy of namespace {namespace} blocks the operator. For the coordinator's "
        f"log: kubectl logs -n {namespace} {pod.name}"
    )
