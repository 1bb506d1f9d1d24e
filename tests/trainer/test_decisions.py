"""Mates of one replica decide the same, whatever each of them has seen. They are threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.strategies.exact.decisions import Decisions
from ropeteam_trainer.strategies.exact.members import Arrival, Members
from ropeteam_trainer.strategies.exact.positions import Position
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

T = TypeVar("T")
LEAVES = 6
NEXT, AFTER_NEXT = (Members(number, frozenset({0})) for number in (1, (1 << 64) - 1))


class Threads(Mates):
    """Two mates in one process."""

    def __init__(self) -> None:
        super().__init__(range(2))
        object.__setattr__(self, "_given", list[Sequence[int]]())
        object.__setattr__(self, "_barrier", threading.Barrier(2))

    _given: list[Sequence[int]]
    _barrier: threading.Barrier

    def highest(self, values: Sequence[int]) -> list[int]:
        self._given.append(values)
        self._barrier.wait(10)
        found = [max(both) for both in zip(*self._given, strict=True)]
        if self._barrier.wait(10) == 0:
            self._given.clear()
        self._barrier.wait(10)
        return found


class Lines:
    """The agent's lines to one mate."""

    def __init__(self, *members: Members) -> None:
        self._lines = [*members]

    def after(self) -> Members | None:
        return self._lines.pop(0)

    def have_joined(self, number: int) -> None:
        raise AssertionError(f"no new replica, but {number}")


def both(run: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(run, range(2))]


def pair(*worlds: int) -> list[Decisions]:
    """Two mates, to each of which the new replicas of a world are connected; 0: none are."""
    mates = Threads()
    found = [Decisions(LEAVES, mates) for _ in range(2)]
    for decisions, n in zip(found, worlds, strict=True):
        if n:
            world_id = WorldId(1, 0, n)
            decisions.admission.arrival = Arrival(LiveWorld(world_id, "", 0, (2, 3), world_id), {})
        decisions.admission.begin_exchange()
    return found


def complete(found: list[Decisions], missing: int | None = None, late: int | None = None) -> list[bool]:
    """The exchange of each mate with the other replicas, which have voted as it has."""

    def run(mate: int) -> bool:
        votes = [LEAVES * vote for vote in found[mate].admission.votes]
        return found[mate].is_complete(None if mate == missing else [*votes, float(mate == late)])

    return both(run)


@pytest.mark.parametrize("missing", [0, 1])
def test_none_uses_sums_that_a_mate_missing(missing: int) -> None:
    found = pair(2, 2)
    assert complete(found, missing=missing) == [False, False]
    assert [each.admission.due for each in found] == [None, None]
    assert complete(found) == [True, True]


@pytest.mark.parametrize(("late", "saves"), [(None, False), (0, True), (1, True)])
def test_all_save_if_a_rank_demands_it_in_one_part(late: int | None, saves: bool) -> None:
    found = pair(0, 0)
    assert complete(found, late=late) == [True, True]
    assert [each.some_rank_is_late for each in found] == [saves, saves]


@pytest.mark.parametrize(
    ("worlds", "are_due"),
    [((0, 0), False), ((2, 0), False), ((0, 2), False), ((2, 3), False), ((2, 2), True)],
)
def test_new_replicas_are_due_if_those_of_all_mates_are(worlds: tuple[int, int], are_due: bool) -> None:
    found = pair(*worlds)
    assert complete(found) == [True, True]
    assert [each.admission.due is not None for each in found] == [are_due, are_due]


@pytest.mark.parametrize("one", [Lines(NEXT, AFTER_NEXT), Lines(AFTER_NEXT)])
@pytest.mark.parametrize("other", [Lines(NEXT, AFTER_NEXT), Lines(AFTER_NEXT)])
def test_mates_continue_with_the_same_members(one: Lines, other: Lines) -> None:
    one, other = Lines(*one._lines), Lines(*other._lines)
    found = pair(0, 0)
    first, second = both(lambda mate: found[mate].next_members((one, other)[mate]))
    assert first == second
    assert (first == NEXT) == (bool(one._lines) and bool(other._lines)), "the newest that any of them knows"


def test_without_a_line_there_are_no_next_members() -> None:
    class NoLine(Lines):
        def after(self) -> None:
            return None

    assert Decisions(LEAVES, Mates()).next_members(NoLine()) is None


def positions(*replicas: int) -> dict[int, Position]:
    return {replica: Position(3, ()) for replica in replicas}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [((0, 2), (0, 2), True), ((0, 2), (0,), False), ((0, 2), None, False), (None, None, False)],
)
def test_mates_compute_again_with_the_same_members_only(
    one: tuple[int, ...] | None, other: tuple[int, ...] | None, is_same: bool
) -> None:
    """None: that mate finds out that one of them is lost."""
    found, members = pair(0, 0), (one, other)

    def regroup(mate: int) -> dict[int, Position]:
        if (mine := members[mate]) is None:
            raise ReplicaLost("replica 2 is lost")
        return positions(*mine)

    def regrouped(mate: int) -> bool:
        try:
            return found[mate].regrouped(lambda: regroup(mate)) == regroup(mate)
        except ReplicaLost:
            return False

    assert both(regrouped) == [is_same, is_same]
