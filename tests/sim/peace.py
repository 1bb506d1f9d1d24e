"""Peace: all faults end and a world trains, then people stop the job, or its pods. That costs no step."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from tests.sim.promise import require
from tests.sim.world import World

from ropeteam.core.seen.observation import Role

if TYPE_CHECKING:
    from tests.sim.moves import Move

MOST = 15
GAPS = (0.0, 0.2, 0.6, 0.9, 1.05, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 9.0, 12.0, 0.0)
"""Seconds between two evictions: both sides of those that others are awaited, and of a pod's start."""


def trains(world: World) -> bool:
    """The newest world does, and will for a while."""
    gang = world.checks.newest
    if gang is None or world.clock.now > gang.stepped_at + 2.0:
        return False
    left = world.script.total_steps - gang.ranks[0].step
    return left >= 10 and all(rank.settled for rank in gang.ranks.values())


def _is_at_peace(world: World) -> bool:
    """All faults have ended, and a world trains."""
    world.script = replace(world.script, bug_at=None)
    world.stop_faults()
    world.kubernetes.edit(suspend=False)
    for _ in range(40):
        world.run(1.0)
        if trains(world):
            return True
    return False


def _is_undisturbed(world: World) -> bool:
    is_still = not any(pod.deleting for pod in world.kubernetes.pods.values())
    return trains(world) and is_still and world.kubernetes.job.status.state == "Running"


def leave_in_peace(world: World, move: Move) -> None:
    """All faults end, a world trains, and somebody suspends the job: that costs nothing, even if one agent is
    late. Some of drainSeconds are left then."""
    if world.setup.feature_level < 2 or world.setup.servers or world.over:
        return
    if not _is_at_peace(world):
        return  # else it might begin to train just now: its first step may be made, and not reported yet
    world.run(3.0 + 0.1 * move.size)
    if _is_undisturbed(world):
        agents, most = world.live_agents(), min(0.6 * world.setup.lost, 3.0)
        world.suspend(agents[move.place % len(agents)], most * move.size / MOST)
        world.run(15.0)
        if world.kubernetes.job.status.state != "Failed":  # an incident of before was charged meanwhile
            world.checks.left_in_peace()


def evict_in_peace(world: World, move: Move) -> None:
    """All faults end, replicas train, and pods of theirs are evicted, one after the other, in any order: on
    one half of the occasions without an operator that replaces any before the last one. (Under selfFence a
    coordinator sends no orders without one.)"""
    if not world.setup.exact or world.over or not _is_at_peace(world):
        return
    world.run(3.0)
    if _is_undisturbed(world):
        script = world.script  # no rank reaches its end meanwhile: that is saved, but not in this simulator
        world.script = replace(script, total_steps=script.total_steps + 100)
        orders = [*permutations(range(world.setup.workers))]
        order = orders[world.random.randrange(len(orders))]
        away = world.random.random() < 0.5 and not world.setup.self_fence
        evict(world, order[: 1 + move.place % len(order)], GAPS[move.size], away)


def evict(world: World, slots: tuple[int, ...], gap: float, away: bool = False) -> None:
    """Evict the pods of these slots, so many seconds apart. No step is made twice for that, but the first one
    of a world that ends before it is reported (drains.py)."""
    gang, counts = world.checks.newest, world.checks.counts
    assert gang is not None
    made, before = max(rank.step for rank in gang.ranks.values()), counts.copy()
    if away:
        world.operator.kill()
    for slot in slots:
        pods = (pod for pod in world.kubernetes.pods.values() if pod.role is not Role.COORDINATOR)
        newest = max((pod for pod in pods if pod.slot == slot), key=lambda pod: pod.incarnation, default=None)
        if newest and not newest.deleting:
            world.kubernetes.delete_pod(newest)
        world.run(gap)
    world.operator.start()
    for _ in range(60):
        world.run(1.0)
        gang = world.checks.newest
        if all(rank.alive for rank in gang.ranks.values()) and trains(world):
            break
    advanced = max(rank.step for rank in gang.ranks.values()) - made
    again = counts["steps"] - before["steps"] - advanced
    first_steps = max(0, counts["worlds"] - before["worlds"] - 1)
    is_peace = counts["stores lost"] < before["stores lost"] + 2  # else the pod that had them is replaced
    free = again <= first_steps or not is_peace
    require(free, "evictions cost no step", slots, gap, away, "made again:", again)
    counts["evicted in peace"] += 1
