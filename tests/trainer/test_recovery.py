"""Recovery in the step: ranks under sync Exact that are lost, and replaced while the others train.

Each test compares digest and loss of every step that any rank has made with those of one process, which was
never disturbed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Sequence, Set
from pathlib import Path

import pytest
from lab.ranks.processes import Ended, RankGroup
from lab.ranks.recovery import RecoveringJob, Step, lines_of

STEPS = 270
"""More than any history makes, also on a busy machine: it steps until all new ranks have joined."""
STEP = "ropeteam_trainer.strategies.exact.step:ExactStep"
EXCHANGE = "ropeteam_trainer.strategies.exact.exchange"
SUMS = "ropeteam_trainer.strategies.exact.sums:WorldSums"
WORLD = "ropeteam_trainer.rank.world:World"
SEEDS = range(int(os.environ.get("ROPETEAM_RECOVERY_SEEDS", "2")))
"""Of random histories. A campaign: ROPETEAM_RECOVERY_SEEDS=200."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """Steps of one process."""
    fields = json.dumps({"sync": {"type": "Exact"}, "batch": {"micro_batches": 6}})
    with RankGroup(tmp_path_factory.mktemp("alone"), 1) as group:
        ended = group.start("exact.py", fields, "everything", str(STEPS)).wait()
    assert not any(ended.codes), ended.output
    lines = lines_of(ended.output[0])
    assert len({line.digest for line in lines}) == len(lines) == STEPS, "each step changes the weights"
    return lines


def check(ended: Ended, undisturbed: list[Step], job: RecoveringJob) -> list[list[int]]:
    """All ranks have ended well after the last step, and no step had other bits. Returns the numbers of
    steps, by rank."""
    assert not any(ended.codes), ended.output
    lines = [*map(lines_of, ended.output)]
    for line in itertools.chain(*lines):
        assert line == undisturbed[line.step - 1]
    steps = [[line.step for line in each] for each in lines]
    for each in steps:
        assert each[-1] == job.permitted
        assert each == sorted({*each}), "no step was made twice"
    return steps


def lose_rank_1_in_step_4(job: RecoveringJob, order: str) -> None:
    """Start the script with this ORDER, and lose a rank in a micro-batch."""
    job.start(order, faults={1: f"{STEP}._run_leaf 8 SIGKILL"})
    job.permit(4)
    job.await_faults(1)
    job.lose(1)


def through(job: RecoveringJob) -> list[int]:
    """Steps of a rank that was not lost."""
    return [*range(1, job.permitted + 1)]


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
        job.make_steps(2)
        job.replace()
        job.join()
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
        job.make_steps(2)
        job.replace()
        job.join()
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
        job.make_steps(2)
        job.replace()
        job.join()
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
        job.make_steps(2)
        job.replace()
        job.join()
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2


@pytest.mark.parametrize(
    "fault",
    [f"{EXCHANGE}:Exchange.expect_state 1", f"{EXCHANGE}:Exchange._note_state 3", f"{WORLD}._form_group 1"],
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
        job.make_steps(2)
        job.replace()
        job.join()
        steps = check(job.finish(), undisturbed, job)
    assert [steps[0], steps[2]] == [through(job)] * 2


def test_the_rank_that_sends_the_state_is_lost(tmp_path: Path, undisturbed: list[Step]) -> None:
    """The new rank ends with it, and the only one that is left trains alone."""
    with RecoveringJob(tmp_path, 3) as job:
        job.start(faults={0: f"{EXCHANGE}:as_bytes 3 SIGKILL"})
        job.make_steps(2)
        job.lose(1)
        job.replace()
        job.step_until(lambda: 0 in job.dead())
        job.lose(0)
        assert job.lost == {0, 1}
        job.make_steps(2)
        job.replace()
        job.join()
        steps = check(job.finish(), undisturbed, job)
    assert steps[2] == through(job)


@pytest.mark.parametrize(("every_steps", "lost"), [(1, 1), (1000, 0)])
def test_a_checkpoint_after_a_join_is_that_of_all_ranks(
    every_steps: int, lost: int, tmp_path: Path, undisturbed: list[Step]
) -> None:
    """every_steps 1: one is due in the step after which the new rank joins, and is saved after the next."""
    with RecoveringJob(tmp_path, 3, every_steps=every_steps) as job:
        job.start()
        job.make_steps(2)
        job.lose(lost)
        job.make_steps(2)
        assert {*job.agent.received((lost + 1) % 3, "shard_step")} <= {1, 2}, "not all ranks are there"
        job.replace()
        job.join()
        steps = check(job.finish(4), undisturbed, job)
        joined = steps[lost][2]
        saved = [
            [*filter(lambda step: step > 2, job.agent.received(rank, "shard_step"))] for rank in range(3)
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
    if not is_replaced:
        assert ended.codes == [0, -9, 0]
        ended = Ended([0, 0], [ended.output[0], ended.output[2]])
    steps = check(ended, undisturbed, job)
    assert [steps[0], steps[-1]] == [through(job)] * 2


def test_a_script_that_computes_the_arguments_of_its_model_ends_with_the_reason(tmp_path: Path) -> None:
    """Wrong gradients would be worse."""
    with RecoveringJob(tmp_path, 3) as job:
        lose_rank_1_in_step_4(job, "computed")
        ended = job.group.wait()
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
        job.make_steps(1)
        job.replace()
        job.join()
        check(job.finish(), undisturbed, job)


def test_ranks_end_with_the_reason_if_one_that_has_joined_trains_something_else(tmp_path: Path) -> None:
    """The schedule of the new rank is that of a first step."""
    with RecoveringJob(tmp_path, 3) as job:
        lose_rank_1_in_step_4(job, "forgotten")
        job.make_steps(1)
        job.replace()
        job.permit(STEPS)
        ended = job.group.wait()
    assert [*ended.codes] == [1, 1, 1]
    for output in ended.output:
        assert "ranks have different weights in step" in output
        assert "job.restore() must be given everything that changes the weights" in output


IN_A_STEP = (
    f"{STEP}._run_leaf",
    f"{STEP}._send",
    f"{STEP}._add_numbers",
    f"{STEP}._use_sums",
    f"{SUMS}._add",
    f"{SUMS}._finish",
    f"{SUMS}._note_sent",
)
WHILE_JOINING = (
    f"{EXCHANGE}:Exchange.expect_state",
    f"{EXCHANGE}:Exchange._note_state",
    f"{EXCHANGE}:as_bytes",
    f"{STEP}.join",
    f"{WORLD}._all_are_here",
    f"{WORLD}._form_group",
)


class History:
    """Random losses at random moments, of ranks that train and of ranks that join."""

    def __init__(self, job: RecoveringJob, seed: int) -> None:
        self._job, self._random = job, random.Random(seed)
        self._faulty: set[int] = set()
        """Ranks that will kill themselves. One of the others survives each loss."""
        self.losses = 0

    def play(self, rounds: int) -> None:
        job, count = self._job, self._job.ranks
        some = {*self._random.sample(range(count), count // 2)}
        job.start(faults=self._faults(some, IN_A_STEP, range(7, 19)))
        job.make_steps(1)  # begins with collectives of all
        for number in range(rounds):
            self._kill_some()
            job.make_steps(self._random.choice([0, 1, 2]))
            is_last = number == rounds - 1
            job.replace({} if is_last else self._faults(job.lost, (*IN_A_STEP, *WHILE_JOINING), range(1, 9)))
            self._join()

    def _faults(self, ranks: Set[int], places: Sequence[str], calls: Sequence[int]) -> dict[int, str]:
        """A fault for about half of these ranks."""
        chosen = {rank for rank in sorted(ranks) if self._random.random() < 0.6}
        self._faulty |= chosen
        return {
            rank: f"{self._random.choice(places)} {self._random.choice(calls)} SIGKILL"
            for rank in sorted(chosen)
        }

    def _kill_some(self) -> None:
        """Kill at least one rank, and all that have a fault which has not come yet, at a random moment."""
        job = self._job
        sound = sorted({*job.living()} - self._faulty)
        more = self._random.sample(sound, self._random.randint(not self._faulty, len(sound) - 1))
        job.permit(job.permitted + 6)
        time.sleep(self._random.uniform(0, 0.3))
        self._lose({*self._faulty, *more})

    def _join(self) -> None:
        """Step until all new ranks have joined. Those that have killed themselves are replaced, by ranks
        without a fault."""
        job = self._job
        while not all(map(job.can_continue, job.living())):
            job.step_until(lambda: job.dead() or all(map(job.can_continue, job.living())))
            if dead := job.dead():
                self._lose(dead)
                job.replace()

    def _lose(self, ranks: set[int]) -> None:
        for rank in ranks:
            self._job.group.kill_one(rank)
        self._job.lose(*ranks)
        self._faulty -= self._job.lost
        self.losses += len(self._job.lost)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_of_losses_changes_a_bit(seed: int, tmp_path: Path, undisturbed: list[Step]) -> None:
    with RecoveringJob(tmp_path, 2 + seed % 3, every_steps=3) as job:
        history = History(job, seed)
        history.play(rounds=3)
        check(job.finish(), undisturbed, job)
    assert history.losses >= 3
