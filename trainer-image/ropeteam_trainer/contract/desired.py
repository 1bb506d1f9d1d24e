"""Operator -> coordinator: Desired, by `PUT /desired`. Response (and that of `GET /status`): JobReport. Both
are idempotent."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ropeteam_trainer.contract import OLDEST, VERSION
from ropeteam_trainer.contract.codec import stored_as
from ropeteam_trainer.contract.messages import Problem, ProcessGroup, Progress
from ropeteam_trainer.contract.world import Cause, CheckpointRef, ProcessExit, WorldId


@dataclass(frozen=True)
class SlotDesired:
    """Pod that holds a slot. The operator's choice is final: a registration of any other pod is refused."""

    incarnation: int
    pod_uid: str = ""
    """Empty: the pod does not exist yet."""
    terminating: bool = stored_as("deleting", False)
    previous_pod_fenced: bool = stored_as("old_pod_gone", True)
    """No previous pod of this slot can still write: its container is known to have ended, or fenceSeconds
    have passed. A script below feature level 2 is not started in a replacement before this is true."""


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
    acknowledged_boot: int = stored_as("boot", -1)
    acknowledged_sent: float = stored_as("heard", 0.0)
    """`JobReport.boot` and `sent` of the newest report of this term that this operator has received. This
    message was sent after that one, whenever it arrives: CoordinatorConfig.lease is counted from there. -1:
    the operator has none."""
    contract: int = OLDEST
    """The coordinator may be of an earlier release, created by an operator before this one."""
    failure: Problem | None = None
    """The job has failed with this problem, and status records it: agents may exit."""


class WorldPhase(str, enum.Enum):
    WAITING = "Waiting"  # after a boot: for agents to report a world to adopt, or one lease
    FORMING = "Forming"  # gathering members, a store, or a backoff to pass
    RUNNING = "Running"
    STOPPING = "Stopping"  # after a fault: until every rank of the world is dead
    DRAINING = "Draining"
    DRAINED = "Drained"
    COMPLETING = "Completing"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Stage(str, enum.Enum):
    """Progress of a running world on its way to its first step."""

    UNKNOWN = ""  # nothing runs, or a coordinator of an earlier release
    RANKS_STARTING = "RanksStarting"
    SCRIPT_STARTING = "ScriptStarting"  # it imports, say
    PROCESS_GROUP_FORMING = "ProcessGroupForming"  # some ranks are in init_process_group
    RESTORING = "Restoring"
    FIRST_STEP = "FirstStep"
    TRAINING = "Training"  # all ranks have made a step; without reported steps: all that can be known


@dataclass(frozen=True)
class SlotReport:
    incarnation: int
    pod_uid: str
    node: str = ""
    registered: bool = False
    """The lease of its agent is valid."""
    terminating: bool = stored_as("leaving", False)
    silent_seconds: float = 0.0
    term: int = 0
    """Highest term of a coordinator that its agent has seen: it refuses lower ones."""
    preserved: bool = False
    """Ranks of this pod live on although their world has ended: they may still save."""


@dataclass(frozen=True)
class RecoveryTimes:
    """Recovery stages, in milliseconds since the fault was observed. None: not reached yet."""

    stopped: int | None = None
    """All ranks of the old world dead."""
    planned: int | None = None
    """Next plan published: members and store ready."""
    started: int | None = None
    """All ranks of the new world started."""
    first_step: int | None = None
    """All ranks have made a step: the job has recovered."""


@dataclass(frozen=True)
class Incident:
    """One fault with all its consequences. Cause and charge are provisional until `final`."""

    id: str
    """Number of the world that it ended. A world ends once: it has one incident."""
    cause: Cause
    charged: bool
    slot: int
    rank: int | None
    node: str
    message: str
    step: int
    """Highest step of the world when it ended."""
    unix_ms: int
    """Wall clock time of its observation; for people only."""
    steps_lost: int | None = None
    """Known once the next world has restored."""
    recovery_milliseconds: RecoveryTimes = stored_as("stages", RecoveryTimes())
    exit: ProcessExit | None = None
    final: bool = stored_as("settled", False)


@dataclass(frozen=True)
class ReplacementRequest:
    """Request of the coordinator for another pod in a slot: after two failures in place there, or when its
    agent has lost its lease."""

    slot: int
    incarnation: int
    """Incarnation to be replaced; stale requests are ignored by this number."""
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
    """One sentence: the coordinator's activity, or what it waits for, and the reason."""
    stage: Stage = Stage.UNKNOWN
    world_id: WorldId | None = stored_as("epoch", None)
    world_size: int = 0
    slots: dict[str, SlotReport] = field(default_factory=dict)
    feature_level: int = stored_as("rung", 0)
    launcher: str = ""
    progress: Progress = Progress()
    lineage: tuple[CheckpointRef, ...] = ()
    """Committed checkpoints, newest first, at most 10."""
    checkpoint_unix_ms: int = 0
    incidents: tuple[Incident, ...] = ()
    """The last 10, oldest first."""
    replacement_requests: tuple[ReplacementRequest, ...] = stored_as("replace", ())
    replace_all: bool = False
    """Two gang starts in a row without a first step: start a new attempt with new pods."""
    failure: Problem | None = None
    stalled: Problem | None = None
    """Problem that keeps the job from training, although it retries; the job does not fail by it."""
    notice: Problem | None = None
    """Problem of a world that runs nevertheless; the job may still complete."""
    process_groups: tuple[ProcessGroup, ...] = ()
    """Default process groups that processes of the current world have formed, largest first, at most 10."""
    newer_term: int = 0
    """A world of this term has claimed the checkpoint folder, or an agent has seen it, so this coordinator is
    silent. Status went back (a backup of etcd), or this coordinator was cut off. 0: there is none."""
    observed_generation: int = stored_as("generation_seen", 0)
    sent: float = 0.0
    """Time of sending, by the clock of this boot. Opaque to receivers, which echo it."""
    lease_valid: bool = stored_as("leased", True)
    """The coordinator's lease is valid. If not, it is silent towards all agents until its reports are
    acknowledged."""
    lag_seconds: int = stored_as("late_seconds", 0)
    """Overload: in the last minute, or without a good minute since, the coordinator's event loop had its turn
    up to so many seconds late. 0: it keeps up."""
    contract: int = VERSION
