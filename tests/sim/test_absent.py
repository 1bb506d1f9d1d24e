"""Sync Exact in the simulator: a pod of several that are lost comes back, and joins without the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.test_replicas import completes, replaced, replicas, restart_coordinator, run_until, running
from tests.sim.world import Setup, World

LONG = 300


def without(
    absent: int, back: int, workers: int = 3, mates: int = 1, seed: int = 0, follow: int = 0
) -> World:
    """Two pods are lost, and no node has room for the successor of one of them."""
    world = running(seed, workers, steps=LONG, mates=mates, follow=follow)
    before, pods = replicas(world), world.kubernetes.pods
    world.kubernetes.slots_without_capacity = [absent]
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
    world.kubernetes.slots_without_capacity = ()
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
    world.kubernetes.slots_without_capacity = ()
    run_until(world, "joins", 2)
    world.settle()
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, LONG)


@pytest.mark.parametrize(
    ("absent", "workers", "processes", "mates"),
    [((2,), 3, 1, 1), ((1, 2), 3, 1, 1), ((1,), 3, 2, 1), ((3,), 4, 1, 2), ((2,), 3, 2, 2)],
)
def test_training_begins_without_pods_for_which_there_is_no_capacity(
    absent: tuple[int, ...], workers: int, processes: int, mates: int
) -> None:
    world = World(Setup(0, workers, processes, total_steps=60, exact=1, mates=mates, elastic=1))
    world.kubernetes.slots_without_capacity = absent
    world.run(30.0)
    here = world.setup.world_size - processes * len(absent)
    assert len(replicas(world)) == here - here % mates
    assert world.checks.counts["joins"] == len(replicas(world)) - mates
    assert world.checks.counts["steps"] > 5
    run_until(world, "commits by one for all")
    world.kubernetes.slots_without_capacity = ()
    run_until(world, "joins", world.setup.world_size - mates)
    world.settle()
    status = world.kubernetes.job.status
    assert (status.state, list(status.incidents)) == ("Complete", [])
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, 60)


def test_a_replica_of_two_pods_joins_without_another_one() -> None:
    world = without(4, 2, workers=6, mates=2)
    world.kubernetes.slots_without_capacity = ()
    run_until(world, "joins", 4)
    completes(world)


def test_the_training_ends_without_those_that_are_absent() -> None:
    world = without(2, 1)
    world.script = replace(world.script, total_steps=world.checks.counts["steps"] + 10)
    world.run(60.0)
    completes(world)
