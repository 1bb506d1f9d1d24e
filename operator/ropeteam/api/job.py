"""What users write: kind TrainingJob. One text is type, limit, default and what `kubectl explain` shows."""

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
    """With whose keys checkpoints are signed, instead of the operator's."""

    secret_name: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    """A Secret in the job's namespace. Its entry `checkpoint-keys` has one key a line, of 64 hexadecimal
    digits or more: the first signs, all are accepted. Pods wait until there is such a Secret."""


class Checkpoint(ApiModel):
    """Where training state goes, and how often. Used by scripts that call `job.restore`."""

    volume: Volume
    """A volume source as in a pod, without a name, for example {persistentVolumeClaim: {claimName: ckpt}}.
    Shared by all workers."""
    path: str | None = Field(default=None, min_length=1, max_length=256)
    """Folder inside the volume, for this job alone: older checkpoints in it are deleted as new ones are kept.
    Omitted: the job's name, so that jobs may share a volume."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Save after every this many steps. With everySeconds: whichever is first. Neither: every 300 seconds."""
    every_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Save after every this many seconds."""
    keep: int = Field(default=3, ge=1, le=10)
    """Committed checkpoints to keep."""
    signing: Signing | None = None
    """A Secret with keys of your own, so that checkpoints are trusted under another volume, path, namespace,
    cluster or operator key too. What was signed without it, in this folder, is accepted all the same."""


class Resume(ApiModel):
    """Where the first world of a new job begins. Later worlds go on from this job's own lineage."""

    policy: ResumePolicy = ResumePolicy.LATEST
    """Latest: newest good checkpoint of a job of this name under checkpoint.path; Step: that of `step`, any
    job's; Never: from the start."""
    step: int | None = Field(default=None, ge=0)
    """With policy Step."""
    trust: ResumeTrust = ResumeTrust.SIGNED
    """Signed: only checkpoints that a job of this namespace, volume and path has signed, or one with a key of
    checkpoint.signing. Any: also those of earlier releases, of other operators, and of whoever else can write
    to the volume."""


class ExitCodeRule(ApiModel):
    """What an exit code of the script means."""

    codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=32)]
    """Exit codes of a rank."""
    action: ExitCodeAction
    """Fail: end the job at once. RetryFree: go on, and do not count it."""


class Recovery(ApiModel):
    """How much failure a job may survive, and how patient it is. Seconds; counts per job, not per pod."""

    max_failures: int = Field(default=10, ge=0, le=1000)
    """Incidents caused by the workload itself, within the window. Evictions and lost nodes are free."""
    window_seconds: int = Field(default=3600, ge=60, le=604_800)
    """How long an incident counts. A job that runs for a month may fail more than ten times."""
    start_seconds: int = Field(default=600, ge=5, le=86_400)
    """A rank that has not made its first step after this long has failed. A start of which some pods find no
    node for this long, and up to half as much again, gives its places back and asks for all of them later."""
    hang_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """A rank that makes no step for this long is killed, once it has shown where it stands. Omitted: learned
    from the step time, at least 60. A script that reports no steps is never taken to hang."""
    lost_seconds: int = Field(default=5, ge=2, le=600)
    """A worker that is silent for this long is left out of the next world."""
    fence_seconds: int = Field(default=120, ge=10, le=3600)
    """A worker that reaches no coordinator for this long kills its ranks. Must be above lostSeconds."""
    self_fence: bool = False
    """True: when no operator has heard of the job's coordinator for fenceSeconds, ranks end within
    fenceSeconds more, and training goes on when an operator is back. A script that writes its own checkpoints
    then needs nobody to say that a lost coordinator has ended. The price: such outages end training."""
    drain_seconds: int = Field(default=60, ge=1, le=3600)
    """Time to save a checkpoint when a job is suspended or a pod is asked to leave."""
    no_progress_limit: int = Field(default=3, ge=2, le=100)
    """The same error this many times without a new step between ends the job."""
    start: StartMode = StartMode.AUTO
    """How ranks start. Auto: exec first; fork from a warm process once the script has called init()."""
    exit_codes: tuple[ExitCodeRule, ...] = Field(default=(), max_length=16)
    """Exit codes with a meaning of their own. The list is replaced as a whole."""

    @property
    def lease_seconds(self) -> int:
        """Of a coordinator that is made now. 0: it makes no promise."""
        return self.fence_seconds if self.self_fence else 0


class TrainingJobSpec(ApiModel):
    """A distributed training job: one command, started as a gang on a number of workers."""

    workers: int = Field(ge=1, le=MOST_WORKERS)
    """Pods that train together."""
    image: str | None = Field(default=None, min_length=1, max_length=1024)
    """Image of the trainer container. Any with Python 3.10 or newer; nothing of ours needs to be in it."""
    command: tuple[Argument, ...] | None = Field(default=None, min_length=1, max_length=256)
    """What runs today under torchrun, unchanged; `torchrun [flags] train.py` is parsed and means the same."""
    args: tuple[Argument, ...] | None = Field(default=None, max_length=256)
    """Arguments after the command, which must be given too: an image's own entrypoint is not known here."""
    env: Env | None = None
    """Environment of the trainer container, as in a pod. RANK, MASTER_ADDR and their like are set by us."""
    working_dir: str | None = Field(default=None, min_length=1, max_length=1024)
    """Working directory of the command."""
    resources: Resources | None = None
    """Resources of the trainer container, as in a pod."""
    gpus_per_worker: int = Field(default=0, ge=0, le=64)
    """GPUs for each worker (resource nvidia.com/gpu)."""
    processes_per_worker: int | None = Field(default=None, ge=1, le=128)
    """Ranks on each worker. Omitted: gpusPerWorker, or what the command says (torchrun --nproc-per-node), or
    1."""
    launcher: Launcher = Launcher.AUTO
    """PerRank: the command is started once per rank; PerPod: once per pod. Auto: seen from the command."""
    worlds: Worlds = Worlds.ONE
    """One: all ranks must form one default process group (torch.distributed) of the job's size; PerPod: each
    pod may train a world of its own."""
    agent_python: str | None = Field(default=None, min_length=1, max_length=1024)
    """Interpreter for our agent, if the image's python3 is not the one. Needs Python 3.10."""
    shared_memory: str | None = Field(default=None, pattern=r"^[0-9]+(Ki|Mi|Gi|Ti)?$", max_length=32)
    """Size of /dev/shm, for example 8Gi. Omitted: a memory volume without a limit of its own."""
    shard_cache: str | None = Field(default=None, pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)?$", max_length=32)
    """Disk of each worker for copies of shards of the data set, for example 200Gi: `ShardCache()` in the
    script uses it. Its folder is /shard-cache; if the template mounts a disk of the node there, that is used,
    by all workers of the node."""
    template: PodTemplate | None = None
    """A whole pod template for what the short form cannot say. The trainer container is named `trainer`."""
    checkpoint: Checkpoint | None = None
    """Where training state goes."""
    resume: Resume = Resume()
    """Where the first world begins."""
    recovery: Recovery = Recovery()
    """What the job survives."""
    strategy: Strategy | None = None
    """How the work is split among ranks, for scripts that call `job.wrap`. Omitted: whole copies, gradients
    averaged."""
    suspend: bool = False
    """True: save a checkpoint, delete the pods, keep the job. False again: go on."""
    restarted_at: AwareDatetime | None = None
    """Set it to now to restart all pods once, from a fresh checkpoint."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """The job fails after running this long; time suspended does not count."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31_536_000)
    """The job is deleted this long after its end."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which pods are deleted at the end: Running ones, All, or None."""

    @property
    def processes(self) -> int:
        """Ranks per worker."""
        return commands.processes(self)

    @property
    def servers(self) -> int:
        """Pods of parameter servers, beside the workers; one rank each."""
        return self.strategy.servers if self.strategy else 0

    @property
    def slots(self) -> int:
        """All pods that train or serve."""
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
