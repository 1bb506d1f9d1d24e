"""The events of an agent: frozen data for step.py, from outside, in the order in which they were observed."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.local import Beat, FromRank
from ropeteam_trainer.contract.messages import Hang, Orders, Problem, StoreOffer
from ropeteam_trainer.contract.world import CheckpointRef, ProcessExit, WorldId


@dataclass(frozen=True)
class OrdersReceived:
    """Orders, or an answer, of a coordinator. `age`: seconds since the report that they answer was sent, with
    those for which the machine was suspended. 0 if the coordinator names no report."""

    orders: Orders
    age: float = 0.0


@dataclass(frozen=True)
class Terminated:
    """SIGTERM was received."""


@dataclass(frozen=True)
class RanksStarted:
    """The processes of this world exist. Ranks that could not be started follow as RankExited."""

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
    left: str
    """Text for people: which process, and why."""


@dataclass(frozen=True)
class RankMessage:
    world_id: WorldId
    rank: int
    message: FromRank


@dataclass(frozen=True)
class StackShown:
    """The answer of each rank to ShowStacks."""

    world_id: WorldId
    rank: int
    hang: Hang


@dataclass(frozen=True)
class HeartbeatsRead:
    world_id: WorldId
    heartbeats: dict[int, Beat]


@dataclass(frozen=True)
class StoreUp:
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
    ref: CheckpointRef


@dataclass(frozen=True)
class RunClaimed:
    """World `world_id` may begin: no rank or agent of an older one can save or prune any more."""

    world_id: WorldId
    held: Held
    restore: tuple[CheckpointRef, ...]
    """Checkpoints that the world may resume from, best first."""
    ancestors: tuple[tuple[CheckpointRef, ...], ...] = ()
    """The ancestors of each of these among the others."""


@dataclass(frozen=True)
class ClaimFailed:
    """The claim failed with an error of the disk."""

    world_id: WorldId


@dataclass(frozen=True)
class RunSuperseded:
    """A newer world has claimed the run."""

    by: WorldId


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
    """Time has passed. Needed a few times a second for the clocks of fence, hang, drain and exit. `asleep`:
    seconds for which the machine has been suspended since the agent started."""

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
