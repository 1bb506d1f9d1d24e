"""Operator -> coordinator: Desired, by `PUT /desired`. Answer (and `GET /status`): JobReport. Idempotent
both."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ropeteam_trainer.contract import OLDEST, VERSION
from ropeteam_trainer.contract.messages import Problem, ProcessGroup, Progress
from ropeteam_trainer.contract.world import Cause, CheckpointRef, Epoch, ProcessExit


@dataclass(frozen=True)
class SlotDesired:
    """Which pod holds a slot. The operator's word is final: a registration of any other pod is refused."""

    incarnation: int
    pod_uid: str = ""
    """Empty: the pod does not exist yet."""
    deleting: bool = False
    old_pod_gone: bool = True
    """No former pod of this slot can still write: its container is known to have ended, or fenceSeconds have
    passed. A script below rung 2 is not started in a replacement before this is true."""


@dataclass(frozen=True)
class Desired:
    generation: int
    attempt: int
    term: int
    slots: dict[str, SlotDesired]
    """Key: slot number as text."""
    drain: bool = False
    """Checkpoint, then stop and stay stopped (suspend)."""
    allowance: int = 0
    """Charged incidents that may still happen, as saved in status. -1: no limit."""
    charged_incidents: tuple[str, ...] = ()
    """Ids that `allowance` already accounts for; the coordinator subtracts its own others."""
    lineage: tuple[CheckpointRef, ...] = ()
    """As saved in status: the operator's acknowledgement. None of these is pruned."""
    boot: int = -1
    heard: float = 0.0
    """`JobReport.boot` and `sent` of the newest report of this term that this operator has. So it said this
    later than that, whenever it arrives: CoordinatorConfig.lease is counted from there. -1: it has none."""
    contract: int = OLDEST
    """The coordinator may be of an earlier release, made by an operator before this one."""
    failure: Problem | None = None
    """The job has failed with it, and status says so: agents may exit."""


class WorldPhase(str, enum.Enum):
    WAITING = "Waiting"  # after a boot: for agents to report a world to adopt, or one lease
    FORMING = "Forming"  # gathering members, a store, or a backoff to pass
    RUNNING = "Running"
    STOPPING = "Stopping"  # after a fault: until every rank of the epoch is dead
    DRAINING = "Draining"
    DRAINED = "Drained"
    COMPLETING = "Completing"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Stage(str, enum.Enum):
    """How far a world that runs is on its way to its first step."""

    UNTOLD = ""  # nothing runs, or a coordinator of an earlier release
    RANKS_STARTING = "RanksStarting"
    SCRIPT_STARTING = "ScriptStarting"  # it imports, say
    PROCESS_GROUP_FORMING = "ProcessGroupForming"  # some ranks are in init_process_group
    RESTORING = "Restoring"
    FIRST_STEP = "FirstStep"
    TRAINING = "Training"  # all ranks have made a step; of a script that tells of none, all that can be known


@dataclass(frozen=True)
class SlotReport:
    incarnation: int
    pod_uid: str
    node: str = ""
    registered: bool = False
    """Its lease holds."""
    leaving: bool = False
    silent_seconds: float = 0.0
    term: int = 0
    """Highest term of a coordinator that its agent has heard: it refuses those below."""


@dataclass(frozen=True)
class Stages:
    """Where a recovery's time went, in milliseconds since the fault was seen. None: not reached yet."""

    stopped: int | None = None
    """All ranks of the old world dead."""
    planned: int | None = None
    """Next plan published: members and store ready."""
    started: int | None = None
    """All ranks of the new world started."""
    first_step: int | None = None
    """All ranks have made a step: recovered."""


@dataclass(frozen=True)
class Incident:
    """One fault with all its consequences. Cause and charge are provisional until `settled`."""

    id: str
    """`<epoch it ended>`: one world ends once, so one incident per epoch."""
    cause: Cause
    charged: bool
    slot: int
    rank: int | None
    node: str
    message: str
    step: int
    """Highest step of the world when it ended."""
    unix_ms: int
    """Wall clock when it was seen; for people only."""
    steps_lost: int | None = None
    """Known once the next world has restored."""
    stages: Stages = Stages()
    exit: ProcessExit | None = None
    settled: bool = False


@dataclass(frozen=True)
class ReplacementRequest:
    """The coordinator asks for another pod in a slot: two failures in place there, or its agent fell
    silent."""

    slot: int
    incarnation: int
    """The one to be replaced; stale wishes are ignored by this number."""
    cause: Cause
    message: str
    avoid_node: bool = False


@dataclass(frozen=True)
class JobReport:
    job_uid: str
    term: int
    boot: int
    phase: WorldPhase
    why: str
    """One sentence: what it does or waits for, and why."""
    stage: Stage = Stage.UNTOLD
    epoch: Epoch | None = None
    world_size: int = 0
    slots: dict[str, SlotReport] = field(default_factory=dict)
    rung: int = 0
    launcher: str = ""
    progress: Progress = Progress()
    lineage: tuple[CheckpointRef, ...] = ()
    """Committed checkpoints, newest first, at most 10."""
    checkpoint_unix_ms: int = 0
    incidents: tuple[Incident, ...] = ()
    """The last 10, oldest first."""
    replace: tuple[ReplacementRequest, ...] = ()
    replace_all: bool = False
    """Two gang starts in a row without a first step: start a new attempt with new pods."""
    failure: Problem | None = None
    stalled: Problem | None = None
    """What keeps it from training although it tries again and again; it will not end by that."""
    notice: Problem | None = None
    """What is odd about the world although it runs; it may end well."""
    process_groups: tuple[ProcessGroup, ...] = ()
    """Default process groups that processes of the current world have formed, largest first, at most 10."""
    newer_term: int = 0
    """A world of this term has claimed the folder of checkpoints, or an agent obeys it, so this coordinator
    is silent. Status went back (a backup of etcd), or it was cut off. 0: none has."""
    generation_seen: int = 0
    sent: float = 0.0
    """When, by the clock of this boot. Means nothing to others, who say it back."""
    leased: bool = True
    """Its lease holds. If not, it is silent towards all agents until its reports are said back to it."""
    late_seconds: int = 0
    """It does not keep up: in the last minute, or without such a minute since, it had its turn up to so many
    seconds late. 0: it keeps up."""
    contract: int = VERSION
