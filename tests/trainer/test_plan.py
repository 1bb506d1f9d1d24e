"""The data plan: each sample of each data epoch exactly once, whatever happens to the world."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ropeteam_trainer.data.decisions.plan import DataPlan, Deal, Position, permuted

plans = st.builds(
    DataPlan, samples=st.integers(1, 60), global_batch=st.integers(1, 25), seed=st.integers(0, 9)
)


@given(size=st.integers(1, 300), key=st.integers(0, 2**64 - 1))
def test_the_order_is_a_permutation(size: int, key: int) -> None:
    assert sorted(permuted(index, size, key) for index in range(size)) == list(range(size))


def test_the_order_never_changes_between_versions() -> None:
    """A checkpoint of an older version of anything must resume in the same order."""
    share = DataPlan(samples=1000, global_batch=6, seed=3).share(Position(2, 12), rank=0, world=1)
    assert share.ids == (445, 935, 584, 806, 241, 731)


def test_orders_of_epochs_and_seeds_differ() -> None:
    orders = {
        DataPlan(1000, 8, seed).share(Position(epoch), 0, 1).ids for seed in range(10) for epoch in range(10)
    }
    assert len(orders) == 100


def test_neighbours_are_well_spread() -> None:
    """No slice of the order prefers a part of the data: the means of tenths are all near the middle."""
    order = DataPlan(10_000, 1_000)
    for offset in range(0, 10_000, 1_000):
        ids = order.share(Position(0, offset), 0, 1).ids
        assert abs(sum(ids) / len(ids) - 5_000) < 500


@given(plan=plans, worlds=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), max_size=8))
@example(plan=DataPlan(10, 8), worlds=[(7, 1), (3, 1)])
def test_exactly_once_under_any_worlds_and_restarts(plan: DataPlan, worlds: list[tuple[int, int]]) -> None:
    """Each world takes some steps, of which the last are lost; the next resumes from the checkpoint."""
    at, used_ids = Position(), []
    for world, steps in [*worlds, (1, 10_000)]:
        here, taken = at, []
        for _ in range(steps):
            if here.epoch == 2:
                break
            ids = [i for rank in range(world) for i in plan.share(here, rank, world).ids]
            here = plan.after(here)
            taken.append((here, ids))
        saved = taken if world == 1 else taken[: len(taken) // 2]  # the rest is done again
        used_ids += [ids for _, ids in saved]
        at = saved[-1][0] if saved else at
    used = [i for ids in used_ids for i in ids]
    for epoch in range(2):
        one = used[epoch * plan.samples : (epoch + 1) * plan.samples]
        assert sorted(one) == list(range(plan.samples))
    assert len(used_ids) == plan.steps(2)


@given(plan=plans, epochs=st.integers(0, 3), done=st.integers(0, 60))
def test_the_steps_that_are_left_are_the_batches_that_come(plan: DataPlan, epochs: int, done: int) -> None:
    at, steps = Position(), 0
    while at.epoch < epochs and steps < done:
        at, steps = plan.after(at), steps + 1
    assert plan.steps_left(at, epochs) == plan.steps(epochs) - steps


@given(plan=plans, offset=st.integers(0, 59), world=st.integers(1, 9))
def test_ranks_share_a_batch_fairly_and_weights_make_the_mean_exact(
    plan: DataPlan, offset: int, world: int
) -> None:
    at = Position(0, offset % plan.samples)
    shares = [plan.share(at, rank, world) for rank in range(world)]
    sizes = [len(share.ids) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == shares[0].total == min(plan.global_batch, plan.samples - at.offset)
    whole = plan.share(at, 0, 1)
    assert tuple(i for share in shares for i in share.ids) == whole.ids
    assert all(0 <= share.filler < plan.samples for share in shares)
    mean_of_ranks = sum(s.weight * (sum(s.ids) / len(s.ids) if s.ids else 7.0) for s in shares) / world
    assert mean_of_ranks == pytest.approx(sum(whole.ids) / len(whole.ids))


@pytest.mark.parametrize(("samples", "batch", "text"), [(0, 4, "empty"), (4, 0, "global_batch")])
def test_a_plan_that_cannot_be_is_refused(samples: int, batch: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DataPlan(samples, batch)


@given(plan=plans, leaves=st.integers(1, 20), shards=st.integers(1, 3), replicas=st.integers(1, 5))
def test_micro_batches_have_the_same_samples_for_any_number_of_replicas(
    plan: DataPlan, leaves: int, shards: int, replicas: int
) -> None:
    at = Position(0, plan.samples // 2)
    batch = plan.share(at, 0, 1).ids
    dealt: dict[int, list[int]] = {number: [] for number in range(leaves)}
    weights = 0.0
    for replica in range(replicas):
        mine = range(leaves * replica // replicas, leaves * (replica + 1) // replicas)
        for shard in range(shards):
            share = plan.dealt_share(at, Deal(leaves, mine, shard, shards))
            assert [leaf.number for leaf in share.leaves] == [*mine]
            assert len(share.loaded) == sum(max(len(leaf.ids), 1) for leaf in share.leaves) or not mine
            for leaf in share.leaves:
                dealt[leaf.number] += leaf.ids
                weights += leaf.weight / shards
    alone = plan.dealt_share(at, Deal(leaves, range(leaves)))
    assert [*dealt.values()] == [[*leaf.ids] for leaf in alone.leaves]
    assert tuple(number for ids in dealt.values() for number in ids) == batch
    assert weights == pytest.approx(1)
