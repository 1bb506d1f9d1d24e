"""What the coordinator knows, as frozen values, and the three things that can happen to it.

Nothing here decides. `State` is replaced, never changed; its dicts are treated as frozen too.
Limits: times are monotonic seconds of this process (`now`), or wall clock where a name says unix_ms.
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
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, Member
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.lateness import Lateness
from ropeteam_trainer.coordinator.membership.state.slotfacts import NOBODY, Facts
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.world import World


class Pod(NamedTuple):
    """Who an agent is. A slot's pods follow one another; their incarnations only grow."""

    slot: int
    incarnation: int
    uid: str


class Moment(NamedTuple):
    now: float
    unix_ms: int


@dataclass(frozen=True)
class ReportReceived:
    """An agent spoke. Reports of one pod must be handed over in the order in which its newest connection
    brought them."""

    report: AgentReport
    applied: bool = False
    """It has applied the newest orders that were sent on its connection (`orders_seen` is the last number; 0
    and nothing sent yet counts). This is the proof that a withdrawn plan which it never confirmed will not
    start any more."""


@dataclass(frozen=True)
class ReportsReceived:
    """Several agents spoke before we came to it: one judgement for all of them."""

    reports: tuple[ReportReceived, ...]


@dataclass(frozen=True)
class LeasesRenewed:
    """These agents have nothing new to tell (`roll.lease_is_enough`)."""

    heard: dict[Pod, float]
    """When their last words came."""


@dataclass(frozen=True)
class DesiredReceived:
    desired: Desired


@dataclass(frozen=True)
class Tick:
    """Time passed: `wake_at` has come."""


Event = ReportReceived | ReportsReceived | LeasesRenewed | DesiredReceived | Tick


@dataclass(frozen=True)
class Agent:
    """The last word of one agent."""

    report: AgentReport
    heard: float


@dataclass(frozen=True)
class Fault:
    """An incident and what only we need to know about it."""

    incident: Incident
    at: float
    weight: int
    """Of the evidence behind its cause; only heavier evidence changes the cause."""


@dataclass(frozen=True)
class FailureHistory:
    """What incidents have taught so far. A restart of the coordinator forgets it; the operator remembers the
    budget."""

    worlds_without_progress: int = 0
    """Worlds in a row that a fault ended before they made progress."""
    not_before: float = 0.0
    """The backoff: no plan before this."""
    suspect: tuple[int, int] | None = None
    """Slot and incarnation in which the last barren worlds ended."""
    suspect_times: int = 0
    fingerprint: str = ""
    identical_failures: int = 0
    """The same fault, this many times without a new highest step between."""
    top_step: int = 0
    """Highest step ever."""
    unaccounted: tuple[str, ...] = ()
    """Charged incidents that the operator's allowance does not contain yet."""
    wishes: tuple[ReplacementRequest, ...] = ()
    replace_all_of: int | None = None
    """The attempt that should be replaced as a whole."""


class Unfit(NamedTuple):
    """A slot in whose newest pods no rank can start."""

    slot: int
    incarnation: int
    pods: int
    """So many in a row."""
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
    """When the first Desired came."""
    agents: dict[Pod, Agent] = field(default_factory=dict)
    roll: Facts[Slots] = NOBODY
    """What is true of which slots, so that one report does not ask about all others."""
    saved: dict[int, int] = field(default_factory=dict)
    """Ranks that have written their shard, by step."""
    leases_until: float = math.inf
    """No lease that holds runs out before."""
    touched: Slots = slotset.ALL
    """Of which something may be new in this step."""
    due: float | None = None
    """When the next Tick is due: a later one means that our own loop paused."""
    lateness: Lateness = Lateness()
    waited_from: float | None = None
    """WAITING: when the first agent registered."""
    phase_since: float = 0.0
    world: World | None = None
    """The current world, or the last one."""
    n: int = 0
    """Worlds planned by this boot."""
    restarts: int = 0
    """`restart_count` of the next plan."""
    rung: int = 0
    launcher: str = ""
    lineage: tuple[CheckpointRef, ...] = ()
    acknowledged: tuple[CheckpointRef, ...] = ()
    """What the operator last said that it has saved."""
    answered: tuple[tuple[CheckpointRef, ...], ...] = ()
    """The lineage in our last two answers to it: it may be saving one of these."""
    pending: CheckpointRef | None = None
    """Granted, not yet known to be written."""
    grant: Grant | None = None
    """`pending` as an order; None after a restart of ours, or once the next world is planned."""
    checkpoint_unix_ms: int = 0
    faults: tuple[Fault, ...] = ()
    """The last 10, oldest first."""
    failure_history: FailureHistory = FailureHistory()
    failure: Problem | None = None
    dismissed: bool = False
    """The job has failed, and agents may exit: the operator has saved it, or has been away for long."""
    unfit: tuple[Unfit, ...] = ()
    disk_owes: tuple[str, int] = ("", 0)
    """What a volume does not answer (AgentReport.disk_owes), and since when by the wall clock."""
    progress: Progress = Progress()
    newer_term: int = 0
    """The newest that an agent obeys, or whose world has claimed the folder of checkpoints after ours."""
    superseded: str = ""
    """Why we are silent for ever: a newer coordinator exists."""
    renewed: float = -math.inf
    """When we sent the newest report of which we know that the operator has it."""

    @property
    def everybody(self) -> Slots:
        return slotset.up_to(self.config.slots)

    @property
    def next_epoch(self) -> Epoch:
        return Epoch(self.config.term, self.boot, self.n + 1)

    @property
    def fault(self) -> Fault | None:
        """The incident that ended the current world, if one did."""
        if self.world is None or not self.faults or self.faults[-1].incident.id != str(self.world.plan.epoch):
            return None
        return self.faults[-1]

    @property
    def running(self) -> bool:
        """Ranks of `world` may live."""
        return self.phase in _RUNNING

    @property
    def draining(self) -> bool:
        return self.desired is not None and self.desired.drain

    def lives(self, slot: int) -> bool:
        """The pod of this slot may run its ranks of `world`."""
        kept = self.world.kept if self.world else slotset.NONE
        ends = self.phase in (WorldPhase.STOPPING, WorldPhase.FORMING)
        return self.running or (ends and slotset.has(kept, slot))


_RUNNING = (WorldPhase.RUNNING, WorldPhase.DRAINING, WorldPhase.COMPLETING, WorldPhase.COMPLETE)


def pod_of(report: AgentReport) -> Pod:
    return Pod(report.slot, report.incarnation, report.pod_uid)


def desired_slot(state: State, slot: int) -> SlotDesired | None:
    """The operator's word about a slot; None before it has spoken of it."""
    return state.desired.slots.get(str(slot)) if state.desired else None


def holds_slot(state: State, pod: Pod) -> bool:
    """The operator says that this very pod holds the slot."""
    word = desired_slot(state, pod.slot)
    return word is not None and word.pod_uid != "" and (word.incarnation, word.pod_uid) == pod[1:]


def is_member(state: State, pod: Pod) -> bool:
    """Its ranks belong to the world that runs or is being stopped."""
    if state.world is None or not (state.running or state.phase is WorldPhase.STOPPING):
        return False
    return member_pod(state.world, pod.slot) == pod


def member_pod(world: World, slot: int) -> Pod | None:
    """Which pod holds a slot in this world."""
    member = world.plan.member(slot)
    return Pod(slot, member.incarnation, member.pod_uid) if member else None


def refusal(state: State, report: AgentReport) -> str:
    """Why this agent is not one of us, or "". A pod that is being deleted may still end its world in good
    order."""
    config, pod, word = state.config, pod_of(report), desired_slot(state, report.slot)
    if report.job_uid != config.job_uid:
        return f"this is the coordinator of job {config.job_uid}, not of {report.job_uid}"
    if not OLDEST <= report.contract <= VERSION:
        return f"contract {report.contract} is unknown; this coordinator speaks {OLDEST} to {VERSION}"
    if not 0 <= report.slot < config.slots or (state.desired and word is None):
        return f"slot {report.slot} is not part of this job"
    if word is None:
        return ""
    if pod.incarnation < word.incarnation:
        return f"incarnation {pod.incarnation} of slot {pod.slot} was replaced by {word.incarnation}"
    if pod.incarnation == word.incarnation and word.pod_uid not in ("", pod.uid):
        return f"slot {pod.slot} is held by another pod ({word.pod_uid})"
    if pod.incarnation == word.incarnation and word.deleting and not is_member(state, pod):
        return f"the pod of slot {pod.slot} is being deleted"
    return ""


def accepted(state: State, report: AgentReport) -> bool:
    """It counts. Neither accepted nor refused: a pod that the operator has not told us about yet."""
    return not refusal(state, report) and holds_slot(state, pod_of(report))


def agent_of_slot(state: State, slot: int) -> Agent | None:
    """The agent that holds a slot, lost or not."""
    word = desired_slot(state, slot)
    if word is None or not word.pod_uid:
        return None
    agent = state.agents.get(Pod(slot, word.incarnation, word.pod_uid))
    return agent if agent and not refusal(state, agent.report) else None


def lost(state: State, agent: Agent, now: float) -> bool:
    """Its lease has run out."""
    return now - agent.heard > state.config.timeouts.lost


def present(state: State, slot: int, now: float) -> Agent | None:
    """The agent that holds a slot and whose lease holds."""
    agent = agent_of_slot(state, slot)
    return agent if agent and not lost(state, agent, now) else None


def leaving(state: State, slot: int) -> bool:
    """Its pod is about to go: SIGTERM came, or Kubernetes has been told to delete it."""
    agent, word = agent_of_slot(state, slot), desired_slot(state, slot)
    return agent is not None and word is not None and (agent.report.leaving or word.deleting)


def member_agent(state: State, member: Member) -> Agent | None:
    """The last word of a member of the world, even if its slot was given to another pod since."""
    return state.agents.get(Pod(member.slot, member.incarnation, member.pod_uid))


class MemberRanks(NamedTuple):
    """The ranks of one member of the current world, as its agent last told. Of ranks that were kept it may
    still speak under their former epoch."""

    member: Member
    ranks: range
    agent: Agent | None
    known: dict[int, RankReport]
    """Empty until the agent has confirmed the plan."""

    @property
    def reports(self) -> tuple[RankReport | None, ...]:
        return tuple(self.known.get(rank) for rank in self.ranks)


def ranks_of_members(state: State, among: Slots) -> Iterator[MemberRanks]:
    """These members of the current world, in slot order."""
    return (crew for slot in slotset.each(among & state.everybody) if (crew := ranks_of_member(state, slot)))


def ranks_of_member(state: State, slot: int) -> MemberRanks | None:
    world = state.world
    member = world.plan.member(slot) if world else None
    if world is None or member is None:
        return None
    ranks, agent = world.plan.ranks(slot), member_agent(state, member)
    reports = agent.report.ranks if agent and world.has(agent.report) else ()
    return MemberRanks(member, ranks, agent, {each.rank: each for each in reports if each.rank in ranks})


def new_attempt(state: State) -> bool:
    """The operator replaces all pods on purpose: the end of this world is no incident."""
    return (
        state.world is not None
        and state.desired is not None
        and state.desired.attempt > state.world.plan.attempt
    )


def lead_born(state: State) -> Epoch | None:
    """The epoch under which the leading rank of the current world saves checkpoints; None: no world."""
    return state.world.plan.born(state.config.lead_slot) if state.world else None


def with_world(state: State, **changes: object) -> State:
    """The state with a changed world. Only where there is one."""
    assert state.world is not None
    return replace(state, world=replace(state.world, **changes))  # type: ignore[arg-type]


def enter(state: State, phase: WorldPhase, at: Moment) -> State:
    return replace(state, phase=phase, phase_since=at.now)
