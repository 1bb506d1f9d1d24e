"""State of the coordinator, as frozen values, and the events that change it.

Nothing here decides. `State` is replaced, never mutated; its dicts are treated as frozen too.
Limits: times are monotonic seconds of this process (`now`), or wall clock in fields named unix_ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ropeteam_trainer.contract import OLDEST, VERSION
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, Incident, ReplacementRequest, SlotDesired, WorldPhase
from ropeteam_trainer.contract.messages import AgentReport, Grant, Problem, Progress, RankReport
from ropeteam_trainer.contract.world import CheckpointRef, Member, WorldId
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.lateness import Lateness
from ropeteam_trainer.coordinator.membership.state.slotfacts import NOBODY, Facts
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.world import World


class Pod(NamedTuple):
    """Identity of an agent. A slot's pods follow one another; their incarnations only grow."""

    slot: int
    incarnation: int
    uid: str


class Moment(NamedTuple):
    now: float
    unix_ms: int


@dataclass(frozen=True)
class ReportReceived:
    """A report of one agent. Reports of one pod must be passed in the order in which its newest connection
    delivered them."""

    report: AgentReport
    applied: bool = False
    """The agent has applied the newest orders sent on its connection (`applied_orders` is the last number; 0
    with nothing sent yet counts). This proves that a withdrawn plan, never confirmed by the agent, will not
    be started any more."""


@dataclass(frozen=True)
class ReportsReceived:
    """Reports of several agents, read in one turn of the event loop: one decision for all of them."""

    reports: tuple[ReportReceived, ...]


@dataclass(frozen=True)
class LeasesRenewed:
    """Leases of agents with nothing new to report (`slotindex.lease_is_enough`)."""

    received_at: dict[Pod, float]
    """Time at which the last lease of each was received."""


@dataclass(frozen=True)
class DesiredReceived:
    desired: Desired


@dataclass(frozen=True)
class Tick:
    """Passing of time: `wake_at` has been reached."""


Event = ReportReceived | ReportsReceived | LeasesRenewed | DesiredReceived | Tick


@dataclass(frozen=True)
class Agent:
    """The last report of one agent, and when it was received."""

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
class State:
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
    world: World | None = None
    """The current world, or the last one."""
    n: int = 0
    """Worlds planned by this boot."""
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
    def everybody(self) -> Slots:
        return slotset.up_to(self.config.slots)

    @property
    def next_world_id(self) -> WorldId:
        return WorldId(self.config.term, self.boot, self.n + 1)

    @property
    def fault(self) -> Fault | None:
        """The incident that ended the current world, or None."""
        if (
            self.world is None
            or not self.faults
            or self.faults[-1].incident.id != str(self.world.plan.world_id)
        ):
            return None
        return self.faults[-1]

    @property
    def running(self) -> bool:
        """Whether ranks of `world` may live."""
        return self.phase in _RUNNING

    @property
    def draining(self) -> bool:
        return self.desired is not None and self.desired.drain

    def lives(self, slot: int) -> bool:
        """Whether the pod of this slot may run its ranks of `world`."""
        preserved = self.world.preserved if self.world else slotset.NONE
        ends = self.phase in (WorldPhase.STOPPING, WorldPhase.FORMING)
        return self.running or (ends and slotset.has(preserved, slot))


class Decided(NamedTuple):
    """The state after one phase has decided."""

    state: State
    why: str = ""
    """One sentence, from the branch that decided; "": another phase was entered, which decides next."""


_RUNNING = (WorldPhase.RUNNING, WorldPhase.DRAINING, WorldPhase.COMPLETING, WorldPhase.COMPLETE)


def pod_of(report: AgentReport) -> Pod:
    return Pod(report.slot, report.incarnation, report.pod_uid)


def desired_slot(state: State, slot: int) -> SlotDesired | None:
    """The desired state of a slot; None before it was received."""
    return state.desired.slots.get(str(slot)) if state.desired else None


def holds_slot(state: State, pod: Pod) -> bool:
    """Whether this very pod holds the slot, by the desired state."""
    desired = desired_slot(state, pod.slot)
    return desired is not None and desired.pod_uid != "" and (desired.incarnation, desired.pod_uid) == pod[1:]


def is_member(state: State, pod: Pod) -> bool:
    """Whether the pod's ranks belong to the world that runs or is being stopped."""
    if state.world is None or not (state.running or state.phase is WorldPhase.STOPPING):
        return False
    return member_pod(state.world, pod.slot) == pod


def member_pod(world: World, slot: int) -> Pod | None:
    """The pod that holds a slot in this world."""
    member = world.plan.member(slot)
    return Pod(slot, member.incarnation, member.pod_uid) if member else None


def refusal(state: State, report: AgentReport) -> str:
    """Why the reporting agent is refused, or "". A pod that is being deleted may still end its world in good
    order."""
    config, pod, desired = state.config, pod_of(report), desired_slot(state, report.slot)
    if report.job_uid != config.job_uid:
        return f"this is the coordinator of job {config.job_uid}, not of {report.job_uid}"
    if not OLDEST <= report.contract <= VERSION:
        return f"contract {report.contract} is unknown; this coordinator supports {OLDEST} to {VERSION}"
    if not 0 <= report.slot < config.slots or (state.desired and desired is None):
        return f"slot {report.slot} is not part of this job"
    if desired is None:
        return ""
    if pod.incarnation < desired.incarnation:
        return f"incarnation {pod.incarnation} of slot {pod.slot} was replaced by {desired.incarnation}"
    if pod.incarnation == desired.incarnation and desired.pod_uid not in ("", pod.uid):
        return f"slot {pod.slot} is held by another pod ({desired.pod_uid})"
    if pod.incarnation == desired.incarnation and desired.terminating and not is_member(state, pod):
        return f"the pod of slot {pod.slot} is being deleted"
    return ""


def accepted(state: State, report: AgentReport) -> bool:
    """Whether the report counts. Neither accepted nor refused: a pod not yet in the desired state."""
    return not refusal(state, report) and holds_slot(state, pod_of(report))


def agent_of_slot(state: State, slot: int) -> Agent | None:
    """The agent that holds a slot, lost or not."""
    desired = desired_slot(state, slot)
    if desired is None or not desired.pod_uid:
        return None
    agent = state.agents.get(Pod(slot, desired.incarnation, desired.pod_uid))
    return agent if agent and not refusal(state, agent.report) else None


def lost(state: State, agent: Agent, now: float) -> bool:
    """Whether the agent's lease has expired."""
    return now - agent.received_at > state.config.timeouts.lost


def present(state: State, slot: int, now: float) -> Agent | None:
    """The agent that holds a slot, if its lease is valid."""
    agent = agent_of_slot(state, slot)
    return agent if agent and not lost(state, agent, now) else None


def leaving(state: State, slot: int) -> bool:
    """Whether the slot's pod is terminating: SIGTERM was received, or its deletion was requested."""
    agent, desired = agent_of_slot(state, slot), desired_slot(state, slot)
    return agent is not None and desired is not None and (agent.report.terminating or desired.terminating)


def member_agent(state: State, member: Member) -> Agent | None:
    """The last report of a member of the world, even if its slot was given to another pod since."""
    return state.agents.get(Pod(member.slot, member.incarnation, member.pod_uid))


class MemberRanks(NamedTuple):
    """The ranks of one member of the current world, as its agent last reported. Preserved ranks may still be
    reported under their previous world."""

    member: Member
    ranks: range
    agent: Agent | None
    known: dict[int, RankReport]
    """Empty until the agent has confirmed the plan."""

    @property
    def reports(self) -> tuple[RankReport | None, ...]:
        return tuple(self.known.get(rank) for rank in self.ranks)


def ranks_of_members(state: State, among: Slots) -> Iterator[MemberRanks]:
    """The ranks of these members of the current world, in slot order."""
    return (
        found for slot in slotset.each(among & state.everybody) if (found := ranks_of_member(state, slot))
    )


def ranks_of_member(state: State, slot: int) -> MemberRanks | None:
    world = state.world
    member = world.plan.member(slot) if world else None
    if world is None or member is None:
        return None
    ranks, agent = world.plan.ranks(slot), member_agent(state, member)
    reports = agent.report.ranks if agent and world.has(agent.report) else ()
    return MemberRanks(member, ranks, agent, {each.rank: each for each in reports if each.rank in ranks})


def new_attempt(state: State) -> bool:
    """Whether the operator replaces all pods on purpose: the end of this world is then no incident."""
    return (
        state.world is not None
        and state.desired is not None
        and state.desired.attempt > state.world.plan.attempt
    )


def lead_started_in(state: State) -> WorldId | None:
    """The world under which the leading rank of the current world saves checkpoints; None: no world."""
    return state.world.plan.started_in(state.config.lead_slot) if state.world else None


def with_world(state: State, **changes: object) -> State:
    """The state with a changed world. Only for a state with a world."""
    assert state.world is not None
    return replace(state, world=replace(state.world, **changes))  # type: ignore[arg-type]


def enter(state: State, phase: WorldPhase, at: Moment) -> State:
    return replace(state, phase=phase, phase_since=at.now)
