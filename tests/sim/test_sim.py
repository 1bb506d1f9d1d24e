"""Generated histories keep every promise; see checks.py for the promises and moves.py for what can happen."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.sim.histories import History, histories, play_history
from tests.sim.world import Setup

SHARDS, HISTORIES, STEPS = 4, 150, 5000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_history_keeps_every_promise(shard: int) -> None:
    steps = 0

    @seed(shard)
    @settings(
        max_examples=HISTORIES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(histories())
    def keeps_every_promise(history: History) -> None:
        nonlocal steps
        play_history(history)
        steps += len(history.moves)

    keeps_every_promise()
    assert steps >= STEPS, "the histories are too short to show much"


def test_a_history_is_the_same_each_time() -> None:
    history = History.parse(
        "seed=5,workers=2,processes=1,rung=3,codec=True,total_steps=24,max_failures=3,window_seconds=3600 "
        "| wait(0,9) wait(0,9) kill_rank(0,0) wait(1,4) kill_coordinator(0,0) wait(0,9) delete_pod(1,1)"
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
