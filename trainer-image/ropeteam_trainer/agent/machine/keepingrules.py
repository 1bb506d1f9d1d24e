"""Rules for ranks that live on when a world ends: with parameter servers, and under sync Exact.

Order: orders name lost ranks, or a plan that keeps the others -> lost ranks of this pod are killed -> the
plan is adopted, and starts them again -> the ranks that live on are sent what has changed.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.agent.machine import checkpointrules
from ropeteam_trainer.agent.machine.apply import Stepped
from ropeteam_trainer.agent.machine.effects import Effect, KillRanks, SendToRank, StartRanks
from ropeteam_trainer.agent.machine.environment import server_addresses
from ropeteam_trainer.agent.machine.state import AgentState, RankState
from ropeteam_trainer.contract.local import LiveWorld, ToRank
from ropeteam_trainer.contract.world import Plan


def adopt_plan(state: AgentState) -> Stepped:
    """Adopt a newer plan that keeps the ranks of this pod, in whatever state they are: a rank that has
    exited, or is being killed, is reported under the new world, and so replaced by the world after that.
    Those that the plan starts again (sync Exact) are started, once all of them are dead; not in a pod whose
    ranks are all being killed.

    A plan that keeps other ranks than those here is for _start_world() of step.py.
    """
    plan, world = plan_that_keeps_ranks(state), state.world
    if plan is None or world is None:
        return state, ()
    again = tuple(rank.rank for rank in world.ranks if rank.rank in plan.started and not world.killing)
    if {*again} & {*world.alive_ranks}:
        return state, ()
    ranks = tuple(
        RankState(rank.rank, started_in=plan.world_id) if rank.rank in again else rank for rank in world.ranks
    )
    adopted = replace(state, world=replace(world, plan=plan, ranks=ranks))
    return adopted, (StartRanks(plan, again, state.may_fork, plan.restore),) if again else ()


def plan_that_keeps_ranks(state: AgentState) -> Plan | None:
    """The desired plan, if it is newer than that of the ranks here, and keeps them."""
    plan, world = state.desired_plan, state.world
    if plan is None or world is None or plan.world_id <= world.plan.world_id:
        return None
    return plan if plan.started_in(state.identity.slot) == world.started_in else None


def lost_ranks(state: AgentState) -> tuple[int, ...]:
    """Ranks of the world here without which its others continue: those that a newer plan starts again, or
    does not have, or that the orders for this world name."""
    if plan := plan_that_keeps_ranks(state):
        return (*plan.started, *plan.absent)
    return state.orders.lost if state.orders and state.runs_desired_plan else ()


def end_lost_ranks(state: AgentState) -> Stepped:
    """Kill the ranks of this pod without which all others continue (sync Exact), if they still live: they are
    no members any more."""
    world, lost = state.world, {*lost_ranks(state)}
    if world is None or world.killing:
        return state, ()
    found = tuple(rank for rank in world.ranks if rank.rank in lost and rank.alive and not rank.is_lost)
    for rank in found:
        world = world.with_rank(replace(rank, is_lost=True))
    living = tuple(rank.rank for rank in found if rank.exit is None)
    effects = (KillRanks(world.started_in, living),) if living else ()
    return replace(state, world=world), effects


def send_to_ranks(state: AgentState) -> Stepped:
    """Send pause, committed step, servers' addresses, lost ranks and the name of saves to each rank whose
    newest message differs from that. Ranks that live on from an earlier world need new addresses; others have
    them from their environment. A rank that was ordered to stop at a step stops there for as long as it is
    paused: a coordinator that was restarted has to find out which step that is."""
    world, orders = state.world, state.orders
    if world is None or orders is None or world.killing:
        return state, ()
    plan = plan_that_keeps_ranks(state) or world.plan  # it may wait for the end of lost ranks
    paused = orders.pause == plan.world_id
    stop_at = orders.stop_at if paused else None
    committed = checkpointrules.committed_step(state, world)
    servers = server_addresses(state.config, plan)
    live_world = None if state.config.servers else _live_world(state, plan)
    of_preserved = ToRank(
        paused,
        stop_at,
        committed,
        servers,
        live_world=live_world,
        lost=orders.lost,
        saves_as=orders.saves_as,
    )
    effects: tuple[Effect, ...] = ()
    for rank in world.ranks:
        is_preserved = plan.world_id != (rank.started_in or world.started_in)
        message = of_preserved if is_preserved else replace(of_preserved, servers=(), live_world=None)
        if paused and stop_at is None:
            message = replace(message, stop_at=rank.sent.stop_at)
        if rank.alive and not rank.is_lost and rank.has_library and rank.sent != message:
            received = rank.pause_received if message.pause and rank.sent.pause else None
            world = world.with_rank(replace(rank, sent=message, pause_received=received))
            effects += (SendToRank(world.started_in, rank.rank, message),)
    return replace(state, world=world), effects


def _live_world(state: AgentState, plan: Plan) -> LiveWorld:
    saves_as = plan.started_in(state.config.lead_slot)
    store = plan.store_host, plan.store_port
    return LiveWorld(plan.world_id, *store, plan.started, saves_as, plan.restart_count, plan.absent)
