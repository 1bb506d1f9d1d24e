"""Ranks that wait for a hung one hang as well: the first to be seen need not be the suspect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Hang, RankPhase
from ropeteam_trainer.contract.world import Cause, ProcessExit

HUNG = ProcessExit(None, 9, hung=True, fingerprint="hang", last_lines=("its stack",))
DEAD: dict[str, Any] = {"phase": RankPhase.EXITED, "exit": HUNG}
ZERO = "rank 0 made no progress and was killed"
LOADS, WAITS = Hang("train.py:31 (load)"), Hang("train.py:40 (main)", waits=True)
NO_STACK = Hang()


def standing(film: Timeline, slot: int, step: int, hang: Hang | None, **changes: Any) -> None:
    (rank,) = film.agents[slot].ranks
    film.reports(slot, ranks=(replace(rank, step=step, steps_here=step, hang=hang, **changes),))


def film_of(*incident: tuple[int, Hang | None], **settings: Any) -> Timeline:
    """Rank 0 is killed as hung; the positions of the others have been reported before."""
    film = Timeline(workers=len(incident), **settings).up(step=3)
    for slot, (step, hang) in reversed([*enumerate(incident)]):
        standing(film, slot, step, hang, **({} if slot else DEAD))
    return film


@pytest.mark.parametrize(
    ("zero", "one", "where"),
    [
        ((12, LOADS), (11, LOADS), "after step 11, in train.py:31 (load)"),
        ((12, WAITS), (11, NO_STACK), "after step 11"),
        ((12, WAITS), (12, LOADS), "after step 12, in train.py:31 (load)"),
        ((0, WAITS), (0, LOADS), "before the first step, in train.py:31 (load)"),
    ],
)
def test_who_is_behind_or_in_no_collective_held_up_the_others(zero, one, where):
    film = film_of(zero, one)
    incident = film.incident
    assert (incident.cause, incident.slot, incident.rank, incident.node) == (Cause.HANG, 1, 1, "node-1")
    assert incident.message == f"rank 1 blocked the others ({where}): {ZERO}"
    assert incident.exit.last_lines == (), "they are of another rank"


@pytest.mark.parametrize(
    ("zero", "one", "more"),
    [
        ((11, LOADS), (12, LOADS), "; it blocked the others"),
        ((12, LOADS), (12, WAITS), "; it blocked the others"),
        ((12, LOADS), (11, None), ""),
        (
            (12, WAITS),
            (12, WAITS),
            "; the first of them is unknown: 2 ranks hang after step 12, their stacks are in the logs",
        ),
    ],
)
def test_who_was_seen_first_may_be_the_one_or_it_is_not_known(zero, one, more):
    film = film_of(zero, one)
    assert (film.incident.slot, film.incident.rank) == (0, 0)
    assert film.incident.message == ZERO + more
    assert film.incident.exit == HUNG


def test_who_held_up_the_others_stays_to_blame_when_it_has_ended():
    film = film_of((12, WAITS), (12, LOADS))
    standing(film, 1, 12, LOADS, **DEAD)
    assert film.incident.message == f"{ZERO.replace('0', '1')}; it blocked the others"


def test_parameter_servers_and_their_workers_do_not_hold_each_other_up():
    film = film_of((12, LOADS), (7, LOADS), servers=1)
    assert film.incident.message == ZERO
