"""The state of an agent: frozen data for step.py. Properties only combine fields; rules are in step.py.

Times are seconds of CLOCK_MONOTONIC, as `Beat.monotonic_ns`; it stops while the machine is suspended. Fields
that count suspended time too say so.
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
"""Age at which an unfinished claim or manifest is reported: a disk that hangs raises no error."""


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
    """False once the rank and all its descendants have exited. True also before the rank is started."""
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
    acknowledges_pause: bool = False
    """The library of the rank sends `pause_received`."""
    pause_received: int | None = None
    """Last step of the rank when it received the pause of `sent`, as it reported. It waits at its next
    report()."""
    paused: int | None = None
    """Step after which the rank waits in report(), as it reported."""
    drained: int | None = None
    """Step after which the rank has stopped for good, as it reported."""
    served: Served | None = None
    """Newest counters of a parameter server."""
    regroups: bool = False
    """If other ranks are lost, it can continue with those that are left."""
    started_in: WorldId | None = None
    """The world that started it, if it was started again beside others of this pod. None: it is theirs."""
    is_lost: bool = False
    """The others continue without it. SIGKILL was requested."""
    left: bool = False
    """Worker: its parameter servers do not wait for it any more. Server: all its workers have left."""
    error: FromRank | None = None
    """The reported exception that is nearest to the cause of the rank's exit."""
    error_at: float = 0.0
    failing: bool = False
    """An error that blames no peer was reported before the agent was to end the rank."""
    ended_rank: int | None = None
    """The first of the ranks of a launcher in this pod that has reached its end."""
    killed_for: ProcessExit | None = None
    """Set when the agent kills the rank because it hangs, has no store, or is fenced or superseded: these
    fields explain its exit."""
    sent: ToRank = field(default_factory=ToRank)
    """The newest message to the rank."""
    exit: ProcessExit | None = None
    """Set when the rank has exited, or is dying: `alive` is still true then."""
    unkillable: bool = False
    """A process of the rank can only be killed by the end of this container."""

    @property
    def waits(self) -> bool:
        """Whether the rank waits in report(), because of orders. Not once it has made a step since."""
        return self.drained is not None or (self.paused is not None and self.heartbeat.step <= self.paused)


@dataclass(frozen=True)
class LocalWorld:
    """The world whose ranks live here, or lived here last."""

    plan: Plan
    started_in: WorldId
    """The world that started the ranks, or the first of them. Events and effects name them by it, also where
    `plan` is a later one that keeps them."""
    ranks: tuple[RankState, ...]
    """The local ranks, lowest first; never empty."""
    killing: bool = False
    """SIGKILL was requested for all ranks."""
    terminate_by: float | None = None
    """SIGTERM was requested; SIGKILL follows at this time."""
    shards: tuple[Shard, ...] = ()
    """Shards of local ranks that are written but not known to be committed."""
    restored: CheckpointRef | None = None
    groups: tuple[GroupReport, ...] = ()
    """Default process groups that its ranks, or their children, have formed."""
    total_steps: int | None = None
    loss: str = ""

    @property
    def alive_ranks(self) -> tuple[int, ...]:
        """Numbers of the ranks of which a process may live."""
        return tuple(rank.rank for rank in self.ranks if rank.alive)

    def with_rank(self, changed: RankState) -> LocalWorld:
        """The world with the rank of the same number replaced."""
        return replace(self, ranks=tuple(changed if r.rank == changed.rank else r for r in self.ranks))


@dataclass(frozen=True)
class AgentState:
    """The whole state of an agent. Only step.py makes new ones."""

    config: WorkerConfig
    identity: PodIdentity = field(repr=False)
    launch: Launch
    now: float
    """Time of the event that is being applied."""
    answered_at: float
    """Send time, by `now_with_suspension`, of the newest report that a coordinator has answered. Connections,
    greetings and stale coordinators do not advance it."""
    asleep: float = 0.0
    """Seconds for which the machine has been suspended since the agent started."""
    linked: bool = False
    """Connected to a coordinator that is not stale."""
    fenced: bool = False
    """Ranks were killed because no coordinator answered; ends with the next orders."""
    term: int = 0
    boot: int = 0
    """Highest (term, boot) of a coordinator that has answered."""
    orders: Orders | None = None
    """The newest orders; they stay in force without a connection, until the fence."""
    applied_orders: int = 0
    """Number of the newest orders of this connection; 0: none, the coordinator sends them again."""
    world: LocalWorld | None = None
    feature_level: int = 0
    """Highest level that a local script has used, over all worlds."""
    warmed: WorldId | None = None
    """The last world for which the zygote was made ready to fork ranks."""
    stores: tuple[StoreOffer, ...] = ()
    """Stores that listen here."""
    requested_stores: frozenset[WorldId] = frozenset()
    """Stores that were requested from stores.py, ready or not."""
    lost_stores: tuple[StoreOffer, ...] = ()
    """The newest stores that were offered and have ended. A plan that was under way may name one."""
    store_retry_at: float = 0.0
    """No store is requested before this time."""
    held: Held | None = None
    """The agent's claim to the checkpoint folder: of the newest world whose lead rank was started here, or of
    the newest deputy that this agent was."""
    restore: tuple[CheckpointRef, ...] = ()
    """Checkpoints that this world may resume from."""
    ancestors: tuple[tuple[CheckpointRef, ...], ...] = ()
    """The ancestors of each of these among the others."""
    claiming: WorldId | None = None
    """World of the claim that is under way on the disk."""
    claim_since: tuple[WorldId, float] | None = None
    """The world that waits for a claim, over all attempts, and since when."""
    claim_retry_at: float = 0.0
    superseded: WorldId | None = None
    """A newer world, not this agent's, has claimed that folder: no rank may live here any more."""
    writing: CheckpointRef | None = None
    """Checkpoint whose manifest is being written."""
    disk_since: float = 0.0
    """Start time of the claim or manifest that is under way."""
    write_retry_at: float = 0.0
    grant: Grant | None = None
    """The newest grant that was accepted. A new coordinator does not grant it again if some of its shards are
    gone with their pods, and yet waits for the manifest: writing is retried until it succeeds."""
    committed: CheckpointRef | None = None
    """Newest checkpoint whose manifest this agent has written."""
    pruned: tuple[CheckpointRef, ...] = ()
    """The lineage for which pruning was last requested."""
    exit_by: float | None = None
    """Set by SIGTERM: the agent exits at this time at the latest, once its ranks are dead."""
    completed: WorldId | None = None
    """The world that `Orders.complete` last named."""
    problem: Problem | None = None
    exit_code: int | None = None
    """Exit is decided; ranks are killed first."""
    exited: bool = False
    """The effect Exit was returned; every later event is ignored."""

    @property
    def now_with_suspension(self) -> float:
        """`now` plus suspended time: the clock of fences and leases, because other machines ran meanwhile."""
        return self.now + self.asleep

    @property
    def stopped(self) -> bool:
        """Whether no rank, nor descendant of one, lives or is about to be started."""
        return self.world is None or not self.world.alive_ranks

    @property
    def pending_disk_request(self) -> str:
        """Text: the operation that the checkpoint volume has not finished for DISK_SECONDS. "": none."""
        if self.now - self.disk_since < DISK_SECONDS:
            return ""
        if self.writing:
            return f"the manifest of step {self.writing.step}"
        return f"the claim of world {self.claiming}" if self.claiming else ""

    @property
    def may_exit(self) -> bool:
        """Whether every rank is dead, or only the end of the container can kill it."""
        return self.world is None or all(rank.unkillable or not rank.alive for rank in self.world.ranks)

    @property
    def uses_library(self) -> bool:
        """Whether a local script has called init(), now or in an earlier world. Others report no step."""
        return self.feature_level >= FeatureLevel.STEPS

    @property
    def may_fork(self) -> bool:
        """Whether ranks are forked from the zygote, if one is ready: as spec.recovery.start says, if the
        command has a Python script."""
        start = self.config.start
        wanted = start is Start.FORK or (start is Start.AUTO and self.uses_library)
        return wanted and self.launch.forkable

    @property
    def desired_plan(self) -> Plan | None:
        """The plan whose ranks, and no others, may live here now. None: no rank may live here.

        None also if the plan names another pod, or another incarnation, for this slot.
        """
        plan = self.orders.plan if self.orders and not self.orders.refused else None
        if plan is None or self.fenced or self.problem or self.superseded or self.exit_code is not None:
            return None
        member = plan.member(self.identity.slot)
        is_here = member is not None and (member.incarnation, member.pod_uid) == (
            self.identity.incarnation,
            self.identity.pod_uid,
        )
        return plan if is_here else None

    def has_lost_store_of(self, plan: Plan) -> bool:
        """Whether the store of this plan was held here and has ended. No other pod knows of that. Jobs with
        parameter servers, and commands that run once per pod, use no store of ours."""
        offer = StoreOffer(plan.world_id, plan.store_host, plan.store_port)
        return offer in self.lost_stores and not self.config.servers and not self.launch.per_pod

    @property
    def runs_desired_plan(self) -> bool:
        """Whether the world here is that of the desired plan, in whatever state its ranks are."""
        plan = self.desired_plan
        return self.world is not None and plan is not None and self.world.plan.hash == plan.hash
