"""Recovery in the step where replicas are several ranks: all of a replica are lost with one of them.

Each test compares digest and loss of every step with those of one replica, which was never disturbed.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from lab.ranks.processes import FakeAgent, RankGroup
from lab.ranks.recovery import RecoveringJob, fields
from tests.trainer.losses import STEP, WORLD, History
from tests.trainer.recovering import check, one_replica, through

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import WorldId

SEEDS = range(int(os.environ.get("ROPETEAM_RECOVERY_SEEDS", "2")) // 2)
"""Of random histories. A campaign: ROPETEAM_RECOVERY_SEEDS=200."""
SHARD, TENSOR, BOTH = {"shard": 2}, {"tensor": 2}, {"shard": 2, "tensor": 2}


def steps_with_a_fault(
    path: Path, ranks: int, inner: dict[str, int], model: str, fault: str
) -> list[list[int]]:
    """Steps by rank. Rank 2 kills itself in step 4; its replica is replaced when the others have made two
    more."""
    with RecoveringJob(path, ranks, inner=inner) as job:
        job.start(model=model, faults={2: f"{fault} SIGKILL"})
        job.permit(4)
        job.await_faults(2)
        job.lose(2)
        job.recover()
        ended = job.finish()
    steps = check(ended, one_replica(path, inner, model, job.permitted), job)
    others = [each for rank, each in enumerate(steps) if rank not in (2, 3)]
    assert others == [through(job)] * (ranks - 2)
    return steps


@pytest.mark.parametrize(
    ("inner", "model"), [(SHARD, "statistics"), (TENSOR, "tiny")], ids=["shard", "tensor"]
)
def test_a_replica_is_lost_with_one_of_its_ranks_and_a_new_one_joins(
    inner: dict[str, int], model: str, tmp_path: Path
) -> None:
    steps = steps_with_a_fault(tmp_path, 6, inner, model, f"{STEP}._run_leaf 8")
    for rank in (2, 3):
        assert steps[rank][:3] == [1, 2, 3]
        assert steps[rank][3] > 6, "it came when the others had made two steps without it"


def test_mates_of_which_one_has_no_sum_begin_the_step_again(tmp_path: Path) -> None:
    """Rank 2 dies before its part of the step is complete; rank 3 has sent its own, and waits for rank 2."""
    steps_with_a_fault(tmp_path, 4, SHARD, "statistics", f"{STEP}._add_numbers 4")


def test_a_new_replica_that_is_lost_while_the_group_forms_is_replaced(tmp_path: Path) -> None:
    """Meanwhile the others compute without a default group."""
    with RecoveringJob(tmp_path, 4, inner=SHARD) as job:
        job.start(model="statistics")
        job.make_steps(2)
        job.lose(0)
        job.replace(faults={1: f"{WORLD}._form_group 1 SIGKILL"})
        job.step_until(lambda: 1 in job.dead())
        job.lose(1)
        assert job.lost == {0, 1}
        job.recover()
        ended = job.finish()
    steps = check(ended, one_replica(tmp_path, SHARD, "statistics", job.permitted), job)
    assert steps[2:] == [through(job)] * 2


def test_the_mates_of_the_lowest_replica_save_for_all_and_all_save_once_a_new_one_has_joined(
    tmp_path: Path,
) -> None:
    with RecoveringJob(tmp_path, 4, inner=SHARD, every_steps=1) as job:
        job.start(model="statistics")
        job.make_steps(2)
        job.lose(1)
        job.make_steps(4)
        manifest = job.commit_alone(4, 2, 3)
        names = {file.name for file in manifest.files if file.name.startswith("rank-")}
        assert names == {"rank-2.pt", "rank-3.pt"}
        assert {*job.agent.received(3, "shard_whole")} == {False, True}
        job.replace()
        job.join()
        ended = job.finish()
        last = job.agent.commit(job.permitted)
    undisturbed = one_replica(tmp_path, SHARD, "statistics", job.permitted + 2)
    check(ended, undisturbed, job)
    for number, saved in enumerate((manifest, last), start=9):
        with RecoveringJob(tmp_path, 4, number=number, inner=SHARD) as later:
            later.start(model="statistics", restore=[saved.ref])
            later.permit(saved.step)
            steps = check(later.finish(2), undisturbed, later)
        assert steps == [[saved.step + 1, saved.step + 2]] * 4


def test_under_a_coordinator_that_knows_no_mates_a_lost_rank_ends_the_world(tmp_path: Path) -> None:
    """One of an earlier release would commit a checkpoint with a part of the model."""
    plain = fields(6, SHARD)
    checkpoint = CheckpointConfig(str(tmp_path / "saved"), 1000)
    agent = FakeAgent(tmp_path, 4, checkpoint, WorldId(1, 0, 1))
    with RankGroup(tmp_path, 4) as group:
        strategy = codec.from_plain(Strategy, plain)
        script = "exact.py", json.dumps(plain), "statistics", "2"
        ended = group.start(*script, agent=agent, strategy=strategy, replica_ranks=1).wait()
    agent.close()
    assert not any(ended.codes), ended.output
    assert [agent.received(rank, "regroups") for rank in range(4)] == [[]] * 4


@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_of_losses_changes_a_bit(seed: int, tmp_path: Path) -> None:
    inner = (SHARD, TENSOR, BOTH)[seed % 3]
    model = "statistics" if inner is SHARD else "tiny"
    with RecoveringJob(
        tmp_path, (2 + seed % 2) * math.prod(inner.values()), every_steps=3, inner=inner
    ) as job:
        history = History(job, seed)
        history.play(rounds=3, model=model)
        ended = job.finish()
    check(ended, one_replica(tmp_path, inner, model, job.permitted), job)
    assert history.losses >= 3
