"""Kind TrainingJob, as users write it. One text is type, limit, default and what `kubectl explain` shows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field

from ropeteam.api import commands
from ropeteam.api.model import ApiModel, StatusModel
from ropeteam.api.podparts import Env, PodTemplate, Resources, Volume
from ropeteam.api.status import JobStatus
from ropeteam.api.strategy import Strategy

GROUP, VERSION, KIND, PLURAL = "ropeteam.dev", "v1alpha1", "TrainingJob", "trainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"

Argument = Annotated[str, Field(max_length=16_384)]
"""One word of a command."""

MOST_WORKERS = 4096
GPU = "nvidia.com/gpu"
"""The extended resource that spec.gpusPerWorker requests."""


class Launcher(StrEnum):
    AUTO = "Auto"
    PER_RANK = "PerRank"
    PER_POD = "PerPod"


class Worlds(StrEnum):
    ONE = "One"
    PER_POD = "PerPod"


class ResumePolicy(StrEnum):
    LATEST = "Latest"
    STEP = "Step"
    NEVER = "Never"


class ResumeTrust(StrEnum):
    SIGNED = "Signed"
    ANY = "Any"


class StartMode(StrEnum):
    AUTO = "Auto"
    EXEC = "Exec"
    FORK = "Fork"


class ExitCodeAction(StrEnum):
    FAIL = "Fail"
    RETRY_FREE = "RetryFree"


class CleanPodPolicy(StrEnum):
    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class Signing(ApiModel):
    """Keys that sign checkpoints, instead of the operator's."""

    secret_name: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    """Name of a Secret in the job's namespace. Its entry `checkpoint-keys` has one key a line, of 64
    hexadecimal digits or more: the first signs, all are accepted. Pods wait until the Secret exists."""


class Checkpoint(ApiModel):
    """Where and how often training state is saved. Used by scripts that call `job.restore`."""

    volume: Volume
    """A volume source as in a pod, without a name, for example {persistentVolumeClaim: {claimName: ckpt}}.
    Shared by all workers."""
    path: str | None = Field(default=None, min_length=1, max_length=256)
    """Folder inside the volume, for this job only: the oldest checkpoints in it are deleted when it has more
    than `keep`. Defaults to the job's name, so that jobs can share a volume."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Number of steps between two checkpoints. With everySeconds: whichever comes first. If neither is set:
    every 300 seconds."""
    every_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Number of seconds between two checkpoints."""
    keep: int = Field(default=3, ge=1, le=10)
    """Number of committed checkpoints to keep."""
    signing: Signing | None = None
    """Secret with the user's own keys, so that checkpoints are trusted under another volume, path, namespace,
    cluster or operator key too. Checkpoints of this folder that were signed without it stay accepted."""


class Resume(ApiModel):
    """Checkpoint that the first world of a new job starts from. Later ones resume from the job's lineage."""

    policy: ResumePolicy = ResumePolicy.LATEST
    """Latest: the newest valid checkpoint of a job of this name under checkpoint.path; Step: the one of
    `step`, of any job; Never: none, training starts at step 0."""
    step: int | None = Field(default=None, ge=0)
    """Step of the checkpoint to resume from. Only with policy Step, which requires it."""
    trust: ResumeTrust = ResumeTrust.SIGNED
    """Signed: only checkpoints signed by a job of this namespace, volume and path, or with a key of
    checkpoint.signing. Any: also those of earlier releases, of other operators, and of any other writer of
    the volume."""


class ExitCodeRule(ApiModel):
    """Action for some exit codes of the script."""

    codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=32)]
    """Exit codes of a rank."""
    action: ExitCodeAction
    """Fail: the job fails at once. RetryFree: the job recovers, and the incident is not charged."""


class Recovery(ApiModel):
    """Limits and timeouts of recovery. Times are in seconds; limits are per job, not per pod."""

    max_failures: int = Field(default=10, ge=0, le=1000)
    """Maximum number of incidents caused by the workload itself within windowSeconds. Evictions and lost
    nodes are not charged."""
    window_seconds: int = Field(default=3600, ge=60, le=604_800)
    """Seconds for which an incident counts: a job that runs for a month may fail more than ten times."""
    start_seconds: int = Field(default=600, ge=5, le=86_400)
    """Seconds after which a rank without a first step has failed. If some pods of a start cannot be scheduled
    for this long, and up to half as much again, all its pods are deleted, and created again later."""
    hang_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Seconds without a step after which a rank is killed, once its stacks are logged. Defaults to a value
    learned from the step time, at least 60. A script that reports no steps never counts as hanging."""
    lost_seconds: int = Field(default=5, ge=2, le=600)
    """Seconds without a report after which a worker is left out of the next world."""
    fence_seconds: int = Field(default=120, ge=10, le=3600)
    """Seconds without a coordinator after which a worker kills its ranks. Must be above lostSeconds."""
    self_fence: bool = False
    """True: when no operator has had contact with the job's coordinator for fenceSeconds, ranks end within
    fenceSeconds more, and training resumes when an operator is back. With a script that writes its own
    checkpoints, no person then has to confirm the end of a lost coordinator. The price: such outages stop
    training."""
    drain_seconds: int = Field(default=60, ge=1, le=3600)
    """Seconds to save a checkpoint when a job is suspended or a pod is terminating."""
    no_progress_limit: int = Field(default=3, ge=2, le=100)
    """Number of times that the same error occurs without a new step in between, after which the job fails."""
    start: StartMode = StartMode.AUTO
    """How ranks are started. Auto: exec first; fork from a warm process once the script has called init()."""
    exit_codes: tuple[ExitCodeRule, ...] = Field(default=(), max_length=16)
    """Actions for exit codes of the script. The list is replaced as a whole."""

    @property
    def lease_seconds(self) -> int:
        """status.coordinator.leaseSeconds of a coordinator that is created now. 0: without selfFence it
        answers agents however long no operator has had contact with it."""
        return self.fence_seconds if self.self_fence else 0


class TrainingJobSpec(ApiModel):
    """A distributed training job: one command, started as a gang on a number of workers."""

    workers: int = Field(ge=1, le=MOST_WORKERS)
    """Number of pods that train together."""
    image: str | None = Field(default=None, min_length=1, max_length=1024)
    """Image of the trainer container. Any image with Python 3.10 or newer; it needs no part of Ropeteam."""
    command: tuple[Argument, ...] | None = Field(default=None, min_length=1, max_length=256)
    """Command of the trainer container, unchanged: its processes find the environment that torchrun sets.
    `torchrun [flags] train.py` is parsed, and starts `train.py` once per rank."""
    args: tuple[Argument, ...] | None = Field(default=None, max_length=256)
    """Arguments of the command, which must be set too: an image's own entrypoint is not known to the API."""
    env: Env | None = None
    """Environment variables of the trainer container, as in a pod. RANK, MASTER_ADDR and similar variables
    are set by Ropeteam."""
    working_dir: str | None = Field(default=None, min_length=1, max_length=1024)
    """Working directory of the command."""
    resources: Resources | None = None
    """Resources of the trainer container, as in a pod."""
    gpus_per_worker: int = Field(default=0, ge=0, le=64)
    """Number of GPUs per worker (resource nvidia.com/gpu)."""
    processes_per_worker: int | None = Field(default=None, ge=1, le=128)
    """Number of ranks per worker. Defaults to gpusPerWorker, or to the number in the command (torchrun
    --nproc-per-node), or to 1."""
    launcher: Launcher = Launcher.AUTO
    """PerRank: the command is started once per rank; PerPod: once per pod. Auto: derived from the command."""
    worlds: Worlds = Worlds.ONE
    """One: all ranks must form one default process group (torch.distributed) of the job's size; PerPod: each
    pod may train a world of its own."""
    agent_python: str | None = Field(default=None, min_length=1, max_length=1024)
    """Python interpreter of the agent, at least version 3.10. Defaults to the image's python3."""
    shared_memory: str | None = Field(default=None, pattern=r"^[0-9]+(Ki|Mi|Gi|Ti)?$", max_length=32)
    """Size of /dev/shm, for example 8Gi. Defaults to a memory volume without a limit of its own."""
    shard_cache: str | None = Field(default=None, pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)?$", max_length=32)
    """Disk space of each worker for copies of data set shards, for example 200Gi: `ShardCache()` in the
    script uses it. The folder is /shard-cache; if the template mounts a disk of the node there, all workers
    of the node share that disk."""
    template: PodTemplate | None = None
    """Pod template, for pod fields that spec does not have. The trainer container is named `trainer`."""
    checkpoint: Checkpoint | None = None
    """Where and how often training state is saved."""
    resume: Resume = Resume()
    """Checkpoint that the first world starts from."""
    recovery: Recovery = Recovery()
    """Limits and timeouts of recovery."""
    strategy: Strategy | None = None
    """How the work is split among ranks, for scripts that call `job.wrap`. Defaults to whole copies of the
    model with averaged gradients."""
    suspend: bool = False
    """True: a checkpoint is saved and the pods are deleted; the job is kept. False again: the job resumes."""
    restarted_at: AwareDatetime | None = None
    """Time of a requested restart. Set to now: all pods are restarted once, from a fresh checkpoint."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """Seconds of running after which the job fails; time suspended does not count."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31_536_000)
    """Seconds after its end after which the job is deleted."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Pods that are deleted at the end: Running ones, All, or None."""

    @property
    def processes(self) -> int:
        """Ranks per worker."""
        return commands.processes_per_worker(self)

    @property
    def servers(self) -> int:
        """Number of parameter server pods, in addition to the workers; one rank each."""
        return self.strategy.servers if self.strategy else 0

    @property
    def slots(self) -> int:
        """Number of pods of workers and parameter servers; the coordinator has no slot."""
        return self.workers + self.servers


class Metadata(StatusModel):
    """The part of ObjectMeta that we read."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None
    labels: dict[str, str] = Field(default={})
    annotations: dict[str, str] = Field(default={})


class TrainingJob(ApiModel):
    """A distributed PyTorch training job."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata
    spec: TrainingJobSpec
    status: JobStatus = JobStatus()
