"""What an agent can do: frozen data, made by step.py and carried out by main.py, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, Plan


@dataclass(frozen=True)
class WarmUp:
    """Ranks may be forked from now on: have a zygote ready."""


@dataclass(frozen=True)
class ClaimRun:
    """Before the ranks of this plan start; only where checkpoints are written."""

    plan: Plan


@dataclass(frozen=True)
class StartRanks:
    plan: Plan
    fork: bool
    """From the zygote if one is ready, else by exec."""
    restore: tuple[CheckpointRef, ...] = ()
    """What they may go on from, best first."""


@dataclass(frozen=True)
class KillRanks:
    """SIGKILL these ranks and everything that descends from them; each answers with RankExited."""

    epoch: Epoch
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class TerminateRanks:
    """SIGTERM, so that a script which saves by itself may do so."""

    epoch: Epoch
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ShowStacks:
    """Have these ranks write where all of their threads stand; each answers with StackShown."""

    epoch: Epoch
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class SendToRank:
    epoch: Epoch
    rank: int
    message: ToRank


@dataclass(frozen=True)
class HostStore:
    epoch: Epoch


@dataclass(frozen=True)
class CloseStore:
    epoch: Epoch


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
    """This coordinator is not ours any more: look for another."""

    why: str


@dataclass(frozen=True)
class Exit:
    """Always the last effect: nothing of ours lives any more."""

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
