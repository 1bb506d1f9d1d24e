"""The last checkpoint of a job is committed, and known to the operator, before its pods are released."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import CLEAN
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.coordinator.membership.commits import AWAITED_COMMIT_SECONDS


def ends(film: Timeline) -> None:
    """All ranks come to their end."""
    for slot in sorted(film.agents):
        film.exits(slot, CLEAN)


def completes(film: Timeline) -> None:
    for slot in sorted(film.agents):
        film.reports(slot, completed=film.sent_orders(slot).complete)


def writes(film: Timeline) -> None:
    """The agent of slot 0 has written the manifest of the grant that it has seen."""
    granted = film.agents[0].granted
    assert granted is not None
    film.reports(0, committed=replace(granted, digest="d"))


def waits_for_a_manifest() -> Timeline:
    """Step 100, the last, is saved and granted; its manifest is being written."""
    film = Timeline(feature_level=3).up(step=100)
    film.saves(100)
    film.reports(0, granted=film.sent_orders(0).grant.ref)
    ends(film)
    completes(film)
    return film


def test_the_last_step_is_granted_although_an_earlier_manifest_is_slow():
    film = Timeline(feature_level=3).up(step=50)
    film.saves(50)
    film.reports(0, granted=film.sent_orders(0).grant.ref)
    film.reaches(100)
    film.saves(100)
    ends(film)
    assert film.phase == "Completing"
    writes(film)
    film.applies_orders()
    film.desires(lineage=film.report.lineage)
    assert (film.phase, film.lineage[0]) == ("Complete", (100, "digest-100"))


def test_a_last_shard_that_is_reported_with_the_end_is_granted():
    film = Timeline(feature_level=3).up(step=100)
    film.saves(100, 0)
    last = replace(film.agents[0].shards[0], rank=1)
    ranks = tuple(replace(rank, phase=RankPhase.EXITED, exit=CLEAN) for rank in film.agents[1].ranks)
    film.exits(0, CLEAN)
    film.reports(1, shards=(last,), ranks=ranks, stopped=True)
    film.applies_orders()
    assert (film.phase, film.lineage) == ("Completing", [(100, "digest-100")])
    film.desires(lineage=film.report.lineage)
    assert film.phase == "Complete"


def test_pods_are_released_once_the_last_manifest_is_written_and_saved_in_status():
    film = waits_for_a_manifest()
    assert film.report.why == "all ranks are done; waiting for the manifest of step 100 to be written"
    assert not film.sent_orders(0).release
    writes(film)
    sentence = "all ranks are done; waiting for the operator to record that step 100 is committed"
    assert (film.report.why, film.sent_orders(0).release) == (sentence, False)
    film.desires()
    assert film.phase == "Completing", "it has spoken, but not of this checkpoint"
    film.desires(lineage=film.report.lineage)
    assert film.sent_orders(0).release
    assert film.sent_orders(1).release


def test_a_last_manifest_whose_agent_is_lost_is_not_waited_for():
    film = waits_for_a_manifest()
    film.falls_silent(0)
    film.later(4)
    assert film.phase == "Completing"
    film.later(2)
    assert film.phase == "Complete"


def test_a_last_manifest_whose_agent_started_anew_is_not_waited_for():
    """A restarted container holds neither the claim nor the grant."""
    film = waits_for_a_manifest()
    film.reports(0, plan=None, ranks=(), granted=None)
    assert film.phase == "Complete"


@pytest.mark.parametrize("written", [True, False])
def test_finished_pods_hold_their_gpus_for_so_long_at_most(written: bool):
    film = waits_for_a_manifest()
    if written:
        writes(film)
    film.later(AWAITED_COMMIT_SECONDS - 2)
    assert film.phase == "Completing"
    film.later(3)
    assert film.phase == "Complete"


def test_agents_that_have_not_acknowledged_are_waited_for_first():
    film = Timeline(feature_level=3).up(step=7)
    ends(film)
    assert film.report.why == "all ranks are done; waiting for every agent to acknowledge it"
