"""One formed world, as the coordinator knows it: its plan and its progress."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.contract.world import CheckpointRef, Plan, WorldId
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slotset import Slots


@dataclass(frozen=True)
class Group:
    """A default process group of torch.distributed, and the ranks known to have formed it."""

    id: str
    size: int
    who: str
    """Name of the program."""
    slots: Slots
    ranks: Slots
    """The job's ranks that formed it, or whose children did: bit n for rank n."""
    members: Slots
    """Ranks within the group."""


@dataclass(frozen=True)
class Deputy:
    """Under sync Exact, the slot whose agent commits while the pod of the leading rank is missing."""

    slot: int
    world_id: WorldId
    """Number under which it claims the checkpoint folder: after that of the world, before that of the next.
    What is saved meanwhile has this name."""


@dataclass(frozen=True)
class FormedWorld:
    """One world: its plan and its progress. Kept after its end, until the next plan."""

    plan: Plan
    since: float
    confirmed: Slots = slotset.NONE
    """Slots whose agent has confirmed the plan."""
    quiesced: Slots = slotset.NONE
    """Slots where no rank of this plan lives nor will start again (known once the plan was withdrawn)."""
    started_at: float | None = None
    """Time at which all ranks had been started."""
    stepped: bool = False
    """All ranks have made a step: this world made progress."""
    trains: bool = False
    """`stepped`, or as much as can be known of a script that reports no steps (stage.py)."""
    step: int = 0
    """Highest step of any rank."""
    restored: CheckpointRef | None = None
    base: int | None = None
    """The step from which it resumed, once known."""
    terminating_slots: tuple[int, ...] = ()
    """Slots whose pods began to terminate (SIGTERM) while it ran."""
    terminating_since: float | None = None
    """Time at which the first of them was reported."""
    paused_at: float | None = None
    """Time at which the drain began."""
    acknowledged_pause: Slots = slotset.NONE
    """Slots whose agent has applied the pause, and then reported the steps that it knew."""
    stop_at: int | None = None
    """The step at which all ranks stop and save."""
    groups: tuple[Group, ...] = ()
    """Default process groups that were formed, largest first."""
    grouped_at: float | None = None
    """Time at which the first group was reported."""
    reporting_groups: Slots = slotset.NONE
    """Slots whose agent reports groups: agents of earlier releases do not."""
    step_at: float = 0.0
    """Time at which `step` last grew."""
    ended_at: float | None = None
    """Time at which a rank was first reported to have ended well while others live."""
    preserved: Slots = slotset.NONE
    """Slots whose ranks live on although the world ended; only ever shrinks."""
    lost: Slots = slotset.NONE
    """Under sync Exact, ranks of preserved slots that do not live on: bit n for rank n. Only ever grows."""
    deputy: Deputy | None = None
    """None: the agent of the leading rank commits, if any does."""
    absent: Slots = slotset.NONE
    """Under sync Exact, slots that it does not have, as its plan says."""
    store_slots: Slots = slotset.NONE
    """Slots whose pods have the address of its store."""

    def has_ranks_of(self, report: AgentReport) -> bool:
        """Whether the ranks of the reporting agent are those of this world: it reports this plan, or, for
        preserved ranks, an earlier one in which the same pod started the very same ranks."""
        if report.plan and report.plan.world_id == self.plan.world_id and report.plan.hash == self.plan.hash:
            return True
        now = self.plan.member(report.slot)
        if now is None or now.started_in is None or report.plan is None:
            return False
        then = report.plan.member(report.slot)
        same_pod = then and (now.incarnation, now.pod_uid) == (then.incarnation, then.pod_uid)
        return bool(same_pod) and report.plan.started_in(report.slot) == now.started_in
