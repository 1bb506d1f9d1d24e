"""Sync Exact in the simulator: a pod of several that are lost comes back, and joins without the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.test_replicas import completes, replaced, replicas, restart_coordinator, run_until, running
from tests.sim.world import World

LONG = 300


def without(
    absent: int, back: int, workers: int = 3, mates: int = 1, seed: int = 0, follow: int = 0
) -> World:
    """Two pods are lost, and no node has room for the successor of one of them."""
    world = running(seed, workers, steps=LONG, mates=mates, follow=follow)
    before, pods = replicas(world), world.kubernetes.pods
    world.kubernetes.without_room = [absent]
    for slot in (absent, back):
        world.kubernetes.force_delete(pods[f"climb-{slot}-1"])
    run_until(world, "partial joins", world.setup.world_size - mates)
    joined = {number // mates for number in replaced(world, before) if number in replicas(world)}
    assert joined == {back // mates}
    assert world.checks.counts["joins"] == mates
    return world


CASES = {"rank 0 lives": (1, 2), "rank 0 is absent": (0, 1), "rank 0 joins": (2, 0)}


@pytest.mark.parametrize("follow", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_it_makes_steps_and_checkpoints_with_the_others_until_all_are_there(case: str, follow: int) -> None:
    absent, back = CASES[case]
    world = without(absent, back, follow=follow)
    made, commits = world.checks.counts["steps"], world.checks.counts["commits by one for all"]
    world.run(15.0)
    assert world.checks.counts["steps"] > made + 5
    assert world.checks.counts["commits by one for all"] > commits
    world.kubernetes.without_room = ()
    run_until(world, "joins", 2)
    completes(world)


@pytest.mark.parametrize("case", CASES)
def test_a_restarted_coordinator_knows_who_is_absent(case: str) -> None:
    absent, back = CASES[case]
    world = without(absent, back)
    restart_coordinator(world)
    made = world.checks.counts["steps"]
    world.run(15.0)
    assert world.checks.counts["steps"] > made + 5
    world.kubernetes.without_room = ()
    run_until(world, "joins", 2)
    world.settle()
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, LONG)


def test_a_replica_of_two_pods_joins_without_another_one() -> None:
    world = without(4, 2, workers=6, mates=2)
    world.kubernetes.without_room = ()
    run_until(world, "joins", 4)
    completes(world)


def test_the_training_ends_without_those_that_are_absent() -> None:
    world = without(2, 1)
    world.script = replace(world.script, total_steps=world.checks.counts["steps"] + 10)
    world.run(60.0)
    completes(world)
