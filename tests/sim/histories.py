"""Histories: drawn by hypothesis, played in a fresh world, printed as one line that can be replayed.

seed=1,workers=2,... | wait(0,5) kill_rank(1,0)      what `show` prints and `parse` reads
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from math import lcm

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.sim.moves import MOST, MOVES, OFTEN, PEACE, Move, play
from tests.sim.promise import Broken
from tests.sim.world import Setup, World

QUICK, LONGEST = 15, 120
"""Moves. Many histories are quick: more worlds in the same time."""
FENCE_LEAST = 10
"""Seconds, as the API allows."""


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
        values = dict(pair.strip().split("=") for pair in setup.split(","))
        codec = values.pop("codec") == "True"
        numbers = {name: int(value) for name, value in values.items()}
        return cls(Setup(codec=codec, **numbers), tuple(map(Move.parse, moves.split())))


_MOVES = st.builds(
    Move,
    st.sampled_from(OFTEN + tuple(MOVES)),
    st.integers(0, MOST),
    st.integers(0, MOST),
)
_PEACE = st.builds(Move, st.sampled_from(PEACE), st.integers(0, MOST), st.integers(0, MOST))
_DRAWN = st.builds(
    Setup,
    seed=st.integers(0, 2**16),
    workers=st.integers(1, 3),
    processes=st.integers(1, 2),
    feature_level=st.sampled_from((3, 2, 0, 1)),
    codec=st.sampled_from((False, False, False, False, False, True)),
    max_failures=st.sampled_from((20, 20, 20, 3, 0)),
    total_steps=st.sampled_from((24, 60, 120)),
    servers=st.sampled_from((0, 0, 0, 1, 2)),
    lost=st.sampled_from((4, 4, 4, 2, 9, 20)),
    fence=st.sampled_from((11, 11, 1, 30)),
    self_fence=st.sampled_from((0, 0, 1)),
    exact=st.sampled_from((0, 0, 1)),
    mates=st.sampled_from((1, 1, 2, 2, 3)),
    follow=st.sampled_from((0, 1)),
    elastic=st.sampled_from((0, 1, 2)),
)


def _legal(drawn: Setup) -> Setup:
    """Servers and replicas save. `fence` was drawn as what it has more than `lost`."""
    exact = 0 if drawn.servers else drawn.exact
    feature_level = 3 if drawn.servers or exact else drawn.feature_level
    fence = max(FENCE_LEAST, drawn.lost + drawn.fence)
    legal = replace(drawn, exact=exact, feature_level=feature_level, fence=fence)
    if not exact:
        return replace(legal, mates=1, follow=0, elastic=0)
    whole = _of_whole_replicas(legal)
    return replace(whole, elastic=min(whole.elastic, whole.workers))


def _of_whole_replicas(drawn: Setup) -> Setup:
    """Of two or three, if they are of several ranks: in one pod, in several, or in parts of them."""
    if drawn.mates == 1:
        return drawn
    workers = lcm(drawn.mates, drawn.processes) // drawn.processes
    while workers * drawn.processes < min(6, max(2, drawn.workers) * drawn.mates):
        workers += lcm(drawn.mates, drawn.processes) // drawn.processes
    return replace(drawn, workers=workers)


_SETUPS = _DRAWN.map(_legal)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Up to 120 moves: enough for a fault during the recovery from a fault during a recovery. In some only
    people do something: then nothing may be lost at all."""
    kind, most = draw(
        st.sampled_from(((_MOVES, LONGEST), (_MOVES, LONGEST), (_MOVES, QUICK), (_PEACE, QUICK)))
    )
    length = draw(st.integers(1, most))
    return History(draw(_SETUPS), tuple(draw(kind) for _ in range(length)))


def play_history(history: History, film: bool = False) -> World:
    """The world after its quiet end. Raises what the checks or the system raised; the film is its note."""
    world = World(history.setup, film)
    try:
        for move in history.moves:
            play(world, move)
            world.checks.counts["rule steps"] += 1
            if world.ended:
                break
        world.film.write("-- move", "quiet: faults stop")
        world.settle()
    except Exception as error:
        if film:
            error.add_note(f"{world.film.text()}\nhistory: {history.show()}")
        raise
    return world


def fault(history: History) -> str:
    """The fault of this history: the promise that is broken, or the exception. "" if nothing is."""
    try:
        play_history(history)
    except Broken as error:
        return str(error).split(":")[0]
    except Exception as error:
        return type(error).__name__
    return ""


def shortest(history: History) -> History:
    """The fault in fewer moves: leave out halves, quarters, ... single moves while it is still
    there.
    """
    wrong, moves = fault(history), list(history.moves)
    size = max(len(moves) // 2, 1)
    while size:
        start = 0
        while start < len(moves):
            fewer = moves[:start] + moves[start + size :]
            if fault(History(history.setup, tuple(fewer))) == wrong:
                moves = fewer
            else:
                start += size
        size //= 2
    return History(history.setup, tuple(moves))


@dataclass
class Campaign:
    """Many histories from one seed."""

    number: int
    histories: int
    counts: Counter[str] = field(default_factory=Counter)
    """Rule steps, histories, how jobs ended, and what the checks counted."""
    failed: History | None = None

    def run(self, shrink: bool = True) -> None:
        """Raises at the first history that goes wrong, after making it short; with its film strip as a note.

        Hypothesis draws; its own shrinker is not used: leaving out moves is all it takes, and far faster.
        """
        try:
            self._all()
        except Exception:
            if self.failed is None:
                raise
        if self.failed is not None:
            play_history(shortest(self.failed) if shrink else self.failed, film=True)

    def _all(self) -> None:
        @seed(self.number)
        @settings(
            max_examples=self.histories,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(histories())
        def keeps_every_promise(history: History) -> None:
            self.failed = history
            self._count(play_history(history))
            self.failed = None

        keeps_every_promise()

    def _count(self, world: World) -> None:
        self.counts["histories"] += 1
        job = world.kubernetes.job
        self.counts["ended " + (job.status.state if job.exists else "deleted")] += 1
        self.counts["simulated seconds"] += round(world.clock.now)
        self.counts += world.checks.counts
