"""The index equals a count over all agents, and pods of several ranks are counted rank by rank."""

from __future__ import annotations

from dataclasses import replace

from lab.coordinator.reports import CLEAN, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause, ProcessExit
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.state import slotfacts, slotindex
from ropeteam_trainer.coordinator.membership.state.events import Pod

ABORTED = ProcessExit(None, 6, reached_end=True)


def ends(film: Timeline, slot: int, *exits: ProcessExit | None) -> None:
    """Ranks of this slot end so; None: it lives on."""
    ranks = film.agents[slot].ranks
    pairs = zip(ranks, exits, strict=True)
    gone = (replace(rank, phase=RankPhase.EXITED, exit=how) if how else rank for rank, how in pairs)
    film.reports(slot, ranks=tuple(gone))


def test_of_a_pod_with_a_failed_rank_only_that_rank_is_the_cause():
    film = Timeline(processes=3).up(step=3)
    ends(film, 1, None, ABORTED, raised())
    assert (film.incident.cause, film.incident.rank) == (Cause.ERROR, 5)


def test_the_index_of_facts_equals_one_of_all_slots():
    film = Timeline(processes=2).up(step=3)
    ends(film, 0, CLEAN, ABORTED)
    film.falls_silent(1)
    film.later(6)
    state = film.state
    blank = replace(state, facts=slotfacts.NOBODY, saved={})
    expected = slotindex.refresh_facts(None, blank, state.all_slots, film.now)
    assert (expected.facts, expected.saved) == (state.facts, state.saved)


def test_a_lease_of_a_foreign_or_lost_pod_is_not_enough():
    film = Timeline().up(step=3)
    assert slotindex.lease_is_enough(film.state, Pod(1, 1, "pod-1-1"))
    assert not slotindex.lease_is_enough(film.state, Pod(1, 1, "stranger"))
    before = film.state
    film.event(membership.LeasesRenewed({Pod(1, 1, "stranger"): film.now}))
    assert film.state.agents == before.agents
    film.falls_silent(1)
    film.later(6)
    assert not slotindex.lease_is_enough(film.state, Pod(1, 1, "pod-1-1"))
