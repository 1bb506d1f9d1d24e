"""State of the coordinator, as frozen values. It is replaced, never mutated; its dicts are treated as frozen.

Limits: times are monotonic seconds of this process (`now`), or wall clock in fields named unix_ms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, Incident, ReplacementRequest, WorldPhase
from ropeteam_trainer.contract.messages import AgentReport, Grant, Problem, Progress
from ropeteam_trainer.contract.world import CheckpointRef, WorldId
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment, Pod
from ropeteam_trainer.coordinator.membership.state.lateness import Lateness
from ropeteam_trainer.coordinator.membership.state.slotfacts import NOBODY, Facts
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld


@dataclass(frozen=True)
class Agent:
    """The last report of one agent, and the time of its last sign of life."""

    report: AgentReport
    received_at: float


@dataclass(frozen=True)
class Fault:
    """An incident, with fields for the coordinator alone."""

    incident: Incident
    at: float
    weight: int
    """Weight of the evidence for its cause; only heavier evidence changes the cause."""


@dataclass(frozen=True)
class FailureHistory:
    """History of this boot's incidents. A restart of the coordinator loses it; the operator keeps the count
    of charged failures."""

    worlds_without_progress: int = 0
    """Worlds in a row that a fault ended before they made progress."""
    not_before: float = 0.0
    """End of the backoff: no plan before this."""
    suspect: tuple[int, int] | None = None
    """Slot and incarnation in which the last worlds without progress ended."""
    suspect_times: int = 0
    fingerprint: str = ""
    identical_failures: int = 0
    """Number of times that the same fault occurred without a new highest step in between."""
    top_step: int = 0
    """Highest step of any world."""
    unaccounted: tuple[str, ...] = ()
    """Charged incidents not yet included in the operator's allowance."""
    replacement_requests: tuple[ReplacementRequest, ...] = ()
    replace_all_of: int | None = None
    """The attempt that should be replaced as a whole."""


class UnstartableSlot(NamedTuple):
    """A slot in whose newest pods no rank can start."""

    slot: int
    incarnation: int
    pods: int
    """Number of such pods in a row."""
    since: float
    node: str
    problem: Problem


@dataclass(frozen=True)
class CoordinatorState:
    """State of one coordinator. Agents, desired slots and the plan change only through slotindex.py."""

    config: CoordinatorConfig
    boot: int
    phase: WorldPhase = WorldPhase.WAITING
    desired: Desired | None = None
    desired_at: float = 0.0
    """Time at which the first Desired was received."""
    agents: dict[Pod, Agent] = field(default_factory=dict)
    facts: Facts[Slots] = NOBODY
    """Facts and the slots of which they hold, so that one report does not cost a look at all others."""
    saved: dict[int, int] = field(default_factory=dict)
    """Number of ranks that have written their shard, by step."""
    leases_until: float = math.inf
    """No valid lease expires before this."""
    touched: Slots = slotset.ALL
    """Slots that may have changed in this step."""
    due: float | None = None
    """Time at which the next Tick is due: a later one means that our own event loop paused."""
    lateness: Lateness = Lateness()
    waited_from: float | None = None
    """WAITING: time at which the first agent registered."""
    phase_since: float = 0.0
    enough_since: float | None = None
    """FORMING: time since which as many workers are ready as training may begin with. None: they are not."""
    world: FormedWorld | None = None
    """The current world, or the last one."""
    numbers_used: int = 0
    """Numbers that this boot has used: n of its newest plan or deputy."""
    deputized: tuple[WorldId, ...] = ()
    """Numbers of its last 100 deputies: if one supersedes a former leading rank, this boot continues."""
    restarts: int = 0
    """`restart_count` of the next plan."""
    feature_level: int = 0
    launcher: str = ""
    lineage: tuple[CheckpointRef, ...] = ()
    acknowledged: tuple[CheckpointRef, ...] = ()
    """Checkpoints that the operator last confirmed as saved in status."""
    answered: tuple[tuple[CheckpointRef, ...], ...] = ()
    """The lineage in our last two replies to the operator: it may be saving one of these."""
    pending: CheckpointRef | None = None
    """Granted checkpoint, not yet known to be written."""
    grant: Grant | None = None
    """`pending` as sent in orders; None after a restart of ours, or once the next world is planned."""
    checkpoint_unix_ms: int = 0
    faults: tuple[Fault, ...] = ()
    """The last 10, oldest first."""
    failure_history: FailureHistory = FailureHistory()
    failure: Problem | None = None
    dismissed: bool = False
    """The job has failed, and agents may exit: the operator has saved the failure, or is away for long."""
    unstartable: tuple[UnstartableSlot, ...] = ()
    pending_disk_request: tuple[str, int] = ("", 0)
    """Pending request to a volume (AgentReport.pending_disk_request), and its start by the wall clock."""
    progress: Progress = Progress()
    newer_term: int = 0
    """Newest term seen by an agent, or whose world has claimed the checkpoint folder after ours."""
    superseded: str = ""
    """Why this coordinator is silent for ever: a newer one exists."""
    renewed: float = -math.inf
    """Time at which we sent the newest report that the operator is known to have received."""
    why: str = ""
    """One sentence on the last decision. It changes only with the decision or the awaited condition: each
    change is a line in the log."""

    @property
    def all_slots(self) -> Slots:
        """All slots of the job."""
        return slotset.up_to(self.config.slots)

    @property
    def member_slots(self) -> Slots:
        """Slots that the current world has: all but absent ones."""
        return self.all_slots & ~(self.world.absent if self.world else slotset.NONE)

    @property
    def next_world_id(self) -> WorldId:
        """Number of the next world. Never used before by this term and boot."""
        return WorldId(self.config.term, self.boot, self.numbers_used + 1)

    @property
    def fault(self) -> Fault | None:
        """The fault that ended the current world; None: none has. Earlier worlds' faults are in `faults`."""
        if (
            self.world is None
            or not self.faults
            or self.faults[-1].incident.id != str(self.world.plan.world_id)
        ):
            return None
        return self.faults[-1]

    @property
    def is_world_live(self) -> bool:
        """Whether `world` runs, drains or has completed: its plan is in the orders of all its members."""
        return self.phase in _RUNNING

    @property
    def drain_requested(self) -> bool:
        """Whether the operator requests a drain: the job is suspended. A drain for terminating pods is not
        requested."""
        return self.desired is not None and self.desired.drain

    def is_slot_live(self, slot: int) -> bool:
        """Whether the plan of `world` is in the orders of this slot: the world runs, or has ended and the
        slot is preserved."""
        preserved = self.world.preserved if self.world else slotset.NONE
        ends = self.phase in (WorldPhase.STOPPING, WorldPhase.FORMING)
        runs = self.is_world_live and slotset.has(self.member_slots, slot)
        return runs or (ends and slotset.has(preserved, slot))


class Decided(NamedTuple):
    """The state after one phase has decided."""

    state: CoordinatorState
    why: str = ""
    """One sentence, from the branch that decided; "": another phase was entered, which decides next."""


_RUNNING = (WorldPhase.RUNNING, WorldPhase.DRAINING, WorldPhase.COMPLETING, WorldPhase.COMPLETE)


def is_new_attempt(state: CoordinatorState) -> bool:
    """Whether the operator replaces all pods by a new attempt: the end of this world is then no incident."""
    return (
        state.world is not None
        and state.desired is not None
        and state.desired.attempt > state.world.plan.attempt
    )


def with_world(state: CoordinatorState, **changes: object) -> CoordinatorState:
    """The state with these fields of its world changed. Not its plan (`slotindex.enter_world`), and only for
    a state with a world."""
    assert state.world is not None
    return replace(state, world=replace(state.world, **changes))  # type: ignore[arg-type]


def enter_phase(state: CoordinatorState, phase: WorldPhase, at: Moment) -> CoordinatorState:
    """The state in this phase, since now."""
    return replace(state, phase=phase, phase_since=at.now, enough_since=None)
