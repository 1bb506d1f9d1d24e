"""One formed world, as the coordinator knows it: its plan and how far it came."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.contract.world import CheckpointRef, Plan
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slotset import Slots


@dataclass(frozen=True)
class Group:
    """A default process group of torch.distributed: who is known to have formed it."""

    id: str
    size: int
    who: str
    """The program."""
    slots: Slots
    ranks: Slots
    """The job's ranks that formed it, or whose children did: bit n for rank n."""
    members: Slots
    """Their ranks in the group."""


@dataclass(frozen=True)
class World:
    """One epoch: its plan and how far it came. Outlives its end, until the next plan."""

    plan: Plan
    since: float
    seen: Slots = slotset.NONE
    """Slots whose agent has confirmed the plan."""
    quiesced: Slots = slotset.NONE
    """Slots where no rank of this plan lives nor will start again (known once the plan was withdrawn)."""
    started_at: float | None = None
    """When all ranks had been started."""
    stepped: bool = False
    """All ranks have made a step: this world made progress."""
    trains: bool = False
    """The same, or as much as can be known of a script that tells of no steps (stage.py)."""
    step: int = 0
    """Highest step of any rank."""
    restored: CheckpointRef | None = None
    base: int | None = None
    """The step it went on from, once known."""
    leavers: tuple[int, ...] = ()
    """Slots that were asked to leave (SIGTERM) while it ran."""
    leave_at: float | None = None
    """When the first of them said so."""
    paused_at: float | None = None
    """When the drain began."""
    stop_at: int | None = None
    """The step at which all ranks stop and save."""
    groups: tuple[Group, ...] = ()
    """Default process groups that were formed, largest first."""
    grouped_at: float | None = None
    """When the first of them was told of."""
    telling: Slots = slotset.NONE
    """Slots whose agent would tell of groups: those of earlier releases do not."""
    step_at: float = 0.0
    """When `step` grew last."""
    ended_at: float | None = None
    """When a rank was first seen to have ended well while others live."""
    kept: Slots = slotset.NONE
    """Slots whose ranks live on although the world ended; only ever shrinks."""

    def has(self, report: AgentReport) -> bool:
        """This agent's ranks are those of this world, whether or not it has heard that they were kept."""
        if report.plan and report.plan.epoch == self.plan.epoch and report.plan.hash == self.plan.hash:
            return True
        now = self.plan.member(report.slot)
        if now is None or now.born is None or report.plan is None:
            return False
        then = report.plan.member(report.slot)
        same_pod = then and (now.incarnation, now.pod_uid) == (then.incarnation, then.pod_uid)
        return bool(same_pod) and report.plan.born(report.slot) == now.born
