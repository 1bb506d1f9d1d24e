"""Replicas of several ranks in the simulator: lost as a whole, started as a whole, and no step is lost.

Random histories with such replicas are in test_sim.py; here are those that must come out in exactly one way.
"""

from __future__ import annotations

import pytest
from tests.sim import peace
from tests.sim.test_evictions import LONG
from tests.sim.test_replicas import (
    STEPS,
    completes,
    kill,
    replaced,
    replicas,
    restart_coordinator,
    run_until,
    running,
)
from tests.sim.world import World

LAYOUTS = {
    "a pod is a replica": (3, 2, 2),
    "a replica is two pods": (4, 1, 2),
    "a pod has two replicas": (2, 4, 2),
    "a pod has parts of two replicas": (3, 2, 3),
}
"""Workers, processes of each, and ranks of a replica."""


def of(layout: str, seed: int = 0, steps: int = STEPS) -> World:
    workers, processes, mates = LAYOUTS[layout]
    return running(seed, workers, processes, steps, mates)


def lost_with(world: World, *numbers: int) -> list[int]:
    size = world.setup.mates
    return sorted({number - number % size + part for number in numbers for part in range(size)})


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_rank_is_started_again_with_its_mates_alone(layout: str, victim: int) -> None:
    world = of(layout, seed=3 * victim)
    before, pods = kill(world, victim), len(world.agents)
    run_until(world, "joins", world.setup.mates)
    assert replaced(world, before) == lost_with(world, victim)
    assert len(world.agents) == pods, "no pod was replaced"
    completes(world)


@pytest.mark.parametrize("victims", [(0, 2), (1, 4), (2, 3, 5)])
def test_ranks_of_several_replicas_are_killed_at_once(victims: tuple[int, ...]) -> None:
    world = of("a pod is a replica")
    before, lost = kill(world, *victims), lost_with(world, *victims)
    run_until(world, "joins", len(lost))
    assert replaced(world, before) == lost
    completes(world)


def test_a_sum_that_a_mate_misses_is_not_used() -> None:
    """A rank dies while sums are delivered, which some ranks of a replica have then, and others have not."""
    found = 0
    for seed in range(4):
        world = of("a pod is a replica", seed)
        made = world.checks.counts["steps"]
        while not any(rank.has_sum(made) for rank in replicas(world).values()):
            world.run_events(1)
        without = [n for n, rank in replicas(world).items() if rank.step == made and not rank.has_sum(made)]
        kill(world, without[seed % len(without)])
        run_until(world, "joins", 2)
        found += world.checks.counts["sums that mates miss"]
        completes(world)
    assert found > 0


@pytest.mark.parametrize("slot", [0, 3])
def test_a_lost_pod_takes_its_replica_with_it(slot: int) -> None:
    world = of("a replica is two pods", seed=slot)
    before = replicas(world)
    world.kubernetes.force_delete(world.kubernetes.pods[f"climb-{slot}-1"])
    run_until(world, "joins", 2)
    assert replaced(world, before) == lost_with(world, slot)
    assert len(world.agents) == 5, "its pod alone was replaced"
    completes(world)


@pytest.mark.parametrize("tenths", [0, 2, 8, 20])
def test_a_coordinator_that_restarts_knows_the_lost_replica(tenths: int) -> None:
    world = of("a replica is two pods", seed=1)
    before = kill(world, 3)
    world.run(0.01 + tenths / 10)
    restart_coordinator(world)
    run_until(world, "joins", 2)
    world.run(2.0)
    assert len(world.coordinators) == 2
    assert replaced(world, before) == [2, 3]
    world.settle()
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, STEPS)


@pytest.mark.parametrize(
    ("layout", "slots"),
    [("a pod is a replica", (1, 0, 2)), ("a replica is two pods", (1,)), ("a replica is two pods", (3, 0))],
)
def test_evictions_cost_no_step(layout: str, slots: tuple[int, ...]) -> None:
    for seed, gap in enumerate((0.5, 3.0)):
        world = of(layout, seed, LONG)
        peace.evict(world, slots, gap, away=seed == 1)
        assert world.checks.counts["evicted in peace"] == 1


def test_one_replica_saves_for_all_while_others_are_missing() -> None:
    world = of("a pod is a replica", steps=60)
    world.operator.kill()
    world.kubernetes.force_delete(world.kubernetes.pods["climb-1-1"])
    run_until(world, "commits by one for all")
    world.operator.start()
    run_until(world, "joins", 2)
    completes(world)
