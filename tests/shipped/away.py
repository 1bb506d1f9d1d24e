"""The operator is away for an hour at every point of a history, and pods are lost before it returns.

    for point in points(calm(7)): print(play(point))

A point: after how many moves it goes. The faults of those moves end then, so that whatever can train does.
A job that ends meanwhile waits ten minutes for the operator to know of its last checkpoint, and no longer.
Lost are every other pod, the coordinator among them in half of the cases, or all. Promised is that no job
fails, and that at feature levels 2 and 3 the world after it repeats one interval of checkpoints at most:
steps take longer here than a commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.shipped.histories import History, ticks, world
from tests.shipped.moves import FAULTS, OFTEN
from tests.shipped.moves import play as play_move
from tests.shipped.site import Setup, Site
from tests.sim.moves import MOST, Move
from tests.sim.promise import require

AWAY_SECONDS = 3600.0
_MOST_MOVES = 4
_OWN_FAULT = ("raise", "suspend", "damage")
"""The user's, or a checkpoint that is gone: they cost more than an interval by themselves."""
_CALM = tuple(name for name in FAULTS if name not in _OWN_FAULT)


@dataclass(frozen=True)
class Point:
    history: History
    moves: int
    which: int
    """Lost pods: 0 those of even places, 1 of odd ones, 2 all."""


@dataclass(frozen=True)
class Away:
    state: str
    lost: int
    """Pods."""
    repeated: int | None
    """Steps that were made again. None: nothing had stepped, or the script has its own checkpoints."""


def calm(seed: int) -> History:
    """Some end while the operator is away, some after."""
    random = Random(seed)
    lost = random.choice((15, 20, 30))
    setup = Setup(
        seed=seed,
        workers=random.choice((1, 2, 2, 3)),
        feature_level=random.choice((3, 3, 2, 1)),
        total_steps=random.choice((300, 700, 700, 700)),
        step_ms=6000,
        lost=lost,
        fence=lost + random.choice((10, 30)),
        keep=random.choice((1, 3)),
        operators=random.choice((1, 2)),
        spread=random.choice((0, 1)),
        max_failures=50,
    )
    moves = [Move("long_wait", random.randint(0, MOST), random.randint(0, MOST))]
    for _ in range(random.randint(0, _MOST_MOVES - 1)):
        name = random.choice(OFTEN if random.random() < 0.5 else _CALM)
        moves.append(Move(name, random.randint(0, MOST), random.randint(0, MOST)))
    return History(setup, tuple(moves))


def points(history: History) -> Iterator[Point]:
    for moves in range(len(history.moves) + 1):
        yield Point(history, moves, (history.setup.seed + moves) % 3)


def play(point: Point, seconds: float = AWAY_SECONDS) -> Away:
    """Raises what the checks or the system raised."""
    with world(point.history.setup) as site:
        for move in point.history.moves[: point.moves]:
            play_move(site, move)
        site.operators_away = True
        for process in site.operators:
            process.die()
        site.stop_faults()
        with ticks(2.0):  # an hour costs seconds
            site.run(seconds)
        newest, formed = site.checks.newest_step(), site.checks.worlds()
        lost = _lose(site, point.which)
        site.run(1.0)
        site.operators_away = False
        site.checks.last_is_known = newest < point.history.setup.total_steps
        site.settle(seconds)
        repeated = None
        if (
            newest
            and point.history.setup.feature_level >= 2
            and (base := site.checks.base_after(formed)) is not None
        ):
            repeated = max(newest - base, 0)
            every = point.history.setup.every
            require(repeated <= every, "at most one interval is repeated", repeated, "of", newest)
        require(site.status.state == "Complete", "no job fails by it", site.status.conditions)
        return Away(site.status.state, lost, repeated)


def _lose(site: Site, which: int) -> int:
    """End the machines; of half of them the objects are gone, too."""
    pods = [pod for pod in site.containers.values() if pod.process and pod.process.alive]
    pods = pods if which == 2 else pods[which::2]
    for number, pod in enumerate(pods):
        assert pod.process
        pod.process.die()
        if number % 2:
            site.kubernetes.remove(pod.obj)
        else:
            pod.node.exited(pod, 137)
    return len(pods)
