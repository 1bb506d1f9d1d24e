"""Faults in a world of shipped code, and time passing. As in tests/sim/moves.py a move means
something in every world, so any of them can be left out; `place` and `size` choose. A fault that fires is
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.shipped.kubernetes import stamp
from tests.shipped.nodes import Pod
from tests.shipped.outages import (
    FAULT_MOVES,
    coordinators,
    freeze,
    heal,
    node_back,
    pick,
    resume_pod,
    workers,
)
from tests.shipped.site import Site
from tests.shipped.unauthenticated import knock
from tests.sim.moves import MOST, Move

from ropeteam_trainer.contract.world import ProcessExit


def play(site: Site, move: Move) -> None:
    site.film.write("-- move", str(move))
    if MOVES[move.name](site, move) is not False:
        site.counts[f"fault {move.name}"] += 1


# ---- time


def _wait(site: Site, move: Move) -> bool:
    site.run(0.1 + 0.25 * move.size)
    return False


def _events(site: Site, move: Move) -> bool:
    site.run_events(1 + move.size * 2 + move.place)
    return False


def _long_wait(site: Site, move: Move) -> bool:
    site.run(3.0 + move.size + 2 * move.place)
    return False


def _minutes(site: Site, move: Move) -> bool:
    """As long as it takes until somebody has come, or a successor trains; no longer where all is well."""
    for _ in range(1 + move.size):
        before = site.checks.newest_step()
        site.run(15.0)
        if site.over or (site.checks.newest_step() > before and site.all_is_well()):
            break
    return False


# ---- ranks

_EXITS = [ProcessExit(None, 9), ProcessExit(None, 11), ProcessExit(3, None), ProcessExit(None, 9, oom=True)]
_EXITS += [ProcessExit(75, None), ProcessExit(0, None), ProcessExit(None, 6)]


def _kill_rank(site: Site, move: Move) -> bool:
    if rank := pick(site.live_ranks(), move):
        rank.die(_EXITS[move.size % len(_EXITS)])
    return rank is not None


def _raise(site: Site, move: Move) -> bool:
    if rank := pick(site.live_ranks(), move):
        rank.raises(f"ValueError train.py:{move.size}", f"ValueError: bad loss (train.py:{move.size})")
    return rank is not None


def _hang_rank(site: Site, move: Move) -> bool:
    if rank := pick(site.live_ranks(), move):
        rank.hung = True
    return rank is not None


# ---- processes


def _kill(which: Callable[[Site], list[Pod]]) -> Callable[[Site, Move], bool]:
    def play_it(site: Site, move: Move) -> bool:
        pod = pick(which(site), move)
        if pod and pod.process:
            pod.process.die()
            pod.node.exited(pod, 137, "OOMKilled" if move.size == 1 else "Error")
        return pod is not None

    return play_it


def _stall_agent(site: Site, move: Move) -> bool:
    """An agent's loop does not turn, its ranks live: a blocked write, a debugger, a starved core."""
    pod = pick(workers(site), move)
    if pod and pod.process:
        freeze(pod.process, 0.5 + 1.5 * move.size)
    return pod is not None


def _freeze_pod(site: Site, move: Move) -> bool:
    """The whole container."""
    pod = pick(site.live_pods(), move)
    if pod:
        pod.stopped = True
        freeze(pod.process, 1.0 + 2.5 * move.size)
        site.loop.after(1.0 + 2.5 * move.size, resume_pod, pod)
    return pod is not None


def _freeze_coordinator(site: Site, move: Move) -> bool:
    pod = pick(coordinators(site), move)
    if pod and pod.process:
        freeze(pod.process, 0.5 + 1.5 * move.size)
    return pod is not None


def _hang_coordinator(site: Site, move: Move) -> bool:
    """For good."""
    pod = pick(coordinators(site), move)
    if pod and pod.process:
        pod.process.freeze()
        site.hung.append(pod.process)
    return pod is not None


def _late_loop(site: Site, move: Move) -> bool:
    """A starved core: each callback of a process takes milliseconds, for a while."""
    processes = [each.process for each in (*workers(site), *coordinators(site)) if each.process]
    process = pick([*processes, *site.operators], move)
    if process:
        process.cost = 0.002 * (1 + move.size)
        site.loop.after(5.0 + 4.0 * move.size, setattr, process, "cost", 0.0)
    return process is not None


def _block_stdout(site: Site, move: Move) -> bool:
    """No process reads the containers' output: a writer that waits for a reader is paused."""
    pods = [*workers(site), *coordinators(site)]
    pod = pick(pods, move)
    if pod and pod.process:
        site.block_stdout(pod.process)
        site.loop.after(20.0 + 10.0 * move.size, site.read_stdout, pod.process)
    return pod is not None


def _unauthenticated_peer(site: Site, move: Move) -> bool:
    """Several, at the ports of a coordinator."""
    pod = pick(coordinators(site), move)
    if pod is None:
        return False
    for number in range(4 * (1 + move.size)):
        knock(site, pod, Random(f"{site.setup.seed} {move} {number}"))
    return True


# ---- people


def _suspend(site: Site, _: Move) -> bool:
    site.edit(suspend=True)
    return True


def _resume(site: Site, _: Move) -> bool:
    site.edit(suspend=False)
    return False


def _resize(site: Site, move: Move) -> bool:
    """As many workers as it had, or fewer, once it is suspended; that is requested first."""
    if site.status.state != "Suspended":
        return _suspend(site, move)
    site.edit(workers=1 + move.place % site.setup.workers, suspend=False)
    return True


def _restart(site: Site, _: Move) -> bool:
    site.edit(restartedAt=stamp(site.kubernetes.time()))
    return True


MOVES: dict[str, Callable[[Site, Move], bool]] = {
    "wait": _wait,
    "events": _events,
    "long_wait": _long_wait,
    "minutes": _minutes,
    "heal": heal,
    "node_back": node_back,
    "resume": _resume,
    "kill_rank": _kill_rank,
    "raise": _raise,
    "hang_rank": _hang_rank,
    "kill_agent": _kill(workers),
    "kill_coordinator": _kill(coordinators),
    "stall_agent": _stall_agent,
    "freeze_pod": _freeze_pod,
    "freeze_coordinator": _freeze_coordinator,
    "hang_coordinator": _hang_coordinator,
    "late_loop": _late_loop,
    "block_stdout": _block_stdout,
    "stranger": _unauthenticated_peer,
    **FAULT_MOVES,
    "suspend": _suspend,
    "resize": _resize,
    "restart": _restart,
}
FAULTS = tuple(MOVES)[7:]
OFTEN = (
    ("wait",) * 8
    + ("events",) * 5
    + ("long_wait",) * 4
    + ("heal",) * 4
    + ("node_back", "resume", "resume", "stranger", "stranger", "stranger")
)
assert len(MOVES) < 64 > MOST
