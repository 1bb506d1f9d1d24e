"""Sync Exact in the simulator: living ranks finish the step of a lost one, which alone is started again.

Random histories with replicas are in test_sim.py; here are those that must come out in exactly one way.
"""

from __future__ import annotations

import pytest
from tests.sim import stores
from tests.sim.histories import History, play_history
from tests.sim.moves import Move
from tests.sim.replicas import Replica
from tests.sim.world import Setup, World

from ropeteam_trainer.contract.world import Plan, ProcessExit

WORKERS, STEPS = 3, 26
SEEDS = range(2)
KILLED = ProcessExit(None, 9)


def running(
    seed: int, workers: int = WORKERS, processes: int = 1, steps: int = STEPS, mates: int = 1, follow: int = 0
) -> World:
    """All replicas make steps."""
    setup = Setup(seed, workers, processes, total_steps=steps, exact=1, mates=mates, follow=follow)
    world = World(setup)
    world.run(10.0)
    assert len(replicas(world)) == setup.world_size
    assert world.checks.counts["steps"] > 0
    assert not world.kubernetes.job.status.incidents
    return world


def replicas(world: World) -> dict[int, Replica]:
    return {rank.number: rank for rank in world.live_ranks() if isinstance(rank, Replica)}


def kill(world: World, *numbers: int) -> dict[int, Replica]:
    """The replicas before."""
    before = replicas(world)
    for number in numbers:
        before[number].die(KILLED)
    return before


def run_until(world: World, count: str, least: int = 1) -> None:
    """Until the checks have counted that so often."""
    for _ in range(400):
        if world.checks.counts[count] >= least:
            return
        world.run(0.1)
    raise AssertionError(f"{count} did not happen: {world.checks.counts}")


def replaced(world: World, before: dict[int, Replica]) -> list[int]:
    after = replicas(world)
    return [number for number in sorted(before) if after.get(number) is not before[number]]


def completes(world: World, incidents: int = 1) -> None:
    """With each step made once: nothing was lost."""
    world.settle()
    status = world.kubernetes.job.status
    assert status.state == "Complete"
    assert [incident.steps_lost for incident in status.incidents] == [0] * incidents
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, world.script.total_steps)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_killed_rank_is_started_alone_and_costs_no_step(seed: int, victim: int) -> None:
    world = running(seed)
    before = kill(world, victim)
    at_loss = world.checks.counts["steps"]
    run_until(world, "joins")
    assert world.checks.counts["regroups"] == WORKERS - 1, "the others continued without it"
    assert world.checks.counts["steps"] > at_loss, "they made steps meanwhile"
    assert replaced(world, before) == [victim]
    assert len(world.agents) == WORKERS, "no pod was replaced"
    completes(world)


def test_a_step_that_only_some_have_is_completed_by_all() -> None:
    """A rank dies while sums are delivered: some have it, others get it from these."""
    received = 0
    for seed in range(5):
        world = running(seed)
        made = world.checks.counts["steps"]
        while world.checks.counts["steps"] == made:
            world.run_events(1)
        kill(world, next(number for number, rank in replicas(world).items() if rank.step > made))
        run_until(world, "joins")
        received += world.checks.counts["kept sums"]
        completes(world)
    assert received > 0, "some had it"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victims", [(0, 1), (1, 2)])
def test_one_that_is_left_finishes_the_step_alone(seed: int, victims: tuple[int, int]) -> None:
    world = running(seed)
    before = kill(world, *victims)
    run_until(world, "joins", 2)
    assert replaced(world, before) == [*victims]
    completes(world)


@pytest.mark.parametrize("victims", [(0,), (3,), (0, 2), (1, 2, 3)])
def test_ranks_that_are_killed_beside_others_of_their_pods_are_started_alone(
    victims: tuple[int, ...],
) -> None:
    world = running(0, workers=2, processes=2)
    before = kill(world, *victims)
    run_until(world, "joins", len(victims))
    assert replaced(world, before) == [*victims]
    assert len(world.agents) == 2, "no pod was replaced"
    completes(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_any_rank_all_begin_at_the_newest_checkpoint(seed: int) -> None:
    world = running(seed)
    before = kill(world, *range(WORKERS))
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"
    assert world.checks.counts["worlds"] == 2
    assert not {*before.values()} & {*replicas(world).values()}


@pytest.mark.parametrize("slot", range(WORKERS))
def test_a_lost_pod_costs_no_step(slot: int) -> None:
    world = running(slot)
    before = replicas(world)
    world.kubernetes.force_delete(world.kubernetes.pods[f"climb-{slot}-1"])
    run_until(world, "joins")
    assert replaced(world, before) == [slot]
    assert len(world.agents) == WORKERS + 1, "its pod was replaced"
    completes(world)


@pytest.mark.parametrize("seed", [0, 2])
def test_the_others_make_steps_while_no_pod_takes_the_place_of_a_lost_one(seed: int) -> None:
    """The machine loses power, so no connection to it ends; and the operator is away."""
    world = running(seed, steps=60)
    before, made = replicas(world), world.checks.counts["steps"]
    alone = (kubelet for kubelet in world.kubernetes.kubelets if len(kubelet.pods) == 1)
    kubelet = next(each for each in alone if each.pods[0].process not in world.coordinators)
    slot = kubelet.pods[0].slot
    world.operator.kill()
    kubelet.go_out_of_touch(power_too=True)
    world.run(12.0)
    assert world.moments["plan"] == 1, "no other world was planned"
    assert replaced(world, before) == [slot]
    assert world.checks.counts["steps"] > made + 5
    assert world.checks.counts["commits by one for all"] > 0
    assert (world.checks.counts["commits of deputies"] > 0) == (slot == 0)
    world.operator.start()
    run_until(world, "joins")
    completes(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_hangs_is_replaced_alone(seed: int) -> None:
    world = running(seed)
    before = replicas(world)
    before[1].hung = True
    run_until(world, "joins")
    assert replaced(world, before) == [1]
    completes(world)
    (incident,) = world.kubernetes.job.status.incidents
    assert incident.cause == "Hang"


@pytest.mark.parametrize("tenths", [0, 1, 3, 8, 15, 25])
def test_a_coordinator_that_restarts_between_loss_and_join_spares_the_others(tenths: int) -> None:
    world = running(1)
    before = kill(world, 2)
    world.run(0.01 + tenths / 10)
    restart_coordinator(world)
    run_until(world, "joins")
    world.run(2.0)
    assert len(world.coordinators) == 2
    assert replaced(world, before) == [2]
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, STEPS)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_nobody_reached_is_lost_for_the_next_coordinator_too(seed: int) -> None:
    """The rank lives, and its agent reports it as one that makes steps. No operator replaces its pod."""
    world = running(seed, steps=60)
    before = replicas(world)
    unreachable = next(agent for agent in world.live_agents() if agent.pod.slot == 2)
    world.operator.kill()
    world.network.isolate(unreachable.site)
    world.run(6.0)
    assert world.checks.counts["regroups"] >= WORKERS - 1, "the others continued without it"
    assert replicas(world)[2] is before[2]
    restart_coordinator(world)
    world.network.join(unreachable.site)
    world.operator.start()
    run_until(world, "joins")
    assert replaced(world, before) == [2]
    assert unreachable.alive, "no pod was replaced"
    assert not world.kubernetes.job.status.incidents, "it neither hung nor ended by itself"
    completes(world, incidents=0)


def restart_coordinator(world: World) -> None:
    pod = next(pod for pod in world.kubernetes.pods.values() if pod.process in world.coordinators)
    assert pod.process
    assert pod.kubelet
    pod.process.kill()
    pod.kubelet.exited(pod, 137, "Error")


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_dies_again_before_it_has_joined_disturbs_nobody(seed: int) -> None:
    world = running(seed)
    before = kill(world, 1)
    while (again := replicas(world).get(1)) is None:
        world.run_events(1)
    world.run(0.1 * seed)
    assert world.checks.counts["joins"] == 0
    again.die(KILLED)
    run_until(world, "joins")
    assert replaced(world, before) == [1]
    assert replicas(world)[1] is not again
    world.settle()
    assert (world.checks.counts["worlds"], world.checks.counts["steps"]) == (1, STEPS)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victims", [(0,), (1,), (1, 2)])
def test_a_store_that_ends_before_the_new_ranks_have_joined_costs_these_alone(
    seed: int, victims: tuple[int, ...]
) -> None:
    world = running(seed)
    before = kill(world, *victims)
    while not replicas(world).keys() >= {*victims}:
        world.run_events(1)
    world.run(0.2 * seed)
    again = replicas(world)
    assert not world.checks.counts["joins"]
    lose_store(world, again[victims[0]].plan)
    began = world.clock.now
    run_until(world, "joins", len(victims))
    assert world.clock.now < began + 10.0, "half of startSeconds"
    after = replicas(world)
    assert replaced(world, before) == [*victims]
    assert all(after[number] is not again[number] for number in victims)
    completes(world, incidents=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_ends_when_all_have_joined_costs_nothing(seed: int) -> None:
    world = running(seed)
    kill(world, 1)
    run_until(world, "joins")
    while not all(rank.step > rank.base and rank.phase == "sum" for rank in replicas(world).values()):
        world.run_events(1)
    world.run(0.5)
    lose_store(world, replicas(world)[1].plan)
    world.run(1.0)
    assert any(agent.state.lost_stores for agent in world.live_agents())
    completes(world)


def lose_store(world: World, plan: Plan) -> None:
    """The process of this world's store ends."""
    (keeper,) = (agent for agent in world.live_agents() if plan.world_id in agent.stores)
    stores.dies(world, keeper, plan.world_id)
    assert plan.world_id not in keeper.stores


def test_a_history_with_replicas_can_be_replayed() -> None:
    setup = Setup(seed=3, feature_level=3, workers=2, codec=True, exact=1, total_steps=60)
    moves = "long_wait(0,9) kill_rank(1,0) wait(0,9) kill_agent(0,2) long_wait(0,9) suspend(0,0) wait(0,9)"
    history = History(setup, tuple(map(Move.parse, moves.split())))
    assert History.parse(history.show()) == history
    first, second = (play_history(history, film=True) for _ in range(2))
    assert first.film.text() == second.film.text()
    assert first.checks.counts["joins"] > 0
