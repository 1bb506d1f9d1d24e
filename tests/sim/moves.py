"""Faults, and time passing: the rules of a history.

A history is a tuple of Moves; each means something in every world (what does not apply does nothing), so
that a shrinker can leave out any of them. `place` and `size` choose among what is there: pods, nodes,
ranks, seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.sim import peace
from tests.sim.kubelet import Kubelet, Pod
from tests.sim.ranks import Rank
from tests.sim.world import World

from ropeteam.core.seen.observation import Role
from ropeteam_trainer.contract.world import ProcessExit

T = TypeVar("T")
MOST = 15
"""`place` and `size` are 0 .. MOST."""


@dataclass(frozen=True)
class Move:
    name: str
    place: int = 0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.place},{self.size})"

    @classmethod
    def parse(cls, text: str) -> Move:
        name, numbers = text.rstrip(")").split("(")
        place, size = numbers.split(",")
        return cls(name, int(place), int(size))


def play(world: World, move: Move) -> None:
    world.film.write("-- move", str(move))
    MOVES[move.name](world, move)


def _pick(objects: list[T], move: Move) -> T | None:
    return objects[move.place % len(objects)] if objects else None


# ---- time


def _wait(world: World, move: Move) -> None:
    world.run(0.1 + 0.25 * move.size)


def _events(world: World, move: Move) -> None:
    world.run_events(1 + move.size * 2 + move.place)


def _long_wait(world: World, move: Move) -> None:
    world.run(3.0 + move.size)


# ---- ranks


def _rank(world: World, move: Move) -> Rank | None:
    return _pick(world.live_ranks(), move)


_EXITS = [ProcessExit(None, 9), ProcessExit(None, 11), ProcessExit(3, None), ProcessExit(None, 9, oom=True)]
_EXITS += [ProcessExit(75, None), ProcessExit(0, None), ProcessExit(None, 6)]


def _kill_rank(world: World, move: Move) -> None:
    if rank := _rank(world, move):
        exit = _EXITS[move.size % len(_EXITS)]
        rank.die(exit)


def _kill_beside_a_sum(world: World, move: Move) -> None:
    """While replicas have the sum of a step, or wait for it."""
    if world.setup.exact:
        world.run_until_moment("sum", 4.0)
        _kill_rank(world, Move("kill_rank", world.random.randrange(MOST + 1), move.size))


def _fail_for_ever(world: World, move: Move) -> None:
    """The exit code that spec.recovery.exitCodes calls final."""
    if (rank := _rank(world, move)) and move.size == 0:
        rank.die(ProcessExit(42, None))


def _raise(world: World, move: Move) -> None:
    if rank := _rank(world, move):
        rank.raises(f"ValueError train.py:{move.size}", f"ValueError: bad loss (train.py:{move.size})")


def _hang_rank(world: World, move: Move) -> None:
    if rank := _rank(world, move):
        rank.hung = True


def _plant_bug(world: World, move: Move) -> None:
    """From now on a step raises whenever it is reached; or the bug is mended."""
    step = None if move.size < 12 else 2 + move.place
    world.script = replace(world.script, bug_at=step)


# ---- agents and coordinators


def _worker_pods(world: World) -> list[Pod]:
    return [pod for pod in world.kubernetes.pods.values() if pod.role is not Role.COORDINATOR]


def _coordinator_pods(world: World) -> list[Pod]:
    return [pod for pod in world.kubernetes.pods.values() if pod.role is Role.COORDINATOR]


def _kill_process(pods: Callable[[World], list[Pod]]) -> Callable[[World, Move], None]:
    def play_it(world: World, move: Move) -> None:
        pod = _pick([pod for pod in pods(world) if pod.process], move)
        if pod and pod.process and pod.kubelet:
            pod.process.kill()
            pod.kubelet.exited(pod, 137, "OOMKilled" if move.size == 1 else "Error")

    return play_it


def _freeze_agent(world: World, move: Move) -> None:
    if agent := _pick(world.live_agents(), move):
        agent.freeze(1.0 + 2.5 * move.size)


def _freeze_coordinator(world: World, move: Move) -> None:
    if coordinator := _pick(world.live_coordinators(), move):
        coordinator.freeze(0.5 + 1.5 * move.size)


# ---- network


def _sites(world: World) -> list[str]:
    return ["operator", *(c.site for c in world.live_coordinators()), *(a.site for a in world.live_agents())]


def _partition_pair(world: World, move: Move) -> None:
    sites = _sites(world)
    one, other = sites[move.place % len(sites)], sites[move.size % len(sites)]
    if one != other:
        world.network.partition(one, other)


def _isolate(world: World, move: Move) -> None:
    world.network.isolate(_sites(world)[move.place % len(_sites(world))])


def _heal(world: World, _: Move) -> None:
    world.network.heal()
    for kubelet in world.kubernetes.kubelets:  # a node that is cut off stays so
        if not kubelet.cabled:
            for pod in kubelet.pods:
                world.network.isolate(pod.uid)


def _slow_site(world: World, move: Move) -> None:
    world.network.slowness[_sites(world)[move.place % len(_sites(world))]] = 1.0 + 25.0 * move.size


def _reset_connections(world: World, move: Move) -> None:
    world.network.reset(_sites(world)[move.place % len(_sites(world))])


# ---- nodes and pods


def _node_down(world: World, move: Move) -> None:
    kubelet = world.kubernetes.kubelets[move.place % len(world.kubernetes.kubelets)]
    what = ("power", "cable", "kubelet")[move.size % 3]
    if what == "cable":
        partition(world, kubelet)
    else:
        kubelet.go_out_of_touch(power_too=what == "power")


def _partition_one(world: World, move: Move) -> None:
    """The node of a worker is, for longer than others wait for its reports; they have all that they need.
    Then so is that of its successor, or that ends."""
    world.stop_faults()
    for _ in range(10):
        world.run(1.0)
        if peace.trains(world):
            break
    pod = _pick(_worker_pods(world), move)
    if pod and pod.kubelet:
        partition(world, pod.kubelet)
        world.run(world.setup.lost + 2.0 + move.size / 4)
        next_one = max((p for p in _worker_pods(world) if p.slot == pod.slot), key=lambda p: p.incarnation)
        if move.size % 3 == 1 and next_one.kubelet:
            partition(world, next_one.kubelet)
        elif move.size % 3 == 2:
            _kill_process(lambda _: [next_one])(world, move)
        world.run(20.0 + 2 * move.size)


def partition(world: World, kubelet: Kubelet) -> None:
    kubelet.cabled = False
    for pod in kubelet.pods:
        world.network.isolate(pod.uid)
    kubelet.go_out_of_touch(power_too=False)


def _node_back(world: World, move: Move) -> None:
    kubelet = world.kubernetes.kubelets[move.place % len(world.kubernetes.kubelets)]
    for pod in kubelet.pods:
        world.network.join(pod.uid)
    kubelet.come_back()


def _remove_node(world: World, move: Move) -> None:
    """The node goes out of touch, and its object is deleted: the pods vanish without a proof of their end."""
    _node_down(world, move)
    world.kubernetes.kubelets[move.place % len(world.kubernetes.kubelets)].disown()


def _fill_nodes(world: World, move: Move) -> None:
    slots = range(world.setup.workers)
    world.kubernetes.slots_without_capacity = (slots, (), [move.place % len(slots)], ())[move.size % 4]


def _delete_pod(world: World, move: Move) -> None:
    if pod := _pick(list(world.kubernetes.pods.values()), move):
        world.kubernetes.delete_pod(pod, None if move.size % 2 else 0.0)


def _force_delete_pod(world: World, move: Move) -> None:
    if pod := _pick(list(world.kubernetes.pods.values()), move):
        world.kubernetes.force_delete(pod)


def _evict_pod(world: World, move: Move) -> None:
    pod = _pick(_worker_pods(world), move)
    if pod and pod.kubelet:
        pod.kubelet.evict(pod)


# ---- operator, API server, disk, people


def _kill_operator(world: World, _: Move) -> None:
    world.operator.kill()


def _start_operator(world: World, _: Move) -> None:
    world.operator.catch_up()
    world.operator.start()


def _crash_between_calls(world: World, move: Move) -> None:
    world.operator.start()
    world.operator.crash_after = move.size


def _lagging_cache(world: World, move: Move) -> None:
    world.operator.lag = 0.3 * move.size


def _slow_api(world: World, move: Move) -> None:
    world.api_slowness = 1.0 + 10.0 * move.size


def _slow_disk(world: World, move: Move) -> None:
    world.disk.slowness = 1.0 + 4.0 * move.size


def _lose_confirmations(world: World, move: Move) -> None:
    world.confirmations_lost = move.size % 2 == 0


def _damage(world: World, move: Move) -> None:
    if move.size < 8:
        world.disk.damage_newest()


def _suspend(world: World, _: Move) -> None:
    world.kubernetes.edit(suspend=True)


def _resume(world: World, _: Move) -> None:
    world.kubernetes.edit(suspend=False)


def _restart(world: World, _: Move) -> None:
    world.kubernetes.edit(restartedAt=world.kubernetes.time().isoformat())


def _delete_job(world: World, move: Move) -> None:
    if (move.place, move.size) == (MOST, MOST):
        world.kubernetes.delete_job()


_MOMENTS = {"plan": 8.0, "grant": 8.0, "stop": 8.0, "complete": 60.0, "manifest": 8.0, "write": 8.0}
"""How long to wait for each. Complete comes once."""
_STRIKES = (
    _kill_process(_coordinator_pods),
    _kill_process(_worker_pods),
    _kill_rank,
    _isolate,
    _reset_connections,
    _kill_operator,
    _delete_pod,
    _freeze_agent,
)


def _ambush(world: World, move: Move) -> None:
    """Wait for a moment that matters, let `size` // 3 more things happen, and strike."""
    moment, seconds = list(_MOMENTS.items())[move.place % len(_MOMENTS)]
    world.run_until_moment(moment, seconds)
    if move.size >= 3:
        world.run_events(move.size // 3)
    strike = _STRIKES[(move.place + move.size) % len(_STRIKES)]
    strike(world, Move("strike", world.random.randrange(MOST + 1), 2 * move.size))


MOVES: dict[str, Callable[[World, Move], Any]] = {
    "wait": _wait,
    "events": _events,
    "long_wait": _long_wait,
    "kill_rank": _kill_rank,
    "raise": _raise,
    "hang_rank": _hang_rank,
    "fail_for_ever": _fail_for_ever,
    "plant_bug": _plant_bug,
    "kill_agent": _kill_process(_worker_pods),
    "kill_coordinator": _kill_process(_coordinator_pods),
    "freeze_agent": _freeze_agent,
    "freeze_coordinator": _freeze_coordinator,
    "cut_pair": _partition_pair,
    "isolate": _isolate,
    "heal": _heal,
    "slow_site": _slow_site,
    "reset_connections": _reset_connections,
    "node_down": _node_down,
    "node_back": _node_back,
    "cut_off": _partition_one,
    "remove_node": _remove_node,
    "fill_nodes": _fill_nodes,
    "delete_pod": _delete_pod,
    "force_delete_pod": _force_delete_pod,
    "evict_pod": _evict_pod,
    "kill_operator": _kill_operator,
    "start_operator": _start_operator,
    "crash_between_calls": _crash_between_calls,
    "lagging_cache": _lagging_cache,
    "slow_api": _slow_api,
    "slow_disk": _slow_disk,
    "lose_confirmations": _lose_confirmations,
    "damage": _damage,
    "suspend": _suspend,
    "resume": _resume,
    "restart": _restart,
    "leave_in_peace": peace.leave_in_peace,
    "evict_in_peace": peace.evict_in_peace,
    "kill_beside_a_sum": _kill_beside_a_sum,
    "delete_job": _delete_job,
    "ambush": _ambush,
}
OFTEN: tuple[str, ...] = (
    ("wait",) * 8
    + ("events",) * 6
    + ("long_wait", "heal", "heal", "start_operator", "node_back", "resume")
    + ("ambush",) * 4
    + ("kill_rank",) * 3
)
"""Drawn more often: a world that only breaks shows little."""
PEACE = (
    *("wait", "events", "long_wait", "long_wait", "suspend", "resume", "restart"),
    *("leave_in_peace", "evict_in_peace"),
)
