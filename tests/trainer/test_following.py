"""New ranks that follow the others before they join them.

Each test compares every step of every rank with one replica that was never disturbed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from lab.ranks.recovery import RecoveringJob, Step
from tests.trainer.losses import EXCHANGE, FOLLOWING, STEP, WORLD, History
from tests.trainer.recovering import check, lose_the_sender, one_replica, through

from ropeteam_trainer.contract.local import Beat, ToRank

SEEDS = range(int(os.environ.get("ROPETEAM_RECOVERY_SEEDS", "2")))
"""Of random histories. A campaign: ROPETEAM_RECOVERY_SEEDS=200."""
SHARD = {"shard": 2}
HAS_STATE = f"{STEP}.join 1 SIGSTOP"
"""Stops a new rank before the others know that it has the state."""


def following_job(path: Path, ranks: int = 3, **more: object) -> RecoveringJob:
    return RecoveringJob(path, ranks, catch_up="Follow", **more)  # type: ignore[arg-type]


def lose_and_replace(job: RecoveringJob, faults: Mapping[int, str] | None = None) -> None:
    job.start()
    job.make_steps(2)
    job.lose(1)
    job.make_steps(2)
    job.replace(faults)


def test_a_new_rank_makes_the_steps_of_the_others_until_it_has_caught_up(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    with following_job(tmp_path) as job:
        lose_and_replace(job)
        job.join()
        joined_at = job.permitted
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2
    first = steps[1][2]
    assert first > 5
    assert joined_at > first + 1, "it has made steps of the others"
    heartbeat = job.agent.heartbeat(1)
    assert isinstance(heartbeat, Beat)
    assert heartbeat.steps_here < len(steps[1]) - 2, "those do not count as its own"


@pytest.mark.parametrize(
    "fault",
    [
        f"{FOLLOWING}:Newcomer.received 3",
        f"{STEP}._follow 1",
        f"{EXCHANGE}:Exchange.report_progress 2",
        f"{STEP}.end_following 1",
        f"{WORLD}._form_group 1",
    ],
    ids=["receives the state", "begins a step", "ends a step", "may be a member", "forms the group"],
)
def test_a_new_rank_that_is_lost_while_it_follows_is_replaced(
    fault: str, tmp_path: Path, undisturbed: list[Step]
) -> None:
    with following_job(tmp_path) as job:
        lose_and_replace(job, {1: f"{fault} SIGKILL"})
        job.step_until(job.dead)
        assert job.dead() == {1}
        job.lose(1)
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2


@pytest.mark.parametrize("call", [2, 3])
def test_the_rank_that_is_followed_is_lost(call: int, tmp_path: Path, undisturbed: list[Step]) -> None:
    """At its second call it sends the first sums after its state."""
    with following_job(tmp_path) as job:
        lose_the_sender(job, f"{EXCHANGE}:Exchange.lead {call}")
        steps = check(job.finish(), undisturbed, job)
    assert steps[2] == through(job)


def test_another_rank_is_lost_while_a_new_one_follows(tmp_path: Path, undisturbed: list[Step]) -> None:
    """The new rank is replaced with it."""
    with following_job(tmp_path) as job:
        lose_and_replace(job, {1: HAS_STATE})
        job.step_until(lambda: job.group.is_stopped(1))
        job.lose(2)
        assert job.lost == {1, 2}
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    assert steps[0] == through(job)


def test_a_rank_that_follows_when_the_training_ends_makes_the_last_steps_too(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    with following_job(tmp_path) as job:
        lose_and_replace(job, {1: HAS_STATE})
        job.step_until(lambda: job.group.is_stopped(1))
        last = job.permitted + 2
        job.permit(last, last)
        job.agent.wait(lambda: min(map(job.steps_done, (0, 2))) == last)
        assert not job.can_continue(1)
        job.group.resume_one(1)
        check(job.group.wait(), undisturbed, job)
        assert not job.can_continue(1), "it has not joined them"


def test_one_that_was_far_behind_is_replaced(tmp_path: Path, undisturbed: list[Step]) -> None:
    """The next one begins where it is itself."""
    with following_job(tmp_path) as job:
        lose_and_replace(job, {1: HAS_STATE})
        job.step_until(lambda: job.group.is_stopped(1))
        job.permit(job.permitted + 12)
        job.agent.wait(lambda: min(map(job.steps_done, (0, 2))) == job.permitted)
        job.lose(1)
        job.recover(6)
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2


def test_one_that_follows_stops_with_the_others(tmp_path: Path) -> None:
    """As it has not joined them, it saves nothing."""
    with following_job(tmp_path) as job:
        lose_and_replace(job, {1: HAS_STATE})
        job.step_until(lambda: job.group.is_stopped(1))
        stop_at = job.permitted + 2
        job.permit(stop_at)
        for rank in range(3):
            live = job.live if rank != 1 else None
            job.agent.send(ToRank(pause=True, stop_at=stop_at, live_world=live), [rank])
        job.agent.wait(lambda: all(job.agent.received(rank, "drained") == [stop_at] for rank in (0, 2)))
        job.group.resume_one(1)
        job.agent.wait(lambda: job.agent.received(1, "drained") == [stop_at])
        assert not job.can_continue(1)


def test_others_save_while_a_new_rank_follows_and_all_save_once_it_has_joined(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    with following_job(tmp_path, every_steps=1) as job:
        lose_and_replace(job, {1: HAS_STATE})
        job.step_until(lambda: job.group.is_stopped(1))
        job.commit_alone(4, 0)
        job.group.resume_one(1)
        job.join()
        check(job.finish(), undisturbed, job)
        job.agent.commit(job.permitted)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_of_losses_changes_a_bit(seed: int, tmp_path: Path, undisturbed: list[Step]) -> None:
    with following_job(tmp_path, 2 + seed % 3, every_steps=3) as job:
        history = History(job, seed, may_follow=True)
        history.play(rounds=3)
        check(job.finish(), undisturbed, job)
    assert history.losses >= 3


@pytest.mark.parametrize("seed", SEEDS[::2])
def test_mates_follow_as_one(seed: int, tmp_path: Path) -> None:
    with following_job(tmp_path, 4 + 2 * (seed % 2), inner=SHARD) as job:
        history = History(job, seed, may_follow=True)
        history.play(rounds=2, model="statistics")
        ended = job.finish()
    check(ended, one_replica(tmp_path, SHARD, "statistics", job.permitted), job)
    assert history.losses >= 2
