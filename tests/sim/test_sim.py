"""Generated histories keep every promise: those of checks.py, against what moves.py can do."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.sim.histories import Campaign, History, play_history
from tests.sim.moves import Move
from tests.sim.world import Setup, World

from ropeteam_trainer.contract.world import ProcessExit

PARTS, STEPS, HISTORIES = 4, 2000, 40
"""A sample. `make sim` plays campaigns, in continuous integration too (.ci/run)."""
FAILED_ONCE = {
    "a coordinator that boots is told the lineage from before the last status write": (
        "seed=5428,workers=1,processes=1,feature_level=2,codec=True,total_steps=24,max_failures=20,"
        "window_seconds=3600 "
        "| long_wait(11,9) lagging_cache(14,14) node_down(6,0) kill_coordinator(2,8) wait(11,10)"
    ),
    "an agent that receives the order to pause after the others, whose ranks go one step on and save": (
        "seed=1,workers=2,processes=1,feature_level=3,codec=True,total_steps=120,max_failures=3,"
        "window_seconds=3600 | long_wait(0,9) leave_in_peace(1,15)"
    ),
    "one that saves for all by the name of a world whose ranks are not here yet": (
        "seed=9023,workers=2,processes=2,feature_level=3,codec=False,total_steps=60,max_failures=20,"
        "window_seconds=3600,servers=0,lost=4,fence=30,exact=1 "
        "| delete_pod(2,1) evict_in_peace(8,7) start_operator(1,15) hang_rank(7,10) cut_off(11,12)"
    ),
    "a worker that hangs while it waits for parameter servers": (
        "seed=206,workers=2,processes=1,feature_level=3,codec=True,total_steps=60,max_failures=20,window_seconds=3600,"
        "servers=2 | ambush(14,14) freeze_agent(4,11) wait(1,11) hang_rank(2,9)"
    ),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_keeps_every_promise(part: int) -> None:
    total, number = Counter[str](), 100 * part
    while total["rule steps"] < STEPS:
        campaign = Campaign(number, HISTORIES)
        campaign.run()
        total, number = total + campaign.counts, number + 1
    assert total["ended Complete"] > total["histories"] // 4, "most jobs survive what happens to them"
    assert total["worlds"] > total["histories"], "the faults were felt"


@pytest.mark.parametrize("history", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_histories_that_failed_once_keep_every_promise(history: str) -> None:
    play_history(History.parse(history))


@pytest.mark.parametrize("seed", range(5))
def test_a_coordinators_restart_disturbs_nobody(seed: int) -> None:
    """The world is adopted untouched, as often as it takes."""
    moves = f"wait(0,15) wait(0,15) {'kill_coordinator(0,0) wait(0,9) ' * 3}"
    setup = Setup(seed, workers=3, total_steps=40, max_failures=0)
    world = play_history(History(setup, tuple(map(Move.parse, moves.split()))))
    assert world.kubernetes.job.status.state == "Complete"
    assert (world.checks.counts["worlds"], len(world.coordinators)) == (1, 4)


def test_a_history_is_the_same_each_time() -> None:
    history = History.parse(
        "seed=5,workers=2,processes=1,feature_level=3,codec=True,total_steps=90,max_failures=3,"
        "window_seconds=3600 "
        "| long_wait(0,1) kill_rank(0,0) long_wait(1,1) kill_coordinator(0,0) wait(0,9) delete_pod(1,1)"
    )
    assert History.parse(history.show()) == history
    first, second = (play_history(history, film=True) for _ in range(2))
    assert first.film.text() == second.film.text()
    assert first.checks.counts["worlds"] >= 2, "the faults were felt"


@pytest.mark.parametrize("feature_level", range(4))
def test_an_undisturbed_job_completes_in_one_world(feature_level: int) -> None:
    world = play_history(History(Setup(seed=feature_level, feature_level=feature_level, codec=True), ()))
    assert world.kubernetes.job.status.state == "Complete"
    assert world.checks.counts["worlds"] == 1
    assert not world.kubernetes.job.status.incidents


def test_an_invalid_spec_is_reported_once() -> None:
    world = World(Setup())
    world.kubernetes.edit(workers=0)
    world.run(30.0)
    assert world.kubernetes.job.status.state == "Invalid"
    assert world.checks.counts["writes"] == 1


@pytest.mark.parametrize("seconds", [6.0, 45.0])
def test_a_volume_that_is_away_while_a_world_restores_ends_no_job(seconds: float) -> None:
    """45 s: longer than ranks wait, so that worlds end by it, uncharged. Seed 3: no store dies by chance."""
    world = World(Setup(seed=3, workers=2, feature_level=3, total_steps=300, max_failures=1))
    world.run(40.0)
    world.disk.away = True
    world.clock.after(seconds, lambda: setattr(world.disk, "away", False))
    world.live_ranks()[0].die(ProcessExit(None, 9))
    world.run(400.0)
    assert world.disk.missed > 0
    assert world.kubernetes.job.status.state == "Complete"
    causes = [each.cause for each in world.kubernetes.job.status.incidents]
    assert ("StorageUnavailable" in causes) == (seconds > 20)
