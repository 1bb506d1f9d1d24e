"""Settings of a pod, given to it at its creation: environment variables with JSON, and a few that differ from
pod to pod.

Pods read their environment through this module only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ropeteam_trainer.contract import VERSION, codec, seals
from ropeteam_trainer.contract.codec import JSON_NAME, stored_as
from ropeteam_trainer.contract.strategy import Strategy

CONFIG = "ROPETEAM_CONFIG"
"""JSON of WorkerConfig (worker pods) or CoordinatorConfig (the coordinator pod)."""
SLOT = "ROPETEAM_SLOT"
INCARNATION = "ROPETEAM_INCARNATION"
POD_UID = "ROPETEAM_POD_UID"
POD_IP = "ROPETEAM_POD_IP"
NODE = "ROPETEAM_NODE"
TOKEN_FILE = "ROPETEAM_TOKEN_FILE"
"""File with the job's token, hex text: HMAC-SHA256(operator key, job UID)."""
TRACE = "ROPETEAM_TRACE"
"""For tests: each rank appends one JSON line per step to `<value>.<rank>`: world, step, sample ids, loss as
hex."""
STORE = "ROPETEAM_STORE"
"""`none`: the store of a world is a socket that never answers, for ranks that never use torch (tests)."""
HOOKS = "ROPETEAM_HOOKS"
"""`none`: nothing is added to libraries that a script imports (agent/script/hooks.py)."""
USER_ENV = (TRACE, STORE, HOOKS)
"""The only ROPETEAM_* names that a user may set."""
RANK_SOCKET = "ROPETEAM_RANK_SOCKET"
"""Unix socket of the agent; unset outside of a TrainingJob. With it come RANK_PAGE and RANK_PLAN."""
AGENT_SOCKET = "ROPETEAM_AGENT_SOCKET"
"""That socket, for the processes that a rank starts and that are no ranks themselves: see
agent/script/childhooks.py."""
MULTIPROCESSING = "ROPETEAM_MULTIPROCESSING"
"""Folder for what multiprocessing puts into a temporary folder, of a rank and all that it starts
(agent/script/childhooks.py). The agent removes it with the rank. Unset: its path would be too long."""
STORE_ADDRESS = "ROPETEAM_STORE_ADDRESS"
"""`host:port` of the store that TORCHELASTIC_USE_AGENT_STORE refers to (agent/script/childhooks.py)."""
RANK_PAGE = "ROPETEAM_RANK_PAGE"
RANK_PLAN = "ROPETEAM_RANK_PLAN"
"""JSON of RankPlan."""
MEMORY = "ROPETEAM_MEMORY"
"""Folder in memory (/dev/shm) that outlives a rank's process and goes with the pod's container. Set by the
agent."""
SHARD_CACHE = "ROPETEAM_SHARD_CACHE"
"""Folder of spec.shardCache, for ShardCache(); set together with SHARD_CACHE_BYTES."""
SHARD_CACHE_BYTES = "ROPETEAM_SHARD_CACHE_BYTES"
"""Limit on the total size of the files in it."""
WORLD = "ROPETEAM_WORLD"
"""Number of the world, `1.0.3`."""
DRY_RUN = "ROPETEAM_DRY_RUN"
"""`1`: dry run of the script (`ropeteam plan`): init() joins no world, wrap() measures, writes the result and
ends the script."""
DRY_RUN_FILE = "ROPETEAM_DRY_RUN_FILE"
"""File for the result: JSON of partition.answer.DryRunResult."""
AGENT_STATE_DIR = "ROPETEAM_STATE_DIR"
"""Scratch folder of the agent (sockets, pages). Default: a fresh folder in the temporary directory."""

AGENT_PYZ = "/ropeteam/agent.pyz"
TOKEN_PATH = "/ropeteam-token/token"
SIGNING_PATH = f"/ropeteam-signing/{seals.FILE}"
COORDINATOR_AGENT_PORT = 29401
COORDINATOR_HTTP_PORT = 29402
AGENT_METRICS_PORT = 29403
"""If the port is in use, the agent listens on any other."""
PARAMETER_SERVER_PORT = 29404
"""Port on which a parameter server listens, on its pod's address."""
TRAINER_CONTAINER = "trainer"

RESERVED_ENV = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
)
"""Set per rank by the agent; a user's value would break the world. ROPETEAM_* is reserved as well."""


class Launcher(str, enum.Enum):
    AUTO = "Auto"
    PER_RANK = "PerRank"
    PER_POD = "PerPod"


class Start(str, enum.Enum):
    AUTO = "Auto"  # exec first; fork once a script has called init()
    EXEC = "Exec"
    FORK = "Fork"


class Resume(str, enum.Enum):
    LATEST = "Latest"
    STEP = "Step"
    NEVER = "Never"


class Trust(str, enum.Enum):
    SIGNED = "Signed"
    ANY = "Any"


class ExitAction(str, enum.Enum):
    FAIL = "Fail"
    RETRY_FREE = "RetryFree"


@dataclass(frozen=True)
class ExitCodeRule:
    codes: tuple[int, ...]
    action: ExitAction


@dataclass(frozen=True)
class CheckpointConfig:
    directory: str
    """Absolute, inside the container; on a volume that all workers share."""
    every_steps: int | None = None
    every_seconds: int | None = None
    keep: int = 3
    """Committed checkpoints to keep."""
    signing: str = ""
    """File with the keys of the Secret that the job names (seals.py). Empty: it names none."""
    volume: str = ""
    """Mount path of the volume that contains `directory`: no part below it may be a link. Empty, as operators
    of earlier releases and standalone scripts set it: links are followed."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    start: int = 600
    hang: int | None = None
    """None: automatic, never below 60."""
    lost: int = 5
    fence: int = 120
    drain: int = 60


class Shape:
    """How many slots and ranks a job has: workers first, then parameter servers with one rank each."""

    workers: int
    processes: int
    servers: int

    @property
    def slots(self) -> int:
        """Number of slots: of workers and parameter servers."""
        return self.workers + self.servers

    def processes_of(self, slot: int) -> int:
        """Number of ranks on a slot: of a worker, or 1 of a parameter server."""
        return self.processes if slot < self.workers else 1

    def ranks_of(self, slot: int) -> range:
        """Ranks on the slot of a worker."""
        return range(slot * self.processes, (slot + 1) * self.processes)

    def mates_of(self, slot: int, replica_ranks: int) -> range:
        """Slots of workers that share replicas of so many ranks with this one, which is among them. If
        replicas are spread unevenly, all do."""
        if self.processes % replica_ranks == 0:
            return range(slot, slot + 1)
        if replica_ranks % self.processes:
            return range(self.workers)
        first = slot - slot % (replica_ranks // self.processes)
        return range(first, first + replica_ranks // self.processes)

    def is_server(self, slot: int) -> bool:
        return slot >= self.workers

    @property
    def lead_slot(self) -> int:
        """Slot whose first rank chooses the checkpoint to restore, and whose agent writes manifests: the
        first parameter server, if there are any."""
        return self.workers if self.servers else 0


@dataclass(frozen=True)
class WorkerConfig(Shape):
    job: str
    namespace: str
    job_uid: str
    attempt: int
    workers: int
    processes: int
    """Ranks per worker."""
    coordinator: str
    """`host:port`, numeric."""
    timeouts: Timeouts = Timeouts()
    launcher: Launcher = Launcher.AUTO
    start: Start = Start.AUTO
    feature_level: int = stored_as("rung", 0)
    """Highest feature level that a rank of this attempt has used, as far as is known when the pod is
    created."""
    agent_python: str | None = None
    checkpoint: CheckpointConfig | None = None
    resume: Resume = Resume.LATEST
    resume_step: int | None = None
    strategy: Strategy | None = None
    servers: int = 0
    """Parameter servers: slots after those of the workers, one rank each."""
    trust: Trust = Trust.SIGNED
    """Whether a checkpoint must be signed if its digest is not known from elsewhere."""
    worlds_per_pod: bool = False
    """A command that runs once per pod sees only its own pod, and so forms a world of its own."""
    contract: int = VERSION


@dataclass(frozen=True)
class Elastic:
    """With how few workers training may begin (sync Exact)."""

    min_workers: int
    wait_seconds: int
    """Time for which others are awaited once so many are there."""


@dataclass(frozen=True)
class CoordinatorConfig(Shape):
    job: str
    namespace: str
    job_uid: str
    term: int
    workers: int
    processes: int
    timeouts: Timeouts = Timeouts()
    no_progress_limit: int = 3
    exit_codes: tuple[ExitCodeRule, ...] = ()
    keep: int = 3
    checkpoint: bool = False
    """The job has a checkpoint folder; used for metrics only."""
    servers: int = 0
    """Parameter servers: slots after those of the workers, one rank each. With them ranks depend on no
    collective, and those of healthy slots live on when another one is replaced."""
    lease: int = 0
    """Seconds for which it may answer agents after the operator has received its report
    (Desired.acknowledged_sent). 0: without limit."""
    worlds_per_pod: bool = False
    """Each pod may train a world of its own: more than one default process group is expected."""
    replica_ranks: int = 1
    """Under sync Exact, ranks of a replica of the model: neighbours, which are lost together."""
    elastic: Elastic | None = None
    """None: training begins with all workers."""
    contract: int = VERSION


@dataclass(frozen=True)
class RankPlan:
    """Settings that the library in a rank needs beyond torchrun's variables."""

    world_id: str = field(metadata={JSON_NAME: "epoch"})
    restore: tuple[str, ...]
    """`run-<UID>/step-<N>/<world>#<digest>` relative to the checkpoint directory, best first (run and digest
    may be missing)."""
    lineage_known: bool
    """False only in the first world of a job: then `resume` decides."""
    checkpoint: CheckpointConfig | None
    resume: Resume
    resume_step: int | None
    job: str
    job_uid: str
    strategy: Strategy | None = None
    servers: tuple[str, ...] = ()
    """`host:port` of each parameter server when this rank was started, the chief first; later ones are sent
    in ToRank."""
    secret: str = ""
    """Secret by which workers and parameter servers authenticate to each other: hex of HMAC-SHA256(job's
    token, "servers"). In the environment for libraries of an earlier release only; "": the agent sends it
    (FromRank.wants_secret)."""
    line: str = ""
    """With parameter servers: the world in which this server generation began. A server refuses a rank of
    another generation, and one with a lower `world_id` than another process of the same rank: its pod
    was replaced, and does not know it yet."""
    keys: str = ""
    """File with the keys of the checkpoint folder (seals.py), after those of `checkpoint.signing`. Empty:
    there are none."""
    trust: Trust = Trust.SIGNED
    started: tuple[int, ...] = ()
    """Ranks that this world starts. (): all. Otherwise the others live on and have the state of the training,
    which these get from them."""
    saves_as: str = ""
    """World under whose name checkpoints are stored; "": `world_id`."""
    replica_ranks: int = 1
    """As in Plan. A coordinator of an earlier release knows replicas of one rank only."""
    absent: tuple[int, ...] = ()
    """As in Plan."""

    @property
    def signs(self) -> bool:
        """Whether there are keys: then an unsigned checkpoint needs another confirmation."""
        return bool(self.keys or (self.checkpoint and self.checkpoint.signing))


@dataclass(frozen=True)
class PodIdentity:
    """The per-pod part of the environment of a worker."""

    slot: int
    incarnation: int
    pod_uid: str
    pod_ip: str
    node: str
    token: bytes
    keys_file: str = ""
    """As RankPlan.keys."""
    keys: seals.Keys = ()
    """Keys of that file; with those of the Secret that the job names, once they are read
    (preflight.with_named_keys)."""


def read_worker(environ: Mapping[str, str]) -> tuple[WorkerConfig, PodIdentity]:
    """Settings of a worker pod, and what its environment and mounted Secret say of this pod. Raises KeyError
    (a variable is missing), ValueError (also codec.DecodeError) and OSError (token or keys cannot be
    read)."""
    config = codec.decode(WorkerConfig, environ[CONFIG])
    identity = PodIdentity(
        slot=int(environ[SLOT]),
        incarnation=int(environ[INCARNATION]),
        pod_uid=environ[POD_UID],
        pod_ip=environ[POD_IP],
        node=environ.get(NODE, ""),
        token=read_token(environ),
        keys_file=(keys := _keys_file(environ)),
        keys=seals.read_keys(keys),
    )
    return config, identity


def memory_folder(pod_uid: str) -> str:
    """Path of a pod's MEMORY folder."""
    return f"/dev/shm/ropeteam-{pod_uid}"


def _keys_file(environ: Mapping[str, str]) -> str:
    """Path of the file with the keys, or "": Secrets of jobs that earlier releases created have none."""
    file = Path(environ.get(TOKEN_FILE, TOKEN_PATH)).with_name(seals.FILE)
    return str(file) if file.exists() else ""


def read_token(environ: Mapping[str, str]) -> bytes:
    """Token of the job, from the file that the environment names, or that of a pod. Raises OSError,
    ValueError."""
    with open(environ.get(TOKEN_FILE, TOKEN_PATH), encoding="ascii") as file:
        return bytes.fromhex(file.read().strip())
