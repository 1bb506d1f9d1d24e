"""Ranks that nobody can reach are dead before others may take their place, whatever the timeouts."""

from __future__ import annotations

import pytest
from tests.sim.kubelet import Kubelet
from tests.sim.moves import Move, partition, play
from tests.sim.world import Setup, World

from ropeteam.api.conditions import ConditionType


def a_world(setup: Setup) -> World:
    """A world that trains, with nodes to spare."""
    world = World(setup)
    spare = (Kubelet(f"spare-{number}", world.kubernetes) for number in range(setup.workers + 2))
    world.kubernetes.kubelets.extend(spare)
    world.run(15.0)
    assert world.checks.counts["steps"] > 0
    return world


@pytest.mark.parametrize(("lost", "fence"), [(9, 10), (20, 30), (60, 120)])
def test_a_node_that_is_partitioned_and_removed_never_trains_beside_its_successor(
    lost: int, fence: int
) -> None:
    partitions = 0
    for seed in range(4):
        world = a_world(Setup(seed=seed, workers=1, feature_level=1, total_steps=900, lost=lost, fence=fence))
        (old,) = world.live_agents()
        kubelet = old.pod.kubelet
        if world.live_coordinators()[0].pod.kubelet is kubelet:
            continue
        assert kubelet
        partition(world, kubelet)
        kubelet.disown()
        partitions += 1
        world.run(2.0 * lost + fence + 60.0)  # the checks demand that one world advances
        assert not any(rank.alive for rank in old.ranks.values())
        assert [agent for agent in world.live_agents() if any(r.alive for r in agent.ranks.values())]
    assert partitions


def test_a_coordinator_that_restarts_without_an_operator_keeps_the_world_alive() -> None:
    """The coordinator waits for the operator's status, and its answers are a sign of life."""
    world = a_world(Setup(seed=1, feature_level=1, total_steps=200, fence=15))
    world.operator.kill()
    play(world, Move("kill_coordinator"))
    before = world.checks.counts["steps"]
    world.run(60.0)
    assert len(world.coordinators) == 2
    assert not world.coordinators[-1].state.desired
    assert world.checks.counts["steps"] > before + 40
    assert world.checks.counts["worlds"] == 1


@pytest.mark.parametrize("feature_level", [0, 1])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_island_of_a_coordinator_and_its_agents_is_the_only_world(
    feature_level: int, workers: int
) -> None:
    """All of its nodes lost the API server and the operator, not each other."""
    for seed in range(6):
        world = a_world(Setup(seed=seed, workers=workers, feature_level=feature_level, total_steps=400))
        old = list(world.kubernetes.pods.values())
        for kubelet in dict.fromkeys(pod.kubelet for pod in old if pod.kubelet):
            kubelet.go_out_of_touch(power_too=False)
        if seed % 2:
            world.network.island(*(pod.uid for pod in old))
        else:
            for pod in old:
                world.network.partition("operator", pod.uid)
        before = world.checks.counts["steps"]
        world.run(150.0)  # the checks demand that one world advances
        assert world.checks.counts["steps"] > before + 100, "it trains on"
        assert {rank.plan.world_id.term for rank in world.live_ranks()} == {1}
        status = world.kubernetes.job.status
        stalled = status.condition(ConditionType.STALLED)
        assert stalled
        assert (stalled.holds, stalled.reason) == (True, "PreviousCoordinatorMayRun"), status
        assert (
            "kubectl annotate trainingjob -n default climb ropeteam.dev/coordinators-ended=1"
            in stalled.message
        )


@pytest.mark.parametrize("feature_level", [0, 1])
@pytest.mark.parametrize(("lost", "fence"), [(4, 15), (9, 10), (20, 60)])
def test_an_island_that_fences_itself_ends_before_its_successor_begins(
    feature_level: int, lost: int, fence: int
) -> None:
    for seed in range(4):
        setup = Setup(
            seed=seed,
            workers=2,
            feature_level=feature_level,
            total_steps=900,
            lost=lost,
            fence=fence,
            self_fence=1,
        )
        world = a_world(setup)
        old = list(world.kubernetes.pods.values())
        for kubelet in dict.fromkeys(pod.kubelet for pod in old if pod.kubelet):
            kubelet.go_out_of_touch(power_too=False)
        world.network.island(*(pod.uid for pod in old))
        if seed % 2:
            world.run(fence / 2)
            world.operator.kill()
            world.operator.start()
        world.run(3.0 * fence + 120.0)  # the checks demand that one world advances
        assert (
            {rank.plan.world_id.term for rank in world.live_ranks()}
            == {world.kubernetes.job.status.coordinator.term}
            != {1}
        )


@pytest.mark.parametrize("feature_level", [0, 1])
def test_a_person_confirms_that_the_island_has_ended_and_the_job_continues(feature_level: int) -> None:
    world = a_world(Setup(seed=1, workers=2, feature_level=feature_level, total_steps=400))
    old = list(world.kubernetes.pods.values())
    for kubelet in dict.fromkeys(pod.kubelet for pod in old if pod.kubelet):
        kubelet.go_out_of_touch(power_too=True)
        kubelet.disown()
    world.run(60.0)
    assert not world.live_ranks(), "nobody knows that it lost power"
    world.vouch()
    world.run(60.0)
    assert {rank.plan.world_id.term for rank in world.live_ranks()} == {
        world.kubernetes.job.status.coordinator.term
    }
