"""Agent -> coordinator: AgentReport. Coordinator -> agent: Orders. Each carries the sender's whole state.

An agent sends its report at once when anything in it changes, otherwise its lease, every
`fence.renew_seconds`. The coordinator sends orders at once when they change, and again whenever a report's
`applied_orders` is not the latest; a report that changes nothing is answered now and then (fence.py): without
answers an agent kills its ranks.

The one rule of orders: **only ranks of `orders.plan` may live**. A newer plan replaces the world, orders
without a plan end it. A coordinator that has just booted therefore sends no orders before it has adopted a
world or waited one lease.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

from ropeteam_trainer.contract import LEASES
from ropeteam_trainer.contract.codec import JSON_NAME, stored_as
from ropeteam_trainer.contract.world import CheckpointRef, FailReason, Plan, ProcessExit, ShardFile, WorldId

LEASE = b""
"""Frame in place of a report: nothing has changed since the last one of this connection. It counts as the
report of the next number. Only for a coordinator that is known to support LEASES. As the first frame it is no
lease, and only proves the token (`wire.EXPECTS_EMPTY_FRAME`)."""
EXIT_FAILED = 4
"""Exit code of an agent whose job has failed (`Orders.failed`)."""
_ANSWER = struct.Struct(">QQQ")


class RankPhase(str, enum.Enum):
    """Lifecycle of a rank. STARTING until its first report() (feature level 0: until it is started)."""

    STARTING = "Starting"
    RUNNING = "Running"
    PAUSED = "Paused"  # waits in report() because of orders.pause
    DRAINED = "Drained"  # reached orders.stop_at, its shard is written, waits to be killed
    EXITED = "Exited"  # or dying of a signal: `AgentReport.stopped` is true once no process of it is left


@dataclass(frozen=True)
class Hang:
    """Place in the code where a rank hangs, by its Python stack."""

    where: str = ""
    """`train.py:31 (load)`: the innermost frame of the user's own code in the main thread. "": no stack was
    obtained."""
    waits: bool = False
    """From there it has called a collective of torch.distributed, or a backward pass, which contains them."""


@dataclass(frozen=True)
class RankReport:
    """State of one rank of the world in `AgentReport.plan`."""

    rank: int
    phase: RankPhase
    step: int = 0
    """Last step that it reported. 0: none yet. After a restore it starts at the restored step."""
    steps_here: int = 0
    """Steps reported by this process, i.e. in this world. > 0 means: the world makes progress."""
    exit: ProcessExit | None = None
    joins: bool = False
    """The rank, or a process that it started, has called init_process_group."""
    hang: Hang | None = stored_as("stands", None)
    """Set when the rank has made no step for most of the time that one may take."""
    regroups: bool = False
    """If other ranks are lost, it can continue with those that are left (sync Exact)."""
    pause_received: bool | None = None
    """Whether the rank has received the pause of the orders: it waits at its next report(). None: unknown,
    because the rank has no library yet, or the library or this agent is of an earlier release."""
    stop_at: int | None = None
    """Step at which the rank was ordered to stop, in this pause."""
    dying: bool = False
    """`exit` is known, but a process of it still lives: what is known of the exit may not be all."""


@dataclass(frozen=True)
class StoreOffer:
    """A TCPStore that this agent's store process holds for a world that is being formed."""

    world_id: WorldId = field(metadata={JSON_NAME: "epoch"})
    host: str
    port: int


@dataclass(frozen=True)
class Shard:
    """The files that one rank wrote for a checkpoint. All ranks of the world must report theirs before a
    grant, unless one is `whole`; with parameter servers the first server alone saves."""

    rank: int
    world_id: WorldId = field(metadata={JSON_NAME: "epoch"})
    """The world that started the rank."""
    step: int
    files: tuple[ShardFile, ...]
    whole: bool = False
    """Whether these are all files of the checkpoint: one rank has saved for all, because others were lost
    (sync Exact)."""


@dataclass(frozen=True)
class Progress:
    """Progress that the lowest local rank last reported. Only rank 0's is shown to people."""

    step: int = 0
    total_steps: int | None = None
    loss: str = ""
    """Decimal text; a float would lose NaN in JSON."""
    samples_per_second: float = 0.0
    phase: str = ""
    """Phase that the script reports: "train", "eval", "restore", ..."""


@dataclass(frozen=True)
class Problem:
    """Reason why no rank can start in this pod. A problem that any pod would have ends the job at once; for
    one that may lie in this pod's node, or its mounts, another pod is requested
    (coordinator/membership/unstartable.py)."""

    reason: FailReason
    message: str
    transient: bool = stored_as("passing", False)
    """Possibly transient, or caused by the node: nothing that a user wrote is known to be wrong."""


@dataclass(frozen=True)
class ProcessGroup:
    """A default process group of torch.distributed that processes of one world have formed."""

    size: int
    """World size with which those processes formed it."""
    members: int
    """Processes that are known to have formed it."""
    slots: tuple[int, ...]
    """Slots of those processes, lowest first, at most 16."""
    who: str
    """The program: `train.py`."""


@dataclass(frozen=True)
class GroupReport:
    """A process group in one pod, as its processes reported it to the agent."""

    id: str
    size: int
    who: str
    ranks: tuple[int, ...]
    """Ranks of the plan that formed the group, or whose children did. A command that runs once per pod has
    the lowest rank of the pod."""
    members: tuple[int, ...]
    """Ranks within the group."""


@dataclass(frozen=True)
class AgentReport:
    slot: int
    incarnation: int
    pod_uid: str
    address: str
    job_uid: str
    term: int
    """Highest coordinator term that this agent has ever seen; orders of a lower one are refused."""
    number: int = 0
    """Number of this report on its connection, from 1. 0: this agent does not count them, and does not
    support `Orders.same`."""
    contract: int = LEASES
    node: str = ""
    applied_orders: int = stored_as("orders_seen", 0)
    """`Orders.number` last applied (0: none of this connection)."""
    feature_level: int = stored_as("rung", 0)
    """Highest feature level that a local script has used (1 init, 2 restore, 3 batches), over all
    restarts."""
    launcher: str = ""
    """Launcher that was chosen, for people: `PerRank (torchrun flags parsed)`."""
    plan: Plan | None = None
    """Plan whose ranks live here, or lived here last. Kept until the next plan comes."""
    stopped: bool = True
    """No rank process (nor descendant) of `plan` is alive. True also before the first plan."""
    ranks: tuple[RankReport, ...] = ()
    store: StoreOffer | None = None
    lost_store: WorldId | None = None
    """The world of the ordered plan, if its store was held here and has ended."""
    lost: tuple[int, ...] = ()
    """Ranks of `plan` that are lost, as the newest orders name them: the others continue without them."""
    groups: tuple[GroupReport, ...] = ()
    """Default process groups that were formed in `plan`, at most 16."""
    reports_groups: bool = stored_as("tells_groups", False)
    """This agent reports `groups`. An agent of an earlier release does not."""
    shards: tuple[Shard, ...] = ()
    """Shards of the current world that are written but not yet known to be committed."""
    committed: CheckpointRef | None = None
    """Newest manifest that this agent has written and synced."""
    granted: CheckpointRef | None = None
    """Newest grant that this agent has received (digest empty): after a coordinator's death it may be
    committed already."""
    restored: CheckpointRef | None = None
    """Checkpoint that the leading rank of the current plan was restored from; None: from the start, or not
    known yet. The leading rank is rank 0, or the rank of the first parameter server."""
    ancestors: tuple[CheckpointRef, ...] = stored_as("past", ())
    """Checkpoints that `restored` descends from and that could be restored too, newest first."""
    progress: Progress = Progress()
    terminating: bool = stored_as("leaving", False)
    """The pod is terminating: SIGTERM was received."""
    completed: WorldId | None = None
    """`Orders.complete` of this world was received. It is only ever sent when all ranks of all agents are
    done."""
    problem: Problem | None = None
    pending_disk_request: str = stored_as("disk_owes", "")
    """Request to the checkpoint volume that has been pending for a minute."""
    superseded: WorldId | None = None
    """The world that has claimed the checkpoint folder after ours: ours may not continue."""
    supports_claim: bool = False
    """This agent supports `Orders.claim` and `Plan.absent`. One of an earlier release does not."""


@dataclass(frozen=True)
class Grant:
    """Commit this checkpoint: the agent of the leading rank writes the manifest. This is the commit
    point."""

    ref: CheckpointRef
    world_size: int
    files: tuple[ShardFile, ...]
    parent: CheckpointRef | None
    files_before: int = 0
    """Number of files that were sent before these orders (grantchunks.py)."""


@dataclass(frozen=True)
class Orders:
    term: int
    boot: int
    number: int
    """Number of these orders to this agent on this connection, from 1."""
    plan: Plan | None = None
    """Ranks of this plan live on, if the world that it names for this slot started them."""
    lost: tuple[int, ...] = ()
    """Ranks of the plan that are lost. The others continue without them."""
    host_store: WorldId | None = None
    """Hold a store for this world (and no other, except that of `plan`)."""
    grant: Grant | None = None
    """Sent only to the agent that commits: that of the leading rank, or with `claim`."""
    claim: WorldId | None = None
    """Claim the checkpoint folder under this number, of which no plan is made, and commit by that: the pod of
    the leading rank is missing, and ranks of `plan` train without it."""
    saves_as: WorldId | None = None
    """With ranks that are lost: the others save under the name of this world. None: under that of the world
    which started the leading rank."""
    lineage: tuple[CheckpointRef, ...] = ()
    """Checkpoints that may not be pruned: the committed ones of this world and its past, newest first, then
    all others that the job's status may name. The agent of the current world's leading rank prunes the
    rest."""
    pause: WorldId | None = None
    """Ranks of this world wait at their next report()."""
    stop_at: int | None = None
    """With pause: continue to this step, save a checkpoint there, then wait (a drain that loses no step)."""
    terminate: bool = False
    """With pause, feature level below 2: SIGTERM the ranks, SIGKILL them after drainSeconds."""
    leave: bool = False
    """Answer to `leaving`: exit now (143)."""
    complete: WorldId | None = None
    release: bool = False
    """All agents have acknowledged `complete`: exit 0. Nothing else may make an agent exit 0."""
    failed: str = ""
    """Reason why the job has failed: end all ranks, then exit with EXIT_FAILED."""
    refused: str = ""
    """Reason why the pod is no member of the job: an older incarnation, a pod being deleted, an unknown
    contract. Kill ranks, send nothing more."""
    answers: int | None = None
    """`AgentReport.number` of the newest report of this connection that the sender has received. None: the
    sender does not report it. See fence.py."""
    same: bool = False
    """Nothing has changed: all fields but `term`, `boot` and `answers` are those of the orders before, if
    there were any. The answer to a lease."""


def lease_answer(orders: Orders) -> bytes:
    """Short form of orders with `same`, for an agent that supports LEASES: term, boot and `answers` alone."""
    return _ANSWER.pack(orders.term, orders.boot, orders.answers or 0)


def parse_lease_answer(body: bytes) -> Orders | None:
    """Inverse of lease_answer(). None: `body` is another message."""
    if len(body) != _ANSWER.size or body.startswith(b"{"):
        return None
    term, boot, answers = _ANSWER.unpack(body)
    return Orders(term, boot, 0, answers=answers, same=True)
