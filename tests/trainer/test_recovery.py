"""Recovery in the step: ranks under sync Exact that are lost, and replaced while the others train.

Each test compares digest and loss of every step that any rank has made with those of one process, which was
never disturbed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lab.ranks.recovery import RecoveringJob, Step, lines_of
from tests.trainer.losses import EXCHANGE, FOLLOWING, STEP, SUMS, WORLD, History
from tests.trainer.recovering import STEPS, check, lose_the_sender, through

SEEDS = range(int(os.environ.get("ROPETEAM_RECOVERY_SEEDS", "2")))
"""Of random histories. A campaign: ROPETEAM_RECOVERY_SEEDS=200."""


def lose_rank_1_in_step_4(job: RecoveringJob, order: str) -> None:
    """Start the script with this ORDER, and lose a rank in a micro-batch."""
    job.start(order, faults={1: f"{STEP}._run_leaf 8 SIGKILL"})
    job.permit(4)
    job.await_faults(1)
    job.lose(1)


@pytest.mark.parametrize(
    ("lost", "fault"),
    [
        (1, f"{STEP}._run_leaf 8 SIGKILL"),
        (2, f"{STEP}._add_numbers 4 SIGKILL"),
        (2, f"{SUMS}._note_sent 15 SIGKILL"),
        (0, f"{STEP}._use_sums 4 SIGKILL"),
    ],
    ids=["in a micro-batch", "gradients sent", "sum sent to one", "leading rank, all sums sent"],
)
def test_the_others_finish_the_step_of_a_killed_rank_and_a_new_one_joins(
    lost: int, fault: str, tmp_path: Path, undisturbed: list[Step]
) -> None:
    with RecoveringJob(tmp_path, 3) as job:
        job.start(faults={lost: fault})
        job.permit(4)
        job.await_faults(lost)
        job.lose(lost)
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    before, others = steps.pop(lost), steps
    assert others == [through(job)] * 2
    assert before[:3] == [1, 2, 3]
    assert before[3] > 6, "it came when the others had made two steps without it"


def test_a_frozen_rank_is_left_behind_and_does_no_harm_when_it_wakes(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    with RecoveringJob(tmp_path, 3) as job:
        job.start(faults={2: f"{STEP}._add_numbers 4 SIGSTOP"})
        job.permit(4)
        job.agent.wait(lambda: job.group.is_stopped(2))
        assert [*map(job.steps_done, range(3))] == [3, 3, 3], "the others wait for it"
        job.lose(2, killed=False)
        job.make_steps(2)
        job.group.resume_one(2)
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    assert steps[:2] == [through(job)] * 2
    assert steps[2][:3] == [1, 2, 3]
    assert steps[2][3] > 8


@pytest.mark.parametrize("at_once", [True, False])
def test_two_of_four_are_lost_in_one_step(at_once: bool, tmp_path: Path, undisturbed: list[Step]) -> None:
    second = "_add_numbers 4" if at_once else "_has_sums_of_another 1"
    with RecoveringJob(tmp_path, 4) as job:
        job.start(faults={1: f"{STEP}._run_leaf 8 SIGKILL", 3: f"{STEP}.{second} SIGKILL"})
        job.permit(4)
        if at_once:
            job.await_faults(1, 3)
            job.lose(1, 3)
        else:
            job.await_faults(1)
            job.lose(1)
            job.await_faults(3)
            job.lose(3)
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2
    assert [steps[1][3] > 6, steps[3][3] > 6] == [True, True]


def test_after_an_earlier_loss_one_rank_alone_has_the_sum_of_the_lost_one(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """The others are sent that sum, and take micro-batches of the next step that the one has not begun: not
    those of later steps."""
    with RecoveringJob(tmp_path, 4) as job:
        job.start(faults={1: f"{SUMS}._note_sent 19 SIGKILL"})
        job.make_steps(2)
        job.lose(3)
        job.permit(5)
        job.await_faults(1)
        assert lines_of((job.group.path / "output.1").read_text())[-1].step == 3
        job.lose(1)
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2


@pytest.mark.parametrize(
    "fault",
    [f"{EXCHANGE}:Exchange.expect_state 1", f"{FOLLOWING}:Newcomer.received 3", f"{WORLD}._form_group 1"],
    ids=["before it connects", "while it receives the state", "while the group forms"],
)
def test_a_new_rank_that_is_lost_while_it_joins_is_replaced(
    fault: str, tmp_path: Path, undisturbed: list[Step]
) -> None:
    with RecoveringJob(tmp_path, 3) as job:
        job.start()
        job.make_steps(2)
        job.lose(1)
        job.replace(faults={1: f"{fault} SIGKILL"})
        job.step_until(job.dead)
        assert job.dead() == {1}
        job.lose(1)
        job.recover()
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2


def test_the_rank_that_sends_the_state_is_lost(tmp_path: Path, undisturbed: list[Step]) -> None:
    with RecoveringJob(tmp_path, 3) as job:
        lose_the_sender(job, f"{EXCHANGE}:as_bytes 3")
        steps = check(job.finish(), undisturbed, job)
    assert steps[2] == through(job)


def test_a_script_that_computes_the_arguments_of_its_model_ends_with_the_reason(tmp_path: Path) -> None:
    """Wrong gradients would be worse. The coordinator knows, and does not let them continue."""
    with RecoveringJob(tmp_path, 3) as job:
        lose_rank_1_in_step_4(job, "computed")
        ended = job.group.wait()
        assert [job.agent.received(rank, "regroups") for rank in range(3)] == [[True, False]] * 3
    assert "if a rank is lost, all are restarted from the newest checkpoint, because" in ended.output[0]
    for rank, micro_batch in ((0, 2), (2, 3)):
        assert ended.codes[rank] == 1
        assert [line.step for line in lines_of(ended.output[rank])] == [1, 2, 3]
        assert (
            f"CannotTakeOver: Connection closed by peer: a replica is lost, and this one cannot compute its "
            f"micro-batches {micro_batch}: an argument of model(), shape" in ended.output[rank]
        )


def test_a_new_rank_continues_after_the_whole_body_of_the_loop(
    tmp_path: Path, undisturbed: list[Step]
) -> None:
    """The script steps its schedule after job.report()."""
    with RecoveringJob(tmp_path, 3) as job:
        lose_rank_1_in_step_4(job, "late")
        job.recover(1)
        check(job.finish(), undisturbed, job)


def test_ranks_end_with_the_reason_if_one_that_has_joined_trains_something_else(tmp_path: Path) -> None:
    """The schedule of the new rank is that of a first step."""
    with RecoveringJob(tmp_path, 3) as job:
        lose_rank_1_in_step_4(job, "forgotten")
        job.make_steps(1)
        job.replace()
        job.permit(10 * STEPS)
        ended = job.group.wait()
    assert [*ended.codes] == [1, 1, 1]
    for output in ended.output:
        assert "ranks have different weights in step" in output
        assert "job.restore() must be given everything that changes the weights" in output


@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_of_losses_changes_a_bit(seed: int, tmp_path: Path, undisturbed: list[Step]) -> None:
    with RecoveringJob(tmp_path, 2 + seed % 3, every_steps=3) as job:
        history = History(job, seed)
        history.play(rounds=3)
        check(job.finish(), undisturbed, job)
    assert history.losses >= 3
