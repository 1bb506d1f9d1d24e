"""Generated histories keep every promise; see checks.py for the promises and moves.py for what can happen."""

from __future__ import annotations

import pytest
from tests.sim.histories import Campaign, History, play_history
from tests.sim.world import Setup

CAMPAIGNS, HISTORIES, STEPS = 4, 100, 5000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(CAMPAIGNS))
def test_every_history_keeps_every_promise(number: int) -> None:
    campaign = Campaign(number, HISTORIES)
    campaign.run()
    assert campaign.counts["rule steps"] >= STEPS, "the histories are too short to show much"
    assert campaign.counts["ended Complete"] > HISTORIES // 4, "most jobs should survive what happens to them"


def test_a_history_is_the_same_each_time() -> None:
    history = History.parse(
        "seed=5,workers=2,processes=1,rung=3,codec=True,total_steps=90,max_failures=3,window_seconds=3600 "
        "| long_wait(0,1) kill_rank(0,0) long_wait(1,1) kill_coordinator(0,0) wait(0,9) delete_pod(1,1)"
    )
    assert History.parse(history.show()) == history
    first, second = (play_history(history, film=True) for _ in range(2))
    assert first.film.text() == second.film.text()
    assert first.checks.counts["worlds"] >= 2, "the faults were felt"


@pytest.mark.parametrize("rung", range(4))
def test_an_undisturbed_job_completes_in_one_world(rung: int) -> None:
    world = play_history(History(Setup(seed=rung, rung=rung, codec=True), ()))
    assert world.kubernetes.job.status.state == "Complete"
    assert world.checks.counts["worlds"] == 1
    assert not world.kubernetes.job.status.incidents
