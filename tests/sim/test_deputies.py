"""Sync Exact in the simulator: while the pod of rank 0 is missing, another agent commits."""

from __future__ import annotations

import pytest
from tests.sim.agent_process import Agent
from tests.sim.test_replicas import (
    SEEDS,
    completes,
    kill,
    replaced,
    replicas,
    restart_coordinator,
    run_until,
    running,
)
from tests.sim.world import World

LONG = 90
"""Steps of the job: it has not ended when a test looks."""


def without_slot_0(seed: int, workers: int = 3) -> World:
    """The pod of rank 0 is gone, no node has capacity for another, and a deputy has committed."""
    world = running(seed, workers, steps=LONG)
    world.kubernetes.slots_without_capacity = range(9)
    lose_pod(world, 0)
    run_until(world, "commits of deputies")
    return world


def agent_of(world: World, slot: int) -> Agent:
    return next(agent for agent in world.live_agents() if agent.pod.slot == slot)


def lose_pod(world: World, slot: int) -> None:
    world.kubernetes.force_delete(agent_of(world, slot).pod)


def resumes_from_a_deputy(world: World, within: int) -> None:
    """All ranks are lost, and begin again at most so many steps before."""
    made = max(rank.step for rank in replicas(world).values())
    committed = world.checks.counts["commits of deputies"]
    kill(world, *replicas(world))
    world.kubernetes.slots_without_capacity = ()
    run_until(world, "worlds", 2)
    assert world.checks.newest
    run_until(world, "steps", world.checks.counts["steps"] + 1)
    restored = world.checks.newest.restored
    assert restored
    assert committed
    assert restored.step >= made - within
    assert restored.world_id in deputized(world)
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"


def deputized(world: World) -> set[object]:
    """Numbers of all deputies of all coordinators."""
    return {number for each in world.coordinators for number in each.state.deputized}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_that_ends_all_costs_the_steps_since_a_deputys_last_checkpoint(seed: int) -> None:
    world = without_slot_0(seed)
    world.run(15.0)
    assert world.checks.counts["commits of deputies"] > 2
    assert len(deputized(world)) == 1
    resumes_from_a_deputy(world, within=10)


@pytest.mark.parametrize("seed", [0, 2])
def test_the_pod_that_comes_at_last_leads_again_from_what_its_deputy_has_committed(seed: int) -> None:
    world = without_slot_0(seed)
    before = {number: rank for number, rank in replicas(world).items() if number}
    world.kubernetes.slots_without_capacity = ()
    run_until(world, "joins")
    assert replaced(world, before) == []
    committed, deputys = world.checks.counts["commits"], world.checks.counts["commits of deputies"]
    run_until(world, "commits", committed + 1)
    assert world.checks.counts["commits of deputies"] == deputys, "its agent commits"
    completes(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_if_the_deputy_is_lost_too_the_next_slot_is_deputy(seed: int) -> None:
    world = without_slot_0(seed)
    lose_pod(world, 1)
    run_until(world, "commits of deputies", world.checks.counts["commits of deputies"] + 2)
    assert len(deputized(world)) == 2
    resumes_from_a_deputy(world, within=10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_restarts_has_a_deputy_again(seed: int) -> None:
    world = without_slot_0(seed)
    restart_coordinator(world)
    run_until(world, "commits of deputies", world.checks.counts["commits of deputies"] + 2)
    assert len(deputized(world)) == 2
    resumes_from_a_deputy(world, within=10)


@pytest.mark.parametrize("seed", range(4))
def test_a_leading_agent_that_was_isolated_commits_nothing_any_more_and_may_lead_again(seed: int) -> None:
    """On a slow disk a manifest is under way when the deputy claims the folder. The operator is away, so that
    the pod is not replaced."""
    world = running(seed, steps=4 * LONG)
    before, leading = replicas(world), agent_of(world, 0)
    world.run_until_moment("grant", 10.0)
    world.operator.kill()
    world.disk.slowness = 300.0
    while not leading.state.writing:
        world.run_events(1)
    manifest, committed = leading.state.writing, leading.state.committed
    world.network.isolate(leading.site)
    world.disk.slowness = 1.0
    run_until(world, "commits of deputies")
    assert leading.state.writing == manifest
    while leading.state.writing:
        world.run(1.0)
    assert leading.state.superseded in deputized(world)
    assert leading.state.committed == committed
    world.network.join(leading.site)
    run_until(world, "joins")
    assert replaced(world, before) == [0]
    assert agent_of(world, 0) is leading
    assert leading.state.superseded is None
    world.operator.start()
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, 4 * LONG), "nothing is lost"
    assert len(world.coordinators) == 1, "it was not taken for an older one"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_is_suspended_then_saves_through_its_deputy(seed: int) -> None:
    world = without_slot_0(seed)
    world.kubernetes.edit(suspend=True)
    world.run(20.0)
    assert not replicas(world)
    world.kubernetes.slots_without_capacity = ()
    world.kubernetes.edit(suspend=False)
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (2, LONG), "no step made again"
