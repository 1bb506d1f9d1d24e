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
    """Secret with keys of the user that sign checkpoints."""

    secret_name: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    """Name of a Secret in the job's namespace. Its entry `checkpoint-keys` has one key per line, of at least
    64 hexadecimal digits. The first key signs, and all of them are accepted. Pods do not start before the
    Secret exists."""


class Checkpoint(ApiModel):
    """Location and frequency of checkpoints, for scripts that call `job.restore()`."""

    volume: Volume
    """Volume source, as in a pod but without a name, for example {persistentVolumeClaim: {claimName: ckpt}}.
    It is mounted at /checkpoints in the container `trainer` of every pod. With several workers they must
    share it, so emptyDir is refused."""
    path: str | None = Field(default=None, min_length=1, max_length=256)
    """Folder in the volume, as a relative path without `..` and symbolic links. Jobs may share a folder: each
    of them deletes only its own checkpoints. Defaults to the name of the job."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Number of steps between two checkpoints: one is saved after each multiple of it. If
    spec.checkpoint.everySeconds is set too, both intervals apply. If neither is set, the interval is 300
    seconds."""
    every_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Number of seconds between two checkpoints. See spec.checkpoint.everySteps."""
    keep: int = Field(default=3, ge=1, le=10)
    """Number of committed checkpoints of this job to retain. Older ones are deleted."""
    signing: Signing | None = None
    """Secret with keys of the user that sign checkpoints. A job that names such a key trusts checkpoints
    signed with it under any volume, path, namespace, cluster and operator. It also accepts checkpoints that
    the operator's key for this folder has signed. Defaults to that key alone."""


class Resume(ApiModel):
    """Checkpoint that the first world of the job starts from."""

    policy: ResumePolicy = ResumePolicy.LATEST
    """Choice of the checkpoint. Latest: the newest valid one of a job of this name in spec.checkpoint.path,
    or none if the folder has none. Step: the one of spec.resume.step, of any job. Never: none, so training
    starts at step 0."""
    step: int | None = Field(default=None, ge=0)
    """Step of the checkpoint to resume from. Required by spec.resume.policy Step, and refused with any other
    policy."""
    trust: ResumeTrust = ResumeTrust.SIGNED
    """Checkpoints that are accepted. Signed: those that jobs of the same namespace, volume and path have
    signed, or that are signed with a key of spec.checkpoint.signing. Any: also those of earlier releases, of
    other operators, and of any other writer of the volume. If only others are found, the job fails with
    reason CheckpointNotFound."""


class ExitCodeRule(ApiModel):
    """Action for some exit codes of the script."""

    codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=32)]
    """Exit codes of a rank, each between 1 and 255. A code may be listed only once in
    spec.recovery.exitCodes."""
    action: ExitCodeAction
    """Action when a rank exits with one of these codes. Fail: the job fails at once, with reason
    ExitCodeRule. RetryFree: the job recovers, and the incident is not charged."""


class Recovery(ApiModel):
    """Timeouts and limits of recovery. Timeouts are in seconds."""

    max_failures: int = Field(default=10, ge=0, le=1000)
    """Number of charged incidents that are allowed within spec.recovery.windowSeconds. With one more, the job
    fails with reason FailureBudgetSpent. Incidents of all pods count together. Those that the workload has
    not caused, such as evictions and lost nodes, are not charged. Can be changed at any time."""
    window_seconds: int = Field(default=3600, ge=60, le=604_800)
    """Number of seconds for which a charged incident counts against spec.recovery.maxFailures. Can be changed
    at any time."""
    start_seconds: int = Field(default=600, ge=5, le=86_400)
    """Number of seconds within which a rank must make its first step, or it is killed. Progress in reading a
    checkpoint restarts the period. A script that does not use Ropeteam's library has no such limit. Pods of a
    gang of which only some can be scheduled are deleted after one to one and a half such periods. They are
    created again after a backoff."""
    hang_seconds: int | None = Field(default=None, ge=1, le=86_400)
    """Number of seconds without a step after which a rank is killed. At 80 % of it the stacks of all ranks of
    the pod are logged. Defaults to ten times the median step of the rank, but at least 60. A script that
    reports no steps has no such limit."""
    lost_seconds: int = Field(default=5, ge=2, le=600)
    """Number of seconds without a report of its agent after which a worker counts as lost. Its world ends,
    and another pod takes its slot."""
    fence_seconds: int = Field(default=120, ge=10, le=3600)
    """Number of seconds without an answer of the coordinator after which an agent kills the ranks of its pod.
    Must be greater than spec.recovery.lostSeconds."""
    self_fence: bool = False
    """Whether training ends while no operator has contact with the job's coordinator. If true, ranks end at
    most twice spec.recovery.fenceSeconds after the last contact, and training resumes when an operator is
    back. If false, training continues. But if the script writes its own checkpoints, a person may have to
    confirm the end of a lost coordinator."""
    drain_seconds: int = Field(default=60, ge=1, le=3600)
    """Number of seconds that ranks have to save a checkpoint and stop, when the job is suspended or
    restarted, or a pod is terminating. A script that writes its own checkpoints gets SIGTERM, and SIGKILL at
    the end. terminationGracePeriodSeconds of the pods is 10 seconds longer."""
    no_progress_limit: int = Field(default=3, ge=2, le=100)
    """Number of times that the same error may occur in a row without a new step in between. Then the job
    fails with reason RepeatedError. The same holds for pods of one slot that fail before they train."""
    start: StartMode = StartMode.AUTO
    """Method to start ranks. Exec: each rank is a new process. Fork: each rank is forked from a process that
    has imported torch, if the command has a Python script. Auto: Fork once the script is known to call
    `init()`, Exec before. Fork is refused with spec.launcher PerPod."""
    exit_codes: tuple[ExitCodeRule, ...] = Field(default=(), max_length=16)
    """Actions for exit codes of the script. Other exit codes, except 0, are charged incidents."""

    @property
    def lease_seconds(self) -> int:
        """status.coordinator.leaseSeconds of a coordinator that is created now. 0: without selfFence it
        answers agents however long no operator has had contact with it."""
        return self.fence_seconds if self.self_fence else 0


class Elastic(ApiModel):
    """With how few workers training may begin."""

    min_workers: int = Field(ge=1, le=MOST_WORKERS)
    """Number of workers with which training begins while others are missing, and begins again if all ranks
    were lost. Worker 0 must be one of them, and the others of its replica."""
    wait_seconds: int = Field(default=30, ge=0, le=86_400)
    """Number of seconds for which missing workers are awaited once so many are ready. Workers that the job
    has trained without already are not awaited."""


class TrainingJobSpec(ApiModel):
    """Desired state of the job: one command, started as a gang of workers.

    Fields can be changed only while status.state is Suspended or Invalid, unless their description says that
    they can be changed at any time."""

    workers: int = Field(ge=1, le=MOST_WORKERS)
    """Number of pods that train together. Workers and parameter servers may have at most 4096 pods and 8192
    ranks in all."""
    image: str | None = Field(default=None, min_length=1, max_length=1024)
    """Image of the container `trainer`, with Python 3.10 or newer and PyTorch. It needs no part of Ropeteam.
    Must be set here or in spec.template."""
    command: tuple[Argument, ...] | None = Field(default=None, min_length=1, max_length=256)
    """Command of the container `trainer`, which an agent starts in place of the image's ENTRYPOINT. Its
    processes find the environment variables that torchrun sets. Launchers such as torchrun are parsed: see
    spec.launcher. Must be set here or in spec.template."""
    args: tuple[Argument, ...] | None = Field(default=None, max_length=256)
    """Arguments of the command. Refused without a command, because the ENTRYPOINT of the image is not
    used."""
    env: Env | None = None
    """Environment variables of the container `trainer`, as in a pod. Those that Ropeteam sets, such as RANK,
    MASTER_ADDR and ROPETEAM_*, are refused."""
    working_dir: str | None = Field(default=None, min_length=1, max_length=1024)
    """Working directory of the container `trainer`. Defaults to that of the image."""
    resources: Resources | None = None
    """Compute resources of the container `trainer`, as in a pod. Refused if spec.template sets them too."""
    gpus_per_worker: int = Field(default=0, ge=0, le=64)
    """Number of GPUs of each worker, as its limit of the resource nvidia.com/gpu. Parameter servers get
    none."""
    processes_per_worker: int | None = Field(default=None, ge=1, le=128)
    """Number of ranks of each worker. If spec.gpusPerWorker is above 0, it is the maximum and the default.
    Else it defaults to the number in the command, such as --nproc-per-node of torchrun, or to 1."""
    launcher: Launcher = Launcher.AUTO
    """Number of starts of the command in each pod. PerRank: once for each rank. PerPod: once, unchanged; it
    starts the ranks of its pod itself. Auto: derived from the command. Python scripts and torchrun are
    started once for each rank, unknown programs once for each pod."""
    worlds: Worlds = Worlds.ONE
    """Process groups that ranks have to form. One: a default process group of torch.distributed with all
    ranks of the job. Jobs that form only smaller ones fail with reason SplitWorld. PerPod: each pod may train
    in a world of its own, and spec.checkpoint is refused."""
    agent_python: str | None = Field(default=None, min_length=1, max_length=1024)
    """Python interpreter of the agent, version 3.10 or newer, as a path or as a name in PATH. Ranks use it
    too, if the command names none. Defaults to python3."""
    shared_memory: str | None = Field(default=None, pattern=r"^[0-9]+(Ki|Mi|Gi|Ti)?$", max_length=32)
    """Size limit of the memory volume at /dev/shm, for example 8Gi. Must be an integer with the suffix Ki,
    Mi, Gi or Ti, or without a suffix. What is stored there counts against the memory limit of the container.
    Not used if spec.template mounts a volume at /dev/shm. Defaults to no limit of its own."""
    shard_cache: str | None = Field(default=None, pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)?$", max_length=32)
    """Size limit of an emptyDir volume at /shard-cache of each worker, for example 200Gi. `ShardCache()` in
    the script stores copies of data set shards there, up to 95 % of the limit. If spec.template mounts a
    volume at /shard-cache, that one is used: a disk of the node is shared by all workers of the node. The
    form is that of spec.sharedMemory. Defaults to no cache."""
    template: PodTemplate | None = None
    """Pod template, for pod fields that spec does not have. Its container `trainer` runs the command.
    Ropeteam sets restartPolicy, terminationGracePeriodSeconds, and labels and annotations under
    ropeteam.dev."""
    checkpoint: Checkpoint | None = None
    """Location and frequency of checkpoints, for scripts that call `job.restore()`. Defaults to none: then
    nothing is saved, except what the script saves itself."""
    resume: Resume = Resume()
    """Checkpoint that the first world of the job starts from. Later worlds resume from checkpoints that the
    job has committed itself. Without spec.checkpoint it has no effect."""
    recovery: Recovery = Recovery()
    """Timeouts and limits of recovery from faults."""
    elastic: Elastic | None = None
    """Start with fewer workers than spec.workers. Workers that come later join at the end of a step, and no
    result differs. Requires spec.strategy.sync.type Exact and spec.checkpoint. Defaults to a start with all
    workers. Once training has begun, workers that are lost are not waited for, with or without it."""
    strategy: Strategy | None = None
    """Distribution of the work among ranks, for scripts that call `job.wrap()`. Defaults to a whole copy of
    the model on each rank, with averaged gradients."""
    suspend: bool = False
    """Whether the job is suspended. When it becomes true, ranks save and stop within
    spec.recovery.drainSeconds, and all pods are deleted. When it becomes false, new pods resume the training.
    A job that is created with true has no pods. Can be changed at any time."""
    restarted_at: AwareDatetime | None = None
    """Time of a requested restart, usually the current time. After a change, ranks save and stop within
    spec.recovery.drainSeconds, and all pods are replaced once. While the job is suspended, a change has no
    effect. Can be changed at any time."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """Number of seconds from status.startTime after which the job fails with reason DeadlineExceeded. They
    start again when a suspended job resumes. Defaults to no limit. Can be changed at any time."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31_536_000)
    """Number of seconds from status.completionTime until the job is deleted, with its pods. Defaults to no
    deletion. Can be changed at any time."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Worker pods to delete when the job has ended. Running: those that have not ended. All: all of them,
    with their logs. None: none, except that pods of a failed job that have not ended are deleted. Can be
    changed at any time."""

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
    """A distributed PyTorch training job: a gang of workers that start, recover and end as one."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata
    spec: TrainingJobSpec
    status: JobStatus = JobStatus()
