"""Stores (TCPStore) in the pod of an agent: each opens late, and some end while ranks need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropeteam_trainer.agent.machine import events
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import StoreOffer
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.coordinator.membership.step import may_answer

if TYPE_CHECKING:
    from tests.sim.agent_process import Agent
    from tests.sim.world import World


def opens(world: World, agent: Agent, world_id: WorldId) -> None:
    if not agent.alive:
        return
    chance = world.random.random()
    if chance < 0.05:
        agent.see(events.StoreDown(world_id))
        return
    if chance < 0.08 and not agent.config.servers:  # theirs would end slot 0 alone
        world.clock.after(100 * (chance - 0.05), dies, world, agent, world_id)
    port = agent.stores[world_id] = 30000 + world.next_number()
    agent.see(events.StoreUp(StoreOffer(world_id, agent.state.identity.pod_ip, port)))


def dies(world: World, agent: Agent, world_id: WorldId) -> None:
    """Maybe before its plan comes, maybe while ranks wait in it, maybe after."""
    if agent.alive and world_id in agent.stores:
        world.film.write(agent.pod.name, f"loses the store of {world_id}")
        del agent.stores[world_id]
        world.checks.status.store_lost(world_id)
        world.checks.counts["stores lost"] += 1
        agent.see(events.StoreDown(world_id))


def is_unnoticed(world: World, agent: Agent) -> bool:
    """The store that we held is gone, ranks that its world starts beside others have not joined these yet,
    and the coordinator, to which we are connected, takes this world for one that runs."""
    plan, coordinator = agent.state.desired_plan, agent.coordinator
    if plan is None or not plan.started or plan.store_host != agent.state.identity.pod_ip:
        return False
    if agent.stores.get(plan.world_id) == plan.store_port or coordinator is None:
        return False
    if not world.network.reaches(agent.site, coordinator.site) or coordinator.frozen:
        return False
    state = coordinator.state
    runs = state.phase is WorldPhase.RUNNING and state.world and state.world.plan.world_id == plan.world_id
    new = (rank for rank in world.live_ranks() if rank.plan.world_id == plan.world_id)
    waits = any(rank.number in plan.started and rank.step == rank.base for rank in new)
    return bool(runs) and may_answer(state, world.clock.now) and waits


def is_missed(agent: Agent) -> bool:
    """Ranks live here, and no end of them was requested, although the store that we held is gone, before they
    had formed their group."""
    world, orders = agent.state.world, agent.state.orders
    if world and world.plan.started:
        return False  # its coordinator ends it, not this agent (`is_unnoticed`)
    if world is None or world.killing or (orders and orders.pause == world.plan.world_id):
        return False
    plan = world.plan
    has_group = any(group.size >= plan.world_size for group in world.groups)
    if has_group or plan.store_host != agent.state.identity.pod_ip:
        return False
    if agent.stores.get(plan.world_id) == plan.store_port:
        return False
    return any(rank.started_at and not rank.exit and not rank.killed_for for rank in world.ranks)
