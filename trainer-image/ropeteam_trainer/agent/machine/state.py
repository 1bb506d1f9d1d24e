"""What an agent knows, and what can happen to it: frozen data for step.py.

Events come from outside in the order in which they were seen. What it can do is in effects.py.
Times are seconds of the monotonic clock that `Beat.monotonic_ns` uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.config import PodIdentity, Start, WorkerConfig
from ropeteam_trainer.contract.local import Beat, FromRank, Served, ToRank
from ropeteam_trainer.contract.messages import (
    Grant,
    GroupReport,
    Orders,
    Problem,
    Shard,
    Standstill,
    StoreOffer,
)
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, Plan, ProcessExit
from ropeteam_trainer.launchers import Launch

DISK_SECONDS = 60.0
"""After which a claim or a manifest that is under way is told of: a disk that hangs makes no error."""

# ---- events


@dataclass(frozen=True)
class OrdersReceived:
    """`age`: seconds since the report was sent that these orders answer, also those for which the machine was
    suspended. 0 if their sender does not tell."""

    orders: Orders
    age: float = 0.0


@dataclass(frozen=True)
class Terminated:
    """SIGTERM came."""


@dataclass(frozen=True)
class RanksStarted:
    """The processes of this epoch exist. Ranks that could not be started follow as RankExited."""

    epoch: Epoch


@dataclass(frozen=True)
class RankExited:
    """A rank and all its descendants are gone. `exit` is what its parent saw; the machine adds why."""

    epoch: Epoch
    rank: int
    exit: ProcessExit


@dataclass(frozen=True)
class RankDying:
    """The kernel is taking this rank apart after a signal; RankExited follows once nothing of it is left."""

    epoch: Epoch
    rank: int
    exit: ProcessExit


@dataclass(frozen=True)
class RankUnburied:
    """This rank should be gone long since, and something of it lives. RankExited may still follow."""

    epoch: Epoch
    rank: int
    exit: ProcessExit
    left: str
    """What, and why, for people."""


@dataclass(frozen=True)
class RankMessage:
    epoch: Epoch
    rank: int
    said: FromRank


@dataclass(frozen=True)
class StackShown:
    """The answer to ShowStacks, of each rank."""

    epoch: Epoch
    rank: int
    stands: Standstill


@dataclass(frozen=True)
class BeatsRead:
    epoch: Epoch
    beats: dict[int, Beat]


@dataclass(frozen=True)
class StoreUp:
    offer: StoreOffer


@dataclass(frozen=True)
class StoreDown:
    """The store of this epoch died, or could not be opened."""

    epoch: Epoch


@dataclass(frozen=True)
class ManifestWritten:
    ref: CheckpointRef


@dataclass(frozen=True)
class ManifestFailed:
    ref: CheckpointRef


@dataclass(frozen=True)
class RunClaimed:
    """A world of `epoch` may begin: nobody of an older one can save or prune any more."""

    epoch: Epoch
    held: Held
    restore: tuple[CheckpointRef, ...]
    """What it may go on from, best first."""
    pasts: tuple[tuple[CheckpointRef, ...], ...] = ()
    """Of each of these: which of the others it descends from."""


@dataclass(frozen=True)
class ClaimFailed:
    """The disk did not answer as it should."""

    epoch: Epoch


@dataclass(frozen=True)
class RunSuperseded:
    """A newer world has claimed the run."""

    by: Epoch


@dataclass(frozen=True)
class LinkUp:
    """A coordinator answered on a new connection."""


@dataclass(frozen=True)
class LinkLost:
    pass


@dataclass(frozen=True)
class ProblemFound:
    problem: Problem


@dataclass(frozen=True)
class Tick:
    """Time has passed. Needed a few times a second for the clocks of fence, hang, drain and leave. `asleep`:
    seconds for which the machine has been suspended since the agent began."""

    asleep: float = 0.0


Event = (
    OrdersReceived
    | Terminated
    | RanksStarted
    | RankDying
    | RankExited
    | RankUnburied
    | RankMessage
    | StackShown
    | BeatsRead
    | StoreUp
    | StoreDown
    | ManifestWritten
    | ManifestFailed
    | RunClaimed
    | ClaimFailed
    | RunSuperseded
    | LinkUp
    | LinkLost
    | ProblemFound
    | Tick
)

# ---- state


@dataclass(frozen=True)
class ProgressSample:
    """One point of a rank's progress, to learn step time and rate from."""

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
    """It said hello: it can be paused, and a first step is expected."""
    joins: bool = False
    """It has called init_process_group."""
    beat: Beat = field(default_factory=Beat)
    paces: tuple[ProgressSample, ...] = ()
    asked: bool = False
    """For its stacks, since its heart beat last."""
    stands: Standstill | None = None
    """What it answered."""
    paused: int | None = None
    drained: int | None = None
    served: Served | None = None
    left: bool = False
    """A worker: its parameter servers do not wait for it any more. A server: all its workers have left."""
    error: FromRank | None = None
    error_at: float = 0.0
    failing: bool = False
    """An error that blames no peer was told before the agent was to end it."""
    ended: int | None = None
    """The first of the ranks that a launcher runs here which has reached its end."""
    killed_for: ProcessExit | None = None
    """Why the agent killed it, when it was the rank's own fault: a template for its exit."""
    told: ToRank = field(default_factory=ToRank)
    exit: ProcessExit | None = None
    """Known before the end of `alive` if it is dying."""
    unburied: bool = False
    """Something of it cannot be killed but by the end of this container."""

    @property
    def waits(self) -> bool:
        """In report(), because it was asked to."""
        return self.drained is not None or (self.paused is not None and self.beat.step <= self.paused)


@dataclass(frozen=True)
class World:
    """The world whose ranks live here, or lived here last."""

    plan: Plan
    born: Epoch
    """What started the ranks. Events and effects know them by it, also where `plan` is a later one that keeps
    them."""
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
    """Everything an agent knows. Only machine.step makes a new one."""

    config: WorkerConfig
    identity: PodIdentity = field(repr=False)
    launch: Launch
    now: float
    heard_at: float
    """By `awake_or_not`: when the newest report was sent that a coordinator of our term, or a higher one, has
    answered. Neither connections nor greetings move it, nor answers that were long under way."""
    asleep: float = 0.0
    linked: bool = False
    fenced: bool = False
    """Ranks were killed because no coordinator answered; ends with the next orders."""
    term: int = 0
    boot: int = 0
    orders: Orders | None = None
    orders_seen: int = 0
    world: World | None = None
    rung: int = 0
    warmed: Epoch | None = None
    """The last world for which the zygote was made ready to fork ranks."""
    stores: tuple[StoreOffer, ...] = ()
    asked: frozenset[Epoch] = frozenset()
    """Stores that were ordered from the keeper, ready or not."""
    lost_stores: tuple[StoreOffer, ...] = ()
    """The newest that were offered and are held no more. A plan that was on its way may name one."""
    store_retry_at: float = 0.0
    held: Held | None = None
    """Our claim to the folder of the run: that of the newest world whose leading rank was started here."""
    restore: tuple[CheckpointRef, ...] = ()
    """What that world may go on from."""
    pasts: tuple[tuple[CheckpointRef, ...], ...] = ()
    """Of each of these: which of the others it descends from."""
    claiming: Epoch | None = None
    claim_since: tuple[Epoch, float] | None = None
    """Which world waits for a claim, and since when."""
    claim_retry_at: float = 0.0
    superseded: Epoch | None = None
    """A newer world has claimed that folder: no rank may live here any more."""
    writing: CheckpointRef | None = None
    disk_since: float = 0.0
    """When the claim or manifest was begun that is under way."""
    write_retry_at: float = 0.0
    grant: Grant | None = None
    """The newest that we obeyed. A coordinator that took over gives none again if shards of it are gone with
    their pods, and yet waits for the manifest: it is tried until it is written."""
    committed: CheckpointRef | None = None
    pruned: tuple[CheckpointRef, ...] = ()
    leave_by: float | None = None
    """Set by SIGTERM."""
    completed: Epoch | None = None
    problem: Problem | None = None
    exit_code: int | None = None
    """Decided to exit; ranks are killed first."""
    exited: bool = False

    @property
    def awake_or_not(self) -> float:
        """As `now`, and goes on while the machine is suspended: for what others count too."""
        return self.now + self.asleep

    @property
    def stopped(self) -> bool:
        """No rank, nor descendant of one, lives."""
        return self.world is None or not self.world.alive

    @property
    def disk_owes(self) -> str:
        """What the volume of checkpoints has not answered for long; "": nothing."""
        if self.now - self.disk_since < DISK_SECONDS:
            return ""
        if self.writing:
            return f"the manifest of step {self.writing.step}"
        return f"the claim of world {self.claiming}" if self.claiming else ""

    @property
    def may_end(self) -> bool:
        """Nothing lives that this agent could still end by itself."""
        return self.world is None or all(rank.unburied or not rank.alive for rank in self.world.ranks)

    @property
    def may_fork(self) -> bool:
        wanted = self.config.start is Start.FORK or (self.config.start is Start.AUTO and self.rung >= 1)
        return wanted and self.launch.forkable

    @property
    def wanted(self) -> Plan | None:
        """The plan whose ranks, and no others, may live here now."""
        plan = self.orders.plan if self.orders and not self.orders.refused else None
        if plan is None or self.fenced or self.problem or self.superseded or self.exit_code is not None:
            return None
        me = plan.member(self.identity.slot)
        is_me = me is not None and (me.incarnation, me.pod_uid) == (
            self.identity.incarnation,
            self.identity.pod_uid,
        )
        return plan if is_me else None
