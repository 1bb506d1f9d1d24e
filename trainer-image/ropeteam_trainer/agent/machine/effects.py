"""Effects of an agent: frozen data, made by step.py and carried out by main.py, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Plan, WorldId


@dataclass(frozen=True)
class WarmUp:
    """Prepare a zygote: ranks may be forked from now on."""


@dataclass(frozen=True)
class ClaimRun:
    """Claim the run before the ranks of this plan start; only where checkpoints are written."""

    plan: Plan


@dataclass(frozen=True)
class StartRanks:
    plan: Plan
    fork: bool
    """From the zygote if one is ready, else by exec."""
    restore: tuple[CheckpointRef, ...] = ()
    """Checkpoints that the ranks may resume from, best first."""


@dataclass(frozen=True)
class KillRanks:
    """SIGKILL these ranks and all their descendants; a RankExited of each follows."""

    world_id: WorldId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class TerminateRanks:
    """SIGTERM these ranks, so that a script which saves by itself may do so."""

    world_id: WorldId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ShowStacks:
    """Make these ranks print the stacks of all their threads; a StackShown of each follows."""

    world_id: WorldId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class SendToRank:
    world_id: WorldId
    rank: int
    message: ToRank


@dataclass(frozen=True)
class HostStore:
    world_id: WorldId


@dataclass(frozen=True)
class CloseStore:
    world_id: WorldId


@dataclass(frozen=True)
class WriteManifest:
    held: Held
    grant: Grant


@dataclass(frozen=True)
class Prune:
    """Delete checkpoint folders that are not in `keep` and not newer than its first."""

    held: Held
    keep: tuple[CheckpointRef, ...]


@dataclass(frozen=True)
class DropLink:
    """Close the connection to a stale coordinator, and look for another."""

    why: str


@dataclass(frozen=True)
class Exit:
    """Exit; always the last effect: no process that the agent could kill lives any more."""

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
