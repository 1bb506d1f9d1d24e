"""What each agent shall do: a projection of the state. The server sends it whenever it differs from what was
sent last.

Limits: `number` counts per connection and is the server's.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract import VERSION
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import AgentReport, Orders
from ropeteam_trainer.coordinator import commits, lease, roll, slots
from ropeteam_trainer.coordinator.drains import terminating
from ropeteam_trainer.coordinator.forming import STORE_SLOT
from ropeteam_trainer.coordinator.state import (
    Agent,
    State,
    accepted,
    lead_born,
    member_pod,
    pod_of,
    refusal,
    seat,
)


def reply(state: State, report: AgentReport, now: float) -> Orders | None:
    """The orders for the sender of a report. None: nothing to say (yet), leave it as it is."""
    why_not = refusal(state, report)
    if why_not:
        return Orders(state.config.term, state.boot, 0, refused=why_not, leave=report.leaving)
    if not lease.holds(state, now):
        return None
    if accepted(state, report):
        found = orders(state, report.slot, now)
        return _part(state, found, report.slot) if found and report.contract >= VERSION else found
    never_joined = state.desired is not None and report.leaving and report.stopped
    if never_joined and not state.superseded:
        return Orders(state.config.term, state.boot, 0, leave=True)  # the job ended before its turn came
    return None


def _part(state: State, orders: Orders, slot: int) -> Orders:
    """The plan without members that this agent has nothing to do with: needed are the first, the leading one,
    and parameter servers."""
    if orders.plan is None:
        return orders
    others = (STORE_SLOT, state.config.lead_slot, *range(state.config.workers, state.config.slots))
    return replace(orders, plan=orders.plan.part(slot, others))


def orders(state: State, slot: int, now: float) -> Orders | None:  # noqa: ARG001 (one shape for all)
    """The orders for the agent that holds a slot. None: there is none, or we are silent (just booted,
    superseded)."""
    agent = seat(state, slot)
    if agent is None or state.superseded or state.phase is WorldPhase.WAITING:
        return None
    world = state.world
    member = world is not None and member_pod(world, slot) == pod_of(agent.report)
    lives = member and state.lives(slot)
    pausing = lives and state.phase is WorldPhase.DRAINING
    done = state.phase in (WorldPhase.COMPLETING, WorldPhase.COMPLETE)
    return Orders(
        term=state.config.term,
        boot=state.boot,
        number=0,
        plan=world.plan if world and lives else None,
        host_store=state.next_epoch if _hosts(state, slot, agent) else None,
        grant=state.grant if _grantee(state, agent) else None,
        lineage=commits.kept(state),
        incomplete=lives and _is_incomplete(state),
        pause=world.plan.epoch if world and pausing else None,
        stop_at=world.stop_at if world and pausing else None,
        terminate=pausing and terminating(state),
        leave=_may_leave(state, agent, lives),
        complete=world.plan.epoch if world and member and done else None,
        release=state.phase is WorldPhase.COMPLETE,
    )


def _hosts(state: State, slot: int, agent: Agent) -> bool:
    """Its keeper holds the store of the next world; asked for while the old one is still being stopped, to be
    fast."""
    soon = state.phase in (WorldPhase.STOPPING, WorldPhase.FORMING) and not state.draining
    return soon and slot == STORE_SLOT and not agent.report.leaving


def _grantee(state: State, agent: Agent) -> bool:
    """A grant goes to the agent of the leading rank of its world, also for a while after that world ended."""
    world = state.world
    if state.grant is None or world is None or lead_born(state) != state.grant.ref.epoch:
        return False
    return member_pod(world, state.config.lead_slot) == pod_of(agent.report)


def _is_incomplete(state: State) -> bool:
    """Workers wait for each other through the servers, some longer than others."""
    return state.config.servers > 0 and not (state.running and state.world and state.world.stepped)


def _may_leave(state: State, agent: Agent, lives: bool) -> bool:
    """It asked to go, and none of its ranks is needed any more."""
    if not agent.report.leaving or not agent.report.stopped:
        return False
    done = slots.has(roll.done(state), agent.report.slot)
    return not lives or (state.phase in (WorldPhase.RUNNING, WorldPhase.DRAINING) and done)


def affected(before: State, after: State) -> slots.Slots:
    """Whose orders a step from `before` to `after` may have changed."""
    if _common(before) != _common(after):
        return slots.ALL
    return after.touched | slots.one(STORE_SLOT) | slots.one(after.config.lead_slot)


def _common(state: State) -> tuple[object, ...]:
    """All that the orders of an agent depend on, but for what it says itself."""
    world = state.world
    return (
        state.superseded,
        state.phase,
        state.desired is None,
        state.draining,
        state.n,
        world and (world.plan.epoch, world.kept, world.stop_at, world.stepped),
        commits.kept(state),
        state.grant,
        terminating(state),
        state.roll.clean != 0,
    )
