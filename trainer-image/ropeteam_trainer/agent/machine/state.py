"""The state of an agent: frozen data for step.py.

Times are seconds of the monotonic clock that `Beat.monotonic_ns` uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.config import PodIdentity, Start, WorkerConfig
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.local import Beat, FromRank, Served, ToRank
from ropeteam_trainer.contract.messages import (
    Grant,
    GroupReport,
    Hang,
    Orders,
    Problem,
    Shard,
    StoreOffer,
)
from ropeteam_trainer.contract.world import CheckpointRef, Plan, ProcessExit, WorldId
from ropeteam_trainer.launchers import Launch

DISK_SECONDS = 60.0
"""After this time an unfinished claim or manifest is reported: a disk that hangs raises no error."""


@dataclass(frozen=True)
class ProgressSample:
    """One sample of a rank's progress, for step time and rate."""

    at: float
    step: int
    samples: float


@dataclass(frozen=True)
class RankState:
    """One local rank of the current world."""

    rank: int
    alive: bool = True
    started_at: float | None = None
    has_library: bool = False
    """The rank has sent hello: it can be paused, and a first step is expected."""
    joins: bool = False
    """The rank has called init_process_group."""
    heartbeat: Beat = field(default_factory=Beat)
    progress_samples: tuple[ProgressSample, ...] = ()
    stacks_requested: bool = False
    """The stacks were requested since the last heartbeat."""
    hang: Hang | None = None
    """The answer to that request."""
    paused: int | None = None
    drained: int | None = None
    served: Served | None = None
    left: bool = False
    """Worker: its parameter servers do not wait for it any more. Server: all its workers have left."""
    error: FromRank | None = None
    error_at: float = 0.0
    failing: bool = False
    """An error that blames no peer was reported before the agent was to end the rank."""
    ended: int | None = None
    """The first of the ranks of a launcher in this pod that has reached its end."""
    killed_for: ProcessExit | None = None
    """A template for the exit of a rank that the agent killed for the rank's own fault."""
    sent: ToRank = field(default_factory=ToRank)
    exit: ProcessExit | None = None
    """Known before the end of `alive` if the rank is dying."""
    unkillable: bool = False
    """A process of the rank can only be killed by the end of this container."""

    @property
    def waits(self) -> bool:
        """Whether the rank waits in report(), as requested."""
        return self.drained is not None or (self.paused is not None and self.heartbeat.step <= self.paused)


@dataclass(frozen=True)
class World:
    """The world whose ranks live here, or lived here last."""

    plan: Plan
    started_in: WorldId
    """The world that started the ranks. Events and effects name them by it, also where `plan` is a later one
    that keeps them."""
    ranks: tuple[RankState, ...]
    killing: bool = False
    terminate_by: float | None = None
    """SIGTERM was sent; SIGKILL follows at this time."""
    shards: tuple[Shard, ...] = ()
    restored: CheckpointRef | None = None
    groups: tuple[GroupReport, ...] = ()
    """Default process groups that its ranks, or their children, have formed."""
    total_steps: int | None = None
    loss: str = ""

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(rank.rank for rank in self.ranks if rank.alive)

    def with_rank(self, changed: RankState) -> World:
        return replace(self, ranks=tuple(changed if r.rank == changed.rank else r for r in self.ranks))


@dataclass(frozen=True)
class State:
    """The whole state of an agent. Only machine.step makes a new one."""

    config: WorkerConfig
    identity: PodIdentity = field(repr=False)
    launch: Launch
    now: float
    answered_at: float
    """Send time, by `awake_or_not`, of the newest report that a coordinator of this term, or a higher one,
    has answered. Neither connections nor greetings advance it, nor answers that were long under way."""
    asleep: float = 0.0
    linked: bool = False
    fenced: bool = False
    """Ranks were killed because no coordinator answered; ends with the next orders."""
    term: int = 0
    boot: int = 0
    orders: Orders | None = None
    applied_orders: int = 0
    world: World | None = None
    feature_level: int = 0
    warmed: WorldId | None = None
    """The last world for which the zygote was made ready to fork ranks."""
    stores: tuple[StoreOffer, ...] = ()
    requested_stores: frozenset[WorldId] = frozenset()
    """Stores that were requested from stores.py, ready or not."""
    lost_stores: tuple[StoreOffer, ...] = ()
    """The newest stores that were offered and have ended. A plan that was under way may name one."""
    store_retry_at: float = 0.0
    held: Held | None = None
    """The agent's claim to the run's folder: that of the newest world whose lead rank was started here."""
    restore: tuple[CheckpointRef, ...] = ()
    """Checkpoints that this world may resume from."""
    ancestors: tuple[tuple[CheckpointRef, ...], ...] = ()
    """The ancestors of each of these among the others."""
    claiming: WorldId | None = None
    claim_since: tuple[WorldId, float] | None = None
    """The world that waits for a claim, and since when."""
    claim_retry_at: float = 0.0
    superseded: WorldId | None = None
    """A newer world has claimed that folder: no rank may live here any more."""
    writing: CheckpointRef | None = None
    disk_since: float = 0.0
    """Start time of the claim or manifest that is under way."""
    write_retry_at: float = 0.0
    grant: Grant | None = None
    """The newest grant that was accepted. A new coordinator does not grant it again if some of its shards are
    gone with their pods, and yet waits for the manifest: writing is retried until it succeeds."""
    committed: CheckpointRef | None = None
    pruned: tuple[CheckpointRef, ...] = ()
    leave_by: float | None = None
    """Set by SIGTERM."""
    completed: WorldId | None = None
    problem: Problem | None = None
    exit_code: int | None = None
    """Exit is decided; ranks are killed first."""
    exited: bool = False

    @property
    def awake_or_not(self) -> float:
        """The time as in `now`, but also counted while the machine is suspended, as others count it."""
        return self.now + self.asleep

    @property
    def stopped(self) -> bool:
        """Whether no rank, nor descendant of one, lives."""
        return self.world is None or not self.world.alive

    @property
    def pending_disk_request(self) -> str:
        """The operation that the volume of checkpoints has not finished for long; "": none."""
        if self.now - self.disk_since < DISK_SECONDS:
            return ""
        if self.writing:
            return f"the manifest of step {self.writing.step}"
        return f"the claim of world {self.claiming}" if self.claiming else ""

    @property
    def may_end(self) -> bool:
        """Whether no process lives that this agent can still kill."""
        return self.world is None or all(rank.unkillable or not rank.alive for rank in self.world.ranks)

    @property
    def uses_library(self) -> bool:
        """Whether the script calls init(). Others never report a step."""
        return self.feature_level >= FeatureLevel.STEPS

    @property
    def may_fork(self) -> bool:
        start = self.config.start
        wanted = start is Start.FORK or (start is Start.AUTO and self.uses_library)
        return wanted and self.launch.forkable

    @property
    def desired_plan(self) -> Plan | None:
        """The plan whose ranks, and no others, may live here now."""
        plan = self.orders.plan if self.orders and not self.orders.refused else None
        if plan is None or self.fenced or self.problem or self.superseded or self.exit_code is not None:
            return None
        member = plan.member(self.identity.slot)
        is_here = member is not None and (member.incarnation, member.pod_uid) == (
            self.identity.incarnation,
            self.identity.pod_uid,
        )
        return plan if is_here else None
