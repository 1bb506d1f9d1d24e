"""Agent -> coordinator: AgentReport. Coordinator -> agent: Orders. Each is the sender's whole truth.

An agent sends its report at once when anything in it changes, else its lease, each `fence.renew_seconds`.
The coordinator sends orders at once when they change, and again whenever a report's `orders_seen` is not the
latest; a report that finds nothing new is answered now and then (fence.py): without answers an agent kills
its ranks.

The one rule of orders: **only ranks of `orders.plan` may live**. A newer plan replaces the world, no plan
ends it. A coordinator that has just booted therefore sends no orders before it has adopted a world or waited
one lease.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from ropeteam_trainer.contract import LEASES
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, FailReason, Plan, ProcessExit, ShardFile

LEASE = b""
"""Instead of a report: nothing has changed since the last one of this connection. It counts as the report of
the next number. Only for a coordinator that is known to be of LEASES. As the first frame it is no lease, and
only shows the token (`wire.LOOKS`)."""
EXIT_FAILED = 4
"""Of an agent whose job has failed (`Orders.failed`)."""
_ANSWER = struct.Struct(">QQQ")


class RankPhase(str, enum.Enum):
    """Where a rank is in its life. STARTING until its first report() (rung 0: until it is started)."""

    STARTING = "Starting"
    RUNNING = "Running"
    PAUSED = "Paused"  # waits in report() because of orders.pause
    DRAINED = "Drained"  # reached orders.stop_at, its shard is written, waits to be killed
    EXITED = "Exited"  # or dying of a signal: `AgentReport.stopped` says when nothing of it is left


@dataclass(frozen=True)
class Standstill:
    """Where a rank stands that makes no steps, by its Python stack."""

    where: str = ""
    """`train.py:31 (load)`: the innermost frame of the user's own code in the main thread. "": it shows no
    stack."""
    waits: bool = False
    """From there it has gone into a collective of torch.distributed, or a backward pass, which has them."""


@dataclass(frozen=True)
class RankReport:
    """One rank of the epoch in `AgentReport.plan`."""

    rank: int
    phase: RankPhase
    step: int = 0
    """Last step it reported. 0: none yet. After a restore it starts at the restored step."""
    steps_here: int = 0
    """Steps reported by this process, i.e. in this epoch. > 0 means: the world makes progress."""
    exit: ProcessExit | None = None
    joins: bool = False
    """It, or a process that it started, has called init_process_group."""
    stands: Standstill | None = None
    """It has made no step for most of the time that one may take."""


@dataclass(frozen=True)
class StoreOffer:
    """A TCPStore that this agent's keeper holds for an epoch that is being formed."""

    epoch: Epoch
    host: str
    port: int


@dataclass(frozen=True)
class Shard:
    """The files that one rank wrote for a checkpoint. All ranks of the epoch must report theirs before a
    grant; with parameter servers the first server alone saves."""

    rank: int
    epoch: Epoch
    """That which started the rank."""
    step: int
    files: tuple[ShardFile, ...]


@dataclass(frozen=True)
class Progress:
    """As the lowest local rank last told. Only rank 0's is shown to people."""

    step: int = 0
    total_steps: int | None = None
    loss: str = ""
    """Decimal text; a float would lose NaN on the way through JSON."""
    samples_per_second: float = 0.0
    phase: str = ""
    """What the script says it does: "train", "eval", "restore", ..."""


@dataclass(frozen=True)
class Problem:
    """Why no rank can start in this pod. What any pod would have ends the job at once; for what may be this
    pod's node, or its mounts, another pod is asked for (coordinator/membership/unstartable.py)."""

    reason: FailReason
    message: str
    passing: bool = False
    """It may be the node or the moment: nothing that a user wrote is known to be wrong."""


@dataclass(frozen=True)
class ProcessGroup:
    """A default process group of torch.distributed that processes of one world have formed."""

    size: int
    """Its world size, as those processes gave it."""
    members: int
    """Processes that are known to have formed it."""
    slots: tuple[int, ...]
    """Where they are, lowest first, at most 16."""
    who: str
    """The program: `train.py`."""


@dataclass(frozen=True)
class GroupReport:
    """The same in one pod, as its agent was told."""

    id: str
    size: int
    who: str
    ranks: tuple[int, ...]
    """Ranks of the plan that formed it, or whose children did. A command that runs once per pod has the
    lowest rank of the pod."""
    members: tuple[int, ...]
    """Their ranks in the group."""


@dataclass(frozen=True)
class AgentReport:
    slot: int
    incarnation: int
    pod_uid: str
    address: str
    job_uid: str
    term: int
    """Highest coordinator term this agent has ever seen; orders of a lower one are refused."""
    number: int = 0
    """Counts the reports of this connection, from 1. 0: this agent does not count them, and understands no
    `Orders.same`."""
    contract: int = LEASES
    node: str = ""
    orders_seen: int = 0
    """`Orders.number` last applied (0: none of this connection)."""
    rung: int = 0
    """Highest rung a local script has ever used (1 init, 2 restore, 3 batches); remembered over restarts."""
    launcher: str = ""
    """What was chosen, for people: `PerRank (torchrun flags parsed)`."""
    plan: Plan | None = None
    """The world whose ranks live here, or lived here last. Kept until the next plan comes."""
    stopped: bool = True
    """No rank process (nor descendant) of `plan` is alive. True also before the first plan."""
    ranks: tuple[RankReport, ...] = ()
    store: StoreOffer | None = None
    groups: tuple[GroupReport, ...] = ()
    """Default process groups that were formed in `plan`, at most 16."""
    tells_groups: bool = False
    """It would tell of them. An agent of an earlier release does not."""
    shards: tuple[Shard, ...] = ()
    """Shards of the current epoch that are written but not yet known to be committed."""
    committed: CheckpointRef | None = None
    """Newest manifest that this agent wrote and synced."""
    granted: CheckpointRef | None = None
    """Newest grant that this agent saw (digest empty): after a coordinator's death it may be committed
    already."""
    restored: CheckpointRef | None = None
    """What the leading rank of the current plan went on from; None: from the start, or not known yet. It
    leads: rank 0, or the rank of the first parameter server."""
    past: tuple[CheckpointRef, ...] = ()
    """What `restored` descends from and could be restored too, newest first."""
    progress: Progress = Progress()
    leaving: bool = False
    """SIGTERM came: this pod is about to go."""
    completed: Epoch | None = None
    """COMPLETE of this epoch was received. It is only ever sent when all ranks of all agents are done."""
    problem: Problem | None = None
    disk_owes: str = ""
    """What the volume of checkpoints has not answered for a minute."""
    superseded: Epoch | None = None
    """A world of this epoch has claimed the folder of checkpoints after ours: ours may not go on."""


@dataclass(frozen=True)
class Grant:
    """Commit this checkpoint: the agent of the leading rank writes the manifest. This is the commit
    point."""

    ref: CheckpointRef
    world_size: int
    files: tuple[ShardFile, ...]
    parent: CheckpointRef | None
    files_before: int = 0
    """So many came before these orders (grantchunks.py)."""


@dataclass(frozen=True)
class Orders:
    term: int
    boot: int
    number: int
    """Counts orders to this agent on this connection, from 1."""
    plan: Plan | None = None
    """Its ranks live on, if they were born in the epoch that it names for this slot."""
    host_store: Epoch | None = None
    """Hold a store for this epoch (and no other, but that of `plan`)."""
    grant: Grant | None = None
    """Only to the agent of the leading rank."""
    lineage: tuple[CheckpointRef, ...] = ()
    """What may not be pruned: the committed checkpoints of this world and its past, newest first, then all
    else that the job's status may name. The agent of the current epoch's leading rank prunes the rest."""
    pause: Epoch | None = None
    """Ranks of this epoch wait at their next report()."""
    stop_at: int | None = None
    """With pause: go on to this step, save a checkpoint there, then wait (a drain that loses no step)."""
    terminate: bool = False
    """With pause, rung < 2: SIGTERM the ranks, SIGKILL them after drainSeconds."""
    leave: bool = False
    """You may go: exit now (143). Answer to `leaving`."""
    complete: Epoch | None = None
    release: bool = False
    """All agents acknowledged COMPLETE: exit 0. Nothing else may make an agent exit 0."""
    failed: str = ""
    """The job has failed, for this reason: end all ranks, then exit with EXIT_FAILED."""
    refused: str = ""
    """Not one of us: an older incarnation, a pod being deleted, an unknown contract. Kill ranks, stay
    quiet."""
    answers: int | None = None
    """`AgentReport.number` of the newest report of this connection that the sender knew. None: it does not
    tell. See fence.py."""
    same: bool = False
    """Nothing new: all but `term`, `boot` and `answers` is to be taken from the orders before, if there were
    any. The answer to a lease."""


def answer(orders: Orders) -> bytes:
    """The short form of `Orders.same`, for an agent of LEASES."""
    return _ANSWER.pack(orders.term, orders.boot, orders.answers or 0)


def as_answer(body: bytes) -> Orders | None:
    """The inverse of `answer`. None: this is something else."""
    if len(body) != _ANSWER.size or body.startswith(b"{"):
        return None
    term, boot, answers = _ANSWER.unpack(body)
    return Orders(term, boot, 0, answers=answers, same=True)
