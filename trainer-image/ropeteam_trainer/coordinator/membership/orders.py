"""Orders for each agent: a projection of the state. The server sends them whenever they differ from those
sent last.

Limits: `number` counts per connection and is the server's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ropeteam_trainer.contract import LEASES
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import AgentReport, Orders
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.coordinator.membership import commits, lease, preserving
from ropeteam_trainer.coordinator.membership.drains import drains_by_sigterm
from ropeteam_trainer.coordinator.membership.forming import STORE_SLOT, store_slot
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import pod_of
from ropeteam_trainer.coordinator.membership.state.ranks import committing_slot, saves_as
from ropeteam_trainer.coordinator.membership.state.slots import (
    agent_of_slot,
    holds_slot,
    member_pod,
    refusal_reason,
)
from ropeteam_trainer.coordinator.membership.state.state import Agent, CoordinatorState


class Reply(NamedTuple):
    """Reply to one agent: the orders, one object shared by all agents with equal orders, and its plan."""

    orders: Orders
    """Orders without the plan."""
    plan: Plan | None = None
    slot: int = -1
    """The plan is sent as the part for this slot. -1: the whole plan."""
    others: tuple[int, ...] = ()
    """Other members in that part."""

    @property
    def orders_with_plan(self) -> Orders:
        """The complete orders, as the agent decodes them."""
        if self.plan is None:
            return self.orders
        part = self.plan if self.slot < 0 else self.plan.part(self.slot, self.others)
        return replace(self.orders, plan=part)


class _Case(NamedTuple):
    """The facts by which the orders of two agents, without plan and number, can differ."""

    member: bool
    """Of the current world."""
    lives: bool
    """Ranks of that may live in its pod."""
    hosts: bool
    """The store of the next world."""
    is_grantee: bool
    is_deputy: bool
    leave: bool
    """The agent may exit."""


class Replies:
    """Replies to agents, made from one state at one moment. Agents in the same case share one Orders object:
    a plan goes to thousands of agents at once."""

    def __init__(self, state: CoordinatorState, now: float) -> None:
        self._silent = not lease.is_valid(state, now)
        self._state, self._lineage = state, commits.retained_checkpoints(state)
        self._by_case: dict[_Case, Orders] = {}
        self._store_slot = store_slot(state)
        self._shown = (STORE_SLOT, state.config.lead_slot, *range(state.config.workers, state.config.slots))
        """Members that every agent needs besides its own: the first, the leading one, parameter servers."""

    def reply_to(self, report: AgentReport) -> Reply | None:
        """The reply to the sender of a report. None: no orders (yet), the agent continues as it is.

        First match wins: a refusal, sent without a lease too, because it is final; no lease; orders for the
        agent that holds the slot, with its part of the plan if it supports parts (LEASES); leave, for a pod
        that is terminating without ever having been in a world.
        """
        state = self._state
        reason = refusal_reason(state, report)
        if reason:
            return Reply(Orders(state.config.term, state.boot, 0, refused=reason, leave=report.terminating))
        if self._silent:
            return None
        if holds_slot(state, pod_of(report)):
            found = self._reply_for(report.slot, state.agents.get(pod_of(report)))
            whole = found is None or found.plan is None or report.contract < LEASES
            return found if found is None or whole else Reply(*found[:2], report.slot, self._shown)
        never_joined = state.desired is not None and report.terminating and report.stopped
        if never_joined and not state.superseded:
            return Reply(Orders(state.config.term, state.boot, 0, leave=True))
        return None

    def reply_of_slot(self, slot: int) -> Reply | None:
        """The reply to the agent that holds a slot, with the whole plan. None: there is no such agent, this
        boot is still WAITING, or it is superseded. Does not check the lease."""
        return self._reply_for(slot, agent_of_slot(self._state, slot))

    def _reply_for(self, slot: int, agent: Agent | None) -> Reply | None:
        """The reply to this agent, which holds the slot, with the whole plan. None: as for
        `reply_of_slot`."""
        state = self._state
        if agent is None or state.superseded or state.phase is WorldPhase.WAITING:
            return None
        world = state.world
        member = world is not None and member_pod(world, slot) == pod_of(agent.report)
        lives = member and state.is_slot_live(slot)
        case = _Case(
            member,
            lives,
            hosts=slot == self._store_slot and _holds_store(state, agent),
            is_grantee=_is_grantee(state, agent),
            is_deputy=bool(lives and world and world.deputy and slot == world.deputy.slot),
            leave=_may_leave(state, agent, lives),
        )
        if case not in self._by_case:
            self._by_case[case] = self._build(case)
        return Reply(self._by_case[case], world.plan if world and lives else None)

    def _build(self, case: _Case) -> Orders:
        """The orders, without plan and number, for agents in this case."""
        state, world = self._state, self._state.world
        deputy = world.deputy if world and case.lives else None
        pausing = case.lives and world is not None and world.paused_at is not None
        done = state.phase in (WorldPhase.COMPLETING, WorldPhase.COMPLETE)
        return Orders(
            term=state.config.term,
            boot=state.boot,
            number=0,
            lost=preserving.lost_ranks(state) if case.lives else (),
            host_store=state.next_world_id if case.hosts else None,
            grant=state.grant if case.is_grantee else None,
            claim=deputy.world_id if deputy and case.is_deputy else None,
            saves_as=deputy.world_id if deputy else None,
            lineage=self._lineage,
            pause=world.plan.world_id if world and pausing else None,
            stop_at=world.stop_at if world and pausing else None,
            terminate=pausing and drains_by_sigterm(state),
            leave=case.leave,
            complete=world.plan.world_id if world and case.member and done else None,
            release=state.phase is WorldPhase.COMPLETE,
            failed=_failure_text(state),
        )


def _failure_text(state: CoordinatorState) -> str:
    """Why the job has failed, once agents may exit; "": it has not, or they must not yet."""
    failure = state.failure if state.dismissed else None
    return f"{failure.reason.value}: {failure.message}" if failure else ""


def orders_for_sender(state: CoordinatorState, report: AgentReport, now: float) -> Orders | None:
    """The orders for the sender of a report, plan included. None: as for `Replies.reply_to`."""
    found = Replies(state, now).reply_to(report)
    return found.orders_with_plan if found else None


def orders_for_slot(state: CoordinatorState, slot: int, now: float) -> Orders | None:
    """The orders for the agent that holds a slot, with the whole plan. None: as for
    `Replies.reply_of_slot`."""
    found = Replies(state, now).reply_of_slot(slot)
    return found.orders_with_plan if found else None


def _holds_store(state: CoordinatorState, agent: Agent) -> bool:
    """Whether the agent of its slot is to hold the store of the next world. Already while the old world is
    being stopped, to save time; not for a drain, after which no world follows."""
    soon = state.phase in (WorldPhase.STOPPING, WorldPhase.FORMING) and not state.drain_requested
    return soon and not agent.report.terminating


def _is_grantee(state: CoordinatorState, agent: Agent) -> bool:
    """Whether the grant goes to this agent: it has the leading rank, or is its deputy, and the grant is for
    the world under whose name it commits. Also after that world ended, until the next plan: the manifest may
    still be written."""
    world = state.world
    if state.grant is None or world is None or saves_as(state) != state.grant.ref.world_id:
        return False
    return member_pod(world, committing_slot(state)) == pod_of(agent.report)


def _may_leave(state: CoordinatorState, agent: Agent, lives: bool) -> bool:
    """Whether the agent may exit: it is terminating, its ranks have ended, and either they were to end, or
    all of them are done."""
    if not agent.report.terminating or not agent.report.stopped:
        return False
    done = slotset.has(slotindex.done_slots(state), agent.report.slot)
    return not lives or (state.phase in (WorldPhase.RUNNING, WorldPhase.DRAINING) and done)


def affected_slots(before: CoordinatorState, after: CoordinatorState) -> slotset.Slots:
    """Slots whose orders a step from `before` to `after` may have changed: all, if a common input has; else
    those that the step touched, that of the store, and that of the leading rank (the grant)."""
    if _common_inputs(before) != _common_inputs(after):
        return slotset.ALL
    stores = slotset.one(store_slot(before)) | slotset.one(store_slot(after))
    return after.touched | stores | slotset.one(after.config.lead_slot)


def _common_inputs(state: CoordinatorState) -> tuple[object, ...]:
    """Inputs of the orders of every agent, except its own report. Complete: a field that `Replies` reads and
    that is missing here leaves agents with old orders."""
    world = state.world
    return (
        state.superseded,
        state.phase,
        state.desired is None,
        state.drain_requested,
        state.dismissed,
        state.numbers_used,
        world and (world.plan.world_id, world.preserved, world.lost, world.deputy),
        world and (world.paused_at, world.stop_at),
        commits.retained_checkpoints(state),
        state.grant,
        drains_by_sigterm(state),
        state.facts.clean != 0,
    )
