"""The events of an agent: frozen data for step.py, from outside, in the order in which they were observed."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.local import Beat, FromRank
from ropeteam_trainer.contract.messages import Hang, Orders, Problem, StoreOffer
from ropeteam_trainer.contract.world import CheckpointRef, ProcessExit, WorldId


@dataclass(frozen=True)
class OrdersReceived:
    """Orders, or an answer, of a coordinator.

    `age`: seconds since the report that they answer was sent, suspended time included. 0: the coordinator
    names no report. Infinite: it names one that is not remembered.
    """

    orders: Orders
    age: float = 0.0


@dataclass(frozen=True)
class Terminated:
    """SIGTERM was received."""


@dataclass(frozen=True)
class RanksStarted:
    """The start of this world's ranks is over. Ranks that could not be started are RankExited, before this
    event."""

    world_id: WorldId


@dataclass(frozen=True)
class RankExited:
    """A rank and all its descendants have exited. `exit`: as its parent saw it; apply.py adds the cause."""

    world_id: WorldId
    rank: int
    exit: ProcessExit


@dataclass(frozen=True)
class RankDying:
    """The kernel is ending this rank after a signal; RankExited follows when no process of it lives."""

    world_id: WorldId
    rank: int
    exit: ProcessExit


@dataclass(frozen=True)
class RankUnkillable:
    """This rank should have exited long ago, and a process of it still lives. RankExited may still follow."""

    world_id: WorldId
    rank: int
    exit: ProcessExit
    why_alive: str
    """Text for people: the process that still lives, and why."""


@dataclass(frozen=True)
class RankMessage:
    world_id: WorldId
    rank: int
    message: FromRank


@dataclass(frozen=True)
class StackShown:
    """The answer of one rank to ShowStacks; an empty Hang if no stack was obtained."""

    world_id: WorldId
    rank: int
    hang: Hang


@dataclass(frozen=True)
class HeartbeatsRead:
    world_id: WorldId
    heartbeats: dict[int, Beat]
    """By rank; ranks without a heartbeat are left out."""


@dataclass(frozen=True)
class StoreUp:
    """The socket of a store listens: its address may be given to ranks."""

    offer: StoreOffer


@dataclass(frozen=True)
class StoreDown:
    """The store of this world exited, or could not be opened."""

    world_id: WorldId


@dataclass(frozen=True)
class ManifestWritten:
    ref: CheckpointRef


@dataclass(frozen=True)
class ManifestFailed:
    """The manifest could not be written: an error of the disk. It is tried again."""

    ref: CheckpointRef


@dataclass(frozen=True)
class RunClaimed:
    """The checkpoint folder is claimed for world `world_id`, which may begin: no rank or agent of an older
    one can commit or prune any more."""

    world_id: WorldId
    held: Held
    restore: tuple[CheckpointRef, ...]
    """Checkpoints that the world may resume from, best first."""
    ancestors: tuple[tuple[CheckpointRef, ...], ...] = ()
    """For each of `restore`, in its order: its ancestors among the others."""


@dataclass(frozen=True)
class ClaimFailed:
    """The claim failed with an error of the disk. It is tried again."""

    world_id: WorldId


@dataclass(frozen=True)
class RunSuperseded:
    """A newer world has claimed the checkpoint folder, or another pod for the same world."""

    by: WorldId
    refused: WorldId
    """Number of the claim of ours that is refused."""


@dataclass(frozen=True)
class LinkUp:
    """A coordinator answered on a new connection."""


@dataclass(frozen=True)
class LinkLost:
    """The connection to the coordinator has ended. Follows each LinkUp."""


@dataclass(frozen=True)
class ProblemFound:
    """No rank can start in this pod."""

    problem: Problem


@dataclass(frozen=True)
class Tick:
    """Time has passed. Needed a few times a second (fence.TICK_SECONDS) for fence, hang, drain and exit.
    `asleep`: seconds for which the machine has been suspended since the agent started."""

    asleep: float = 0.0


Event = (
    OrdersReceived
    | Terminated
    | RanksStarted
    | RankDying
    | RankExited
    | RankUnkillable
    | RankMessage
    | StackShown
    | HeartbeatsRead
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
