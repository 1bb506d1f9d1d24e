"""Checkpoints of a job under sync Exact whose ranks are lost and replaced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from lab.ranks.recovery import RecoveringJob, Step
from tests.trainer.recovering import check, check_others, through

from ropeteam_trainer.contract.world import WorldId

STEP = "ropeteam_trainer.strategies.exact.step:ExactStep"


@pytest.mark.parametrize("lost", [1, 0])
def test_a_checkpoint_after_a_join_is_that_of_all_ranks(
    lost: int, tmp_path: Path, undisturbed: list[Step]
) -> None:
    """One is due in each step."""
    with RecoveringJob(tmp_path, 3, every_steps=1) as job:
        job.start()
        job.make_steps(2)
        job.lose(lost)
        job.recover()
        steps = check(job.finish(4), undisturbed, job)
        joined = steps[lost][2]
        saved = [
            [*filter(lambda step: step >= joined, job.agent.received(rank, "shard_step"))]
            for rank in range(3)
        ]
        assert saved[0][0] == joined
        assert saved == [saved[0]] * 3
        manifest = job.agent.commit(joined)
        worlds = {str(world) for rank in range(3) for world in job.agent.received(rank, "shard_world")[-1:]}
        assert worlds == {"1.0.2" if lost == 0 else "1.0.1"}, "the world that started the leading rank"
    with RecoveringJob(tmp_path, 2, number=9) as later:
        later.start(restore=[manifest.ref])
        later.permit(joined)
        steps = check(later.finish(3), undisturbed, later)
    assert steps == [[joined + 1, joined + 2, joined + 3]] * 2


def test_after_a_join_nothing_is_saved_that_is_not_due(tmp_path: Path, undisturbed: list[Step]) -> None:
    with RecoveringJob(tmp_path, 3, every_steps=1000) as job:
        job.start()
        job.make_steps(2)
        job.lose(1)
        job.recover()
        check(job.finish(4), undisturbed, job)
        assert [job.agent.received(rank, "shard_step") for rank in range(3)] == [[job.permitted]] * 3


def join_in_the_next_step(job: RecoveringJob, rank: int) -> None:
    """Replace the lost rank, and make a step once the new one is connected to the others."""
    job.replace()
    job.agent.wait(lambda: job.agent.heartbeat(rank).phase == "restore")
    time.sleep(1)  # threads of the others have noted it, on a busy machine too
    job.permit(job.permitted + 1)
    job.agent.wait(lambda: job.can_continue(rank))


def test_a_save_that_is_left_out_for_a_lost_rank_is_made_by_all_once_its_successor_has_joined(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """Step 3 is due, and the first without the lost rank. The new one does not know."""
    with RecoveringJob(tmp_path, 3, every_steps=3) as job:
        job.start()
        job.make_steps(2)
        job.lose(1)
        join_in_the_next_step(job, 1)
        check(job.finish(2), undisturbed, job)
        assert job.permitted == 5
        assert [job.agent.received(rank, "shard_step") for rank in range(3)] == [[4, 5]] * 3


def test_what_was_committed_is_not_saved_again_when_the_leading_rank_is_replaced(tmp_path: Path) -> None:
    """Agents name no checkpoint any more that has the name of an earlier world."""
    with RecoveringJob(tmp_path, 3, every_steps=5) as job:
        job.start()
        job.make_steps(5)
        job.agent.wait(lambda: all(job.agent.received(rank, "shard_step") for rank in range(3)))
        job.commit(5)
        job.make_steps(1)
        job.lose(0)
        join_in_the_next_step(job, 0)
        job.lose(1)
        job.make_steps(2)
        job.finish(1)
        saved = [job.agent.received(rank, "shard_step") for rank in range(3)]
        assert saved == [[5, 10], [5], [5]], "the last step"


def test_a_save_for_all_that_nobody_commits_any_more_is_made_again(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """The name of the save is that of a world before the one that has started the leading rank again."""
    with RecoveringJob(tmp_path, 3, every_steps=4) as job:
        job.start()
        job.make_steps(2)
        job.lose(0)
        job.make_steps(3)
        job.agent.wait(lambda: job.agent.received(1, "shard_step") == [5])
        join_in_the_next_step(job, 0)
        check(job.finish(2), undisturbed, job)
        saved = zip(job.agent.received(1, "shard_step"), job.agent.received(1, "shard_world"), strict=True)
        assert [(step, str(world)) for step, world in saved] == [(5, "1.0.1"), (6, "1.0.2"), (8, "1.0.2")]


def test_a_save_for_all_that_is_written_too_late_stops_nobody_and_is_made_again(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """The new leading rank has joined meanwhile, and its agent commits nothing of that name."""
    fault = "ropeteam_trainer.checkpoint.dcp:_CheckpointFolder.write_tree 1 HOLD"
    with RecoveringJob(tmp_path, 3, every_steps=10) as job:
        job.start(faults={1: fault})
        job.make_steps(8)
        job.lose(0)
        job.make_steps(3)
        join_in_the_next_step(job, 0)
        job.make_steps(1)
        assert not any(job.agent.received(rank, "shard_step") for rank in range(3))
        job.release()
        job.agent.wait(lambda: job.agent.received(1, "shard_step") == [11])
        job.make_steps(2)
        check(job.finish(2), undisturbed, job)
        saved = [job.agent.received(rank, "shard_step") for rank in range(3)]
        again = saved[0][0]
        assert again in (14, 15)
        assert saved == [[again, 17], [11, again, 17], [again, 17]]
        assert [*map(str, job.agent.received(1, "shard_world"))] == ["1.0.1", "1.0.2", "1.0.2"]


@pytest.mark.parametrize("lost", [0, 2])
def test_while_a_rank_is_lost_the_lowest_of_the_others_saves_for_all(
    lost: int, tmp_path: Path, undisturbed: list[Step]
) -> None:
    """Not the first step without it: the lost rank may have made that, too, and saved it. And nothing more
    before that is committed, or the volume would fill."""
    source = 1 if lost == 0 else 0
    with RecoveringJob(tmp_path, 3, every_steps=1) as job:
        job.start()
        job.make_steps(2)
        job.lose(lost)
        job.make_steps(6)
        manifest = job.commit_alone(4, source)
        job.make_steps(3)
        job.agent.wait(lambda: job.agent.received(source, "shard_step")[-1] > 8)
        steps = {
            rank: [step for step in job.agent.received(rank, "shard_step") if step > 2] for rank in range(3)
        }
        assert steps[source][0] == 4
        assert not {5, 6, 7, 8} & {*steps[source]}, "step 4 is not committed"
        assert [steps[rank] for rank in range(3) if rank != source] == [[], []]
        assert {*job.agent.received(source, "shard_whole")} == {False, True}
        names = {file.name for file in manifest.files if file.name.startswith("rank-")}
        assert names == {f"rank-{source}.pt"}
        check_others(job.finish(), lost, undisturbed, job)
    with RecoveringJob(tmp_path, 2, number=9) as later:
        later.start(restore=[manifest.ref])
        later.permit(4)
        steps_later = check(later.finish(3), undisturbed, later)
    assert steps_later == [[5, 6, 7]] * 2


def test_a_save_that_a_lost_rank_has_broken_is_made_again(tmp_path: Path, undisturbed: list[Step]) -> None:
    """Of step 4, which is due, a part is never written. The next is due in step 8."""
    fault = "ropeteam_trainer.checkpoint.dcp:_CheckpointFolder.write_tree 1 SIGKILL"
    with RecoveringJob(tmp_path, 3, every_steps=4) as job:
        job.start(faults={1: fault})
        job.permit(4)
        job.await_faults(1)
        job.lose(1)
        job.make_steps(3)
        assert job.agent.wait(lambda: job.agent.received(0, "shard_step")) in ([6], [7])
        assert not job.agent.received(2, "shard_step")
        check_others(job.finish(1), 1, undisturbed, job)
        assert job.agent.received(0, "shard_step")[1:] == [8]


def test_if_the_rank_that_has_saved_for_all_is_lost_the_next_one_saves_too(tmp_path: Path) -> None:
    """That save may not have been completed. The next is due in step 8."""
    with RecoveringJob(tmp_path, 3, every_steps=4) as job:
        job.start()
        job.make_steps(2)
        job.lose(2)
        job.make_steps(3)
        job.agent.wait(lambda: 5 in job.agent.received(0, "shard_step"))
        job.lose(0)
        job.make_steps(2)
        assert job.agent.wait(lambda: job.agent.received(1, "shard_step")) == [7]
        job.finish()


def test_a_save_that_waits_for_ever_does_not_stop_the_one_that_saves_for_all(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """Rank 1 waits in a save for rank 0, which is stopped: no connection ends."""
    fault = f"torch.distributed.distributed_c10d:gather 5 HANG {STEP}._use_sums 4 SIGSTOP"
    with RecoveringJob(tmp_path, 3, every_steps=1) as job:
        job.start(faults={0: fault})
        job.permit(4)
        job.agent.wait(lambda: all(job.steps_done(rank) == 4 for rank in (1, 2)))
        job.lose(0, killed=False)
        job.make_steps(4)
        job.agent.wait(lambda: 6 in job.agent.received(1, "shard_step"))
        job.group.kill_one(0)
        check_others(job.finish(), 0, undisturbed, job)
        assert [step for step in job.agent.received(1, "shard_step") if step > 4] == [6, 10]


def test_the_last_step_is_saved_without_a_lost_rank(tmp_path: Path, undisturbed: list[Step]) -> None:
    with RecoveringJob(tmp_path, 3, every_steps=1000) as job:
        job.start()
        job.make_steps(2)
        job.lose(1)
        job.make_steps(2)
        check_others(job.finish(1), 1, undisturbed, job)
        assert [job.agent.received(rank, "shard_step") for rank in (0, 2)] == [[5], []]
        manifest = job.agent.commit(5, [0], 1)
    with RecoveringJob(tmp_path, 2, number=9) as later:
        later.start(restore=[manifest.ref])
        later.permit(5)
        assert check(later.finish(2), undisturbed, later) == [[6, 7]] * 2


def test_saves_have_the_name_of_the_newest_world_before_its_new_rank_has_joined(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """The agent of the new rank 0 has claimed the folder for that world."""
    with RecoveringJob(tmp_path, 3, every_steps=1) as job:
        job.start()
        job.make_steps(2)
        job.lose(0)
        job.make_steps(3)
        job.agent.wait(lambda: 4 in job.agent.received(1, "shard_step"))
        job.replace(faults={0: "ropeteam_trainer.strategies.wrap:wrap 1 HANG"})
        job.permit(9)
        job.agent.wait(lambda: all(job.steps_done(rank) == 9 for rank in (1, 2)))
        job.agent.wait(lambda: job.agent.received(1, "shard_step")[-1] > 5)
        worlds = zip(job.agent.received(1, "shard_step"), job.agent.received(1, "shard_world"), strict=True)
        names = [(str(world), step > 5) for step, world in worlds if step > 2]
        assert names == [("1.0.1", False), ("1.0.2", True)]
        job.lose(0)
        check_others(job.finish(), 0, undisturbed, job)


def test_while_another_agent_commits_for_a_missing_rank_0_saves_have_the_name_of_its_claim(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """A step that the first deputy has not committed does not stop the saves for the second one."""
    deputies = [WorldId(1, 0, 2), WorldId(1, 0, 3)]
    with RecoveringJob(tmp_path, 3, every_steps=1) as job:
        job.start()
        job.make_steps(2)
        job.lose(0, deputy=deputies[0])
        job.make_steps(3)
        manifest = job.commit_alone(4, 1)
        job.make_steps(2)
        job.agent.wait(lambda: job.agent.received(1, "shard_step")[-1] > 4)
        job.lose(deputy=deputies[1])
        job.make_steps(2)
        job.agent.wait(lambda: job.agent.received(1, "shard_world")[-1] == deputies[1])
        check_others(job.finish(), 0, undisturbed, job)
        worlds = zip(job.agent.received(1, "shard_step"), job.agent.received(1, "shard_world"), strict=True)
        assert {world for step, world in worlds if step > 2} == {*deputies}
    with RecoveringJob(tmp_path, 2, number=9) as later:
        later.start(restore=[manifest.ref])
        later.permit(4)
        assert check(later.finish(3), undisturbed, later) == [[5, 6, 7]] * 2


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_save_that_waits_for_a_lost_rank_does_not_stop_the_others(
    is_replaced: bool, tmp_path: Path, undisturbed: list[Step]
) -> None:
    """The leading rank sees that a connection has ended, and gives up. The other one waits for the leading
    rank."""
    fault = f"torch.distributed.distributed_c10d:gather 5 HANG {STEP}._use_sums 4 SIGKILL"
    with RecoveringJob(tmp_path, 3, every_steps=1) as job:
        job.start(faults={1: fault})
        job.permit(4)
        job.await_faults(1)
        job.lose(1)
        job.make_steps(2)
        if is_replaced:
            job.replace()
            job.join()
        ended = job.finish()
    if is_replaced:
        steps = check(ended, undisturbed, job)
        assert [steps[0], steps[-1]] == [through(job)] * 2
    else:
        check_others(ended, 1, undisturbed, job)
