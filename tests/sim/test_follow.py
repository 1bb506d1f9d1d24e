"""Sync Exact with catchUp Follow in the simulator: new replicas make steps of the others before they join."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.replicas import Replica
from tests.sim.test_mates import lost_with
from tests.sim.test_replicas import KILLED, completes, kill, replaced, replicas, run_until, running
from tests.sim.wires import SECONDS
from tests.sim.world import World

STEPS = 60
LAYOUTS = {"ranks": (3, 1, 1), "mates": (3, 2, 2)}


def of(layout: str, seed: int = 0, steps: int = STEPS) -> World:
    workers, processes, mates = LAYOUTS[layout]
    return running(seed, workers, processes, steps, mates, follow=1)


def followers(world: World) -> list[Replica]:
    found = (rank for rank in replicas(world).values() if rank.wires.newcomer and rank.follows)
    return [rank for rank in found if rank.step > 0]


def run_until_one_follows(world: World) -> Replica:
    while not followers(world):
        world.run_events(1)
    return followers(world)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(2))
def test_the_others_make_steps_until_it_has_caught_up(layout: str, seed: int) -> None:
    world = of(layout, seed)
    before = kill(world, seed)
    run_until(world, "begins to follow")
    made = world.checks.counts["steps"]
    run_until(world, "joins", world.setup.mates)
    assert world.checks.counts["followed steps"] > 0
    assert world.checks.counts["steps"] > made + 1, "nobody waited while it was sent the state"
    assert replaced(world, before) == lost_with(world, seed)
    completes(world)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_loss_meanwhile_begins_it_again(layout: str, seed: int) -> None:
    world = of(layout, seed)
    kill(world, 1)
    follower = run_until_one_follows(world)
    size = world.setup.mates
    replicas(world)[0 if follower.replica else size].die(KILLED)
    run_until(world, "joins", 2 * size)
    assert not follower.alive
    world.settle()
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, STEPS)


def test_one_that_hangs_is_left_behind() -> None:
    world = of("ranks", steps=120)
    world.script = replace(world.script, step_seconds=0.2)
    kill(world, 1)
    run_until(world, "begins to follow")
    replicas(world)[1].hung = True
    run_until(world, "left behind")
    made = world.checks.counts["steps"]
    world.run(SECONDS)
    assert world.checks.counts["steps"] > made + 1, "the others continue"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_makes_the_last_steps_too(layout: str) -> None:
    """The others end while it follows."""
    behind = 0
    for seed in range(3):
        world = of(layout, seed)
        kill(world, 1)
        run_until(world, "begins to follow")
        steps = world.checks.counts["steps"] + 2
        world.script = replace(world.script, total_steps=steps)
        world.settle()
        assert world.kubernetes.job.status.state == "Complete"
        assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, steps)
        followed = world.checks.counts["followed steps"]
        behind += world.checks.counts["joins"] == 0 and followed == 2 * world.setup.mates
    assert behind > 0
