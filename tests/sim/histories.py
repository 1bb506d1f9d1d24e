"""Histories: drawn by hypothesis, played in a fresh world, printed as one line that can be replayed.

    Setup(...) | wait(0,5) kill_rank(1,0) ...        what `show` prints and `parse` reads
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hypothesis import strategies as st

from tests.sim.moves import ALWAYS, MOST, MOVES, Move, play
from tests.sim.world import Setup, World

LONGEST = 70


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
        pairs = (pair.split("=") for pair in setup.strip().split(","))
        values = {name.strip(): value == "True" if value in ("True", "False") else int(value) for name, value in pairs}
        return cls(Setup(**values), tuple(map(Move.parse, moves.split())))


_MOVES = st.builds(
    Move,
    st.sampled_from(ALWAYS + tuple(MOVES)),
    st.integers(0, MOST),
    st.integers(0, MOST),
)
_SETUPS = st.builds(
    Setup,
    seed=st.integers(0, 2**16),
    workers=st.integers(1, 3),
    processes=st.integers(1, 2),
    rung=st.sampled_from((3, 2, 0, 1)),
    codec=st.sampled_from((False, False, False, False, False, True)),
    max_failures=st.sampled_from((3, 0, 20)),
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """About forty moves: enough for a fault during the recovery from a fault during a recovery."""
    length = draw(st.integers(1, LONGEST))
    return History(draw(_SETUPS), tuple(draw(_MOVES) for _ in range(length)))


def play_history(history: History, film: bool = False) -> World:
    """The world after its quiet end. Raises what the checks or the system raised, with the film strip as a note."""
    world = World(history.setup, film)
    try:
        for move in history.moves:
            play(world, move)
        world.film.tell("-- move", "quiet: faults stop")
        world.settle()
    except Exception as error:
        if film:
            error.add_note(f"history: {history.show()}\n{world.film.text()}")
            raise
        return play_history(history, film=True)
    return world
