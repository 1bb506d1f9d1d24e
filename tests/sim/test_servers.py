"""A job with parameter servers in the simulator: a fault touches one slot, and nothing acknowledged is lost.

Random histories with servers are in test_sim.py; here are those that must come out in exactly one way.
"""

from __future__ import annotations

import pytest
from tests.sim.histories import History, play_history
from tests.sim.moves import Move
from tests.sim.ranks import Rank
from tests.sim.world import Setup, World

from ropeteam_trainer.contract.world import ProcessExit

SEEDS = range(4)
WORKERS, SERVERS = 3, 2
SLOTS = range(WORKERS + SERVERS)


def running(seed: int) -> World:
    """All ranks make steps."""
    world = World(Setup(seed, feature_level=3, workers=WORKERS, servers=SERVERS, total_steps=60))
    world.run(12.0)
    assert len(processes(world)) == len(SLOTS)
    assert world.checks.counts["steps"] > 0
    return world


def processes(world: World) -> dict[int, Rank]:
    return {rank.number: rank for rank in world.live_ranks()}


def completes(world: World) -> None:
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", SLOTS)
def test_a_killed_rank_is_started_once_and_alone(seed: int, victim: int) -> None:
    world = running(seed)
    before = processes(world)
    before[victim].die(ProcessExit(None, 9))
    world.run(8.0)
    after = processes(world)
    assert [number for number in SLOTS if after[number] is not before[number]] == [victim]
    assert world.checks.counts["worlds"] == 1, "no line began anew"
    completes(world)
    assert len(world.kubernetes.job.status.incidents) == 1
    every = [rank for agent in world.agents.values() for rank in agent.every_rank]
    assert len(world.agents) == len(SLOTS), "no pod was replaced"
    assert all(rank in (before[rank.number], after[rank.number]) for rank in every)


def test_a_worker_that_ends_early_is_not_waited_for_without_an_end() -> None:
    """A worker exits with 0, in the midst of its script: the servers and the other workers wait for it."""
    world = running(81)
    processes(world)[0].die(ProcessExit(0, None))
    completes(world)
    (incident,) = world.kubernetes.job.status.incidents
    assert "exited with 0 before the end of its script" in incident.message


@pytest.mark.parametrize("server", SLOTS[WORKERS:])
def test_a_server_that_ends_early_is_missed(server: int) -> None:
    world = running(82)
    processes(world)[server].die(ProcessExit(0, None))
    completes(world)
    (incident,) = world.kubernetes.job.status.incidents
    assert "while workers need it" in incident.message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gently", [True, False])
def test_a_deleted_worker_disturbs_nobody(seed: int, gently: bool) -> None:
    world = running(seed)
    before, pod = processes(world), world.kubernetes.pods["climb-1-1"]
    world.kubernetes.delete_pod(pod, None if gently else 0.0)
    world.run(15.0)
    after = processes(world)
    assert [number for number in SLOTS if after[number] is not before[number]] == [1]
    completes(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_terminating_server_costs_no_step(seed: int) -> None:
    world = running(seed)
    before = processes(world)
    world.kubernetes.delete_pod(world.kubernetes.pods["climb-4-1"], None)
    world.run(20.0)
    after = processes(world)
    assert not [number for number in SLOTS if after[number] is before[number]]
    (incident,) = world.kubernetes.job.status.incidents
    assert incident.steps_lost == 0
    completes(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_server_sends_all_back_to_the_checkpoint(seed: int) -> None:
    world = running(seed)
    before = processes(world)
    world.kubernetes.force_delete(world.kubernetes.pods["climb-3-1"])
    world.run(25.0)
    assert not [number for number, rank in processes(world).items() if rank is before[number]]
    assert world.checks.counts["worlds"] == 2
    completes(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_restarts_while_a_rank_comes_back_spares_the_others(seed: int) -> None:
    world = running(seed)
    before = processes(world)
    before[2].die(ProcessExit(None, 9))
    world.run(0.05 * (1 + seed))
    coordinator = next(pod for pod in world.kubernetes.pods.values() if pod.process in world.coordinators)
    assert coordinator.process
    assert coordinator.kubelet
    coordinator.process.kill()
    coordinator.kubelet.exited(coordinator, 137, "Error")
    world.run(25.0)
    after = processes(world)
    assert [number for number in SLOTS if after[number] is not before[number]] == [2]
    completes(world)


def test_a_history_with_servers_can_be_replayed() -> None:
    setup = Setup(seed=3, feature_level=3, workers=2, servers=1, codec=True)
    moves = (
        "long_wait(0,9) kill_rank(1,0) wait(0,9) kill_agent(0,2) long_wait(0,9) suspend(0,0) long_wait(0,9)"
    )
    history = History(setup, tuple(map(Move.parse, moves.split())))
    assert History.parse(history.show()) == history
    assert play_history(history).checks.counts["steps"] > 0
