"""Effects of an agent: frozen data, made by step.py and carried out by main.py, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Plan, WorldId


@dataclass(frozen=True)
class WarmUp:
    """Prepare the zygote to fork ranks, in the background. A zygote that died is replaced."""


@dataclass(frozen=True)
class ClaimRun:
    """Claim the checkpoint folder for this plan's world, before its ranks start. RunClaimed, ClaimFailed or
    RunSuperseded follows."""

    plan: Plan


@dataclass(frozen=True)
class StartRanks:
    """Start ranks of this pod. RanksStarted follows, also if some of them could not be started."""

    plan: Plan
    ranks: tuple[int, ...]
    fork: bool
    """Fork from the zygote if one is ready, else exec."""
    restore: tuple[CheckpointRef, ...] = ()
    """Checkpoints that the ranks may resume from, best first."""


@dataclass(frozen=True)
class KillRanks:
    """SIGKILL these ranks and all their descendants. RankExited follows for each, or RankUnkillable."""

    world_id: WorldId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class TerminateRanks:
    """Send SIGTERM to these ranks, so that a script which saves by itself may do so."""

    world_id: WorldId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ShowStacks:
    """Make these ranks print the stacks of all their threads. StackShown follows for each."""

    world_id: WorldId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class SendToRank:
    world_id: WorldId
    rank: int
    message: ToRank


@dataclass(frozen=True)
class HostStore:
    """Start a store. StoreUp follows, and StoreDown if it fails to start or exits, then or later."""

    world_id: WorldId


@dataclass(frozen=True)
class CloseStore:
    """Close a store, if it runs. No event follows."""

    world_id: WorldId


@dataclass(frozen=True)
class WriteManifest:
    """Commit a checkpoint. ManifestWritten, ManifestFailed or RunSuperseded follows."""

    held: Held
    grant: Grant


@dataclass(frozen=True)
class Prune:
    """Delete checkpoints that are not in `keep` and not newer than its first. An error is only logged."""

    held: Held
    keep: tuple[CheckpointRef, ...]
    """Newest first; not empty."""


@dataclass(frozen=True)
class DropLink:
    """Close the connection to a stale coordinator, and look for another."""

    why: str


@dataclass(frozen=True)
class Exit:
    """Exit; always the last effect. Every rank is dead, or only the container's end can kill it."""

    code: int


Effect = (
    WarmUp
    | ClaimRun
    | StartRanks
    | KillRanks
    | TerminateRanks
    | ShowStacks
    | SendToRank
    | HostStore
    | CloseStore
    | WriteManifest
    | Prune
    | DropLink
    | Exit
)
