"""Evictions with grace under sync Exact cost no step: of one pod, in turn, at once, of that which commits."""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.sim import peace
from tests.sim.histories import History, play_history
from tests.sim.moves import Move
from tests.sim.test_replicas import WORKERS, completes, replaced, replicas, run_until, running
from tests.sim.world import Setup, World

from ropeteam.core.seen.observation import Role

LONG = 90
"""Steps: the last one is not made before all pods are replaced."""
GAPS = (0.5, 1.05, 1.3, 3.0)
"""Seconds between two: the pod after is awaited for 1 s, and its successor has come after 2 to 4."""
ORDERS = [*permutations(range(WORKERS)), (0,), (1, 0), (2, 0), (1, 2)]


def evicted(world: World, slot: int) -> None:
    pods = (pod for pod in world.kubernetes.pods.values() if pod.role is not Role.COORDINATOR)
    world.kubernetes.delete_pod(next(pod for pod in pods if pod.slot == slot))


@pytest.mark.parametrize("slot", [1, 2])
def test_the_others_make_steps_from_an_eviction_to_the_successors_join(slot: int) -> None:
    world = running(slot, steps=LONG)
    before = replicas(world)
    evicted(world, slot)
    run_until(world, "regroups", WORKERS - 1)
    left = world.checks.counts["steps"]
    run_until(world, "joins")
    assert world.checks.counts["steps"] > left + 1
    assert replaced(world, before) == [slot]
    assert len(world.agents) == WORKERS + 1, "its pod was replaced"
    assert not world.moments["pause"]
    completes(world)
    (incident,) = world.kubernetes.job.status.incidents
    assert (incident.cause, incident.charged) == ("PodDeleted", False)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("slots", ORDERS, ids=str)
def test_evictions_in_any_order_cost_no_step(slots: tuple[int, ...], away: bool) -> None:
    """away: no pod is replaced before the last one is evicted."""
    for seed, gap in enumerate(GAPS):
        world = running(seed, steps=LONG)
        peace.evict(world, slots, gap, away)
        assert world.checks.counts["evicted in peace"] == 1


def test_a_history_with_evictions_in_peace_evicts_some() -> None:
    setup = Setup(seed=1, workers=3, exact=1, total_steps=LONG)
    world = play_history(History(setup, tuple(Move("evict_in_peace", 2, size) for size in (2, 9))))
    assert world.checks.counts["evicted in peace"] > 0
