"""Histories of the shipped code: drawn by seed, printed as one line, played again, made shorter.

seed=7,workers=2,... | wait(0,5) kill_rank(1,0)        what `show` prints and `parse` reads
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from tests.shipped import neighbour
from tests.shipped.checks import Forgotten
from tests.shipped.moves import FAULTS, OFTEN, play
from tests.shipped.site import Setup, Site
from tests.sim.moves import MOST, Move
from tests.sim.promise import Broken

from ropeteam_trainer.agent import main as agent_main
from ropeteam_trainer.contract import fence

QUICK, LONGEST = 8, 40
"""Moves. Half of all histories are quick: more worlds in the same time."""


@dataclass(frozen=True)
class History:
    setup: Setup
    moves: tuple[Move, ...]

    def show(self) -> str:
        setup = ",".join(f"{name}={value}" for name, value in asdict(self.setup).items())
        return f"{setup} | {' '.join(map(str, self.moves))}"

    @classmethod
    def parse(cls, text: str) -> History:
        setup, _, moves = text.partition("|")
        pairs = (pair.strip().split("=") for pair in setup.split(",") if pair.strip())
        numbers = {name: int(value) for name, value in pairs}
        return cls(Setup(**numbers), tuple(map(Move.parse, moves.split())))


def draw(seed: int) -> History:
    """One of all: any legal timeouts, most worlds small and a few of up to 64 workers, another run in the
    folder or none, faults one by one or as they come together."""
    random = Random(seed)
    rate = Random(f"pace of {seed}")
    lost = random.choice((2, 4, 4, 5, 8, 12, 20, 30))
    size = Random(f"size of {seed}")
    step_ms = rate.choice((700, 1500, 3000, 3000))
    workers = random.choice((1, 1, 2, 2, 3, 3, 4, 6) if random.random() < 0.97 else (8, 16))
    setup = Setup(
        seed=seed,
        workers=workers,
        processes=random.choice((1, 1, 1, 2)),
        feature_level=random.choice((3, 3, 2, 1, 0)),
        total_steps=random.choice((40, 100, 200, 400)) * 700 // step_ms,
        step_ms=step_ms,
        max_failures=random.choice((20, 20, 20, 3, 0)),
        lost=lost,
        fence=max(10, lost + random.choice((1, 5, 15, 60))),
        keep=random.choice((3, 3, 1, 2)),
        operators=random.choice((1, 1, 2)),
        spread=random.choice((0, 1)),
        evict=random.choice((20, 60)),
        self_fence=int(seed % 3 == 0),
        previous=int(seed % 3 != 0 and rate.random() < 0.3),
        neighbour=int(size.random() < 0.25),
        tick_ms=rate.choice((200, *(min(1000, 250 * lost),) * 4)),
    )
    moves: list[Move] = []
    if size.random() < 0.01:
        setup = replace(setup, workers=size.choice((32, 64)), processes=1, tick_ms=min(1000, 250 * lost))
    length = random.randint(1, random.choice((QUICK, LONGEST)))
    while len(moves) < length:
        moves += _scene(random) if random.random() < 0.3 else [_move(random, _any_of(random))]
    return History(setup, tuple(moves))


def _any_of(random: Random) -> tuple[str, ...]:
    return OFTEN if random.random() < 0.6 else FAULTS


def _move(random: Random, names: tuple[str, ...]) -> Move:
    return Move(random.choice(names), random.randint(0, MOST), random.randint(0, MOST))


def _scene(random: Random) -> list[Move]:
    """As a data centre sees it: faults come together, last for minutes, and mostly somebody ends them."""
    moves = [_move(random, ("long_wait", "wait"))]
    for _ in range(random.choice((1, 2, 2, 3))):
        moves.append(_move(random, FAULTS))
        if random.random() < 0.5:
            moves.append(_move(random, ("events", "wait", "long_wait")))
    moves.append(_move(random, ("long_wait", "minutes", "minutes")))
    if random.random() < 0.7:
        moves += [_move(random, (name,)) for name in ("heal", "node_back", "long_wait")]
    return moves


@contextmanager
def world(setup: Setup, film: bool = False) -> Iterator[Site]:
    folder = tempfile.TemporaryDirectory(prefix="ropeteam-sim-", dir=_memory())
    with folder as name, ticks(setup.tick_ms / 1000):
        if setup.neighbour:
            neighbour.move_in(Path(name))
        site = Site(setup, Path(name), film)
        try:
            yield site
        except Exception as error:
            if film:
                error.add_note(site.film.text())
            raise
        finally:
            site.end()


@contextmanager
def ticks(seconds: float) -> Iterator[None]:
    """Of agents, and what they promise with it. Most of what a calm history costs are theirs."""
    often = fence.TICK_SECONDS
    try:
        vars(agent_main)["TICK_SECONDS"] = vars(fence)["TICK_SECONDS"] = seconds
        yield
    finally:
        vars(agent_main)["TICK_SECONDS"] = vars(fence)["TICK_SECONDS"] = often


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Played:
    """Result of a world."""

    counts: Counter[str]
    fingerprint: str
    state: str
    seconds: float
    film: str = ""


def play_history(history: History, film: bool = False) -> Played:
    """After the quiet end. Raises what the checks or the system raised."""
    with world(history.setup, film) as site:
        try:
            _play(site, history.moves)
        except Forgotten:
            site.counts["status forgot a term"] += 1
        counts = site.counts + site.checks.counts + site.disk.counts
        return Played(counts, site.loop.fingerprint, site.status.state, site.loop.now, site.film.text())


def _play(site: Site, moves: tuple[Move, ...]) -> None:
    for move in moves:
        play(site, move)
        site.counts["rule steps"] += 1
        if site.over:
            break
    site.film.write("-- move", "quiet: faults stop")
    site.settle()


def fault(history: History) -> str:
    """Fault of a history. "" if there is none."""
    try:
        play_history(history)
    except Broken as error:
        return str(error).split(":")[0]
    except Exception as error:
        return type(error).__name__
    return ""


def shortest(history: History, most: int = 60) -> History:
    """The fault in fewer moves, after `most` tries at most."""
    wrong, moves = fault(history), list(history.moves)
    size, tries = max(len(moves) // 2, 1), 0
    while size and tries < most:
        start = 0
        while start < len(moves) and tries < most:
            tries += 1
            fewer = moves[:start] + moves[start + size :]
            if fault(History(history.setup, tuple(fewer))) == wrong:
                moves = fewer
            else:
                start += size
        size //= 2
    return History(history.setup, tuple(moves))
