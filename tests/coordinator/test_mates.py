"""Under sync Exact with replicas of several ranks: all of a replica are lost with one of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.replicas import RANKS, SLOTS, dies, film, joined, saves_for_all, starting, trains


def mates(ranks: Iterable[int], size: int) -> list[int]:
    replicas = {rank // size for rank in ranks}
    return [rank for rank in RANKS if rank // size in replicas]


@given(st.sampled_from([1, 2, 3, 6]), st.sets(st.sampled_from(RANKS), min_size=1))
def test_replicas_are_lost_whole_and_the_others_continue(size: int, dead: set[int]) -> None:
    seen = film(replica_ranks=size)
    dies(seen, *dead)
    lost = mates(dead, size)
    if len(lost) == len(RANKS):
        assert all(seen.sent_orders(slot).plan is None for slot in SLOTS)
        return
    living = [slot for slot in SLOTS if not {2 * slot, 2 * slot + 1} <= {*lost}]
    assert [slot for slot in SLOTS if seen.sent_orders(slot).plan] == living
    assert [[*seen.sent_orders(slot).lost] for slot in living] == [lost] * len(living)
    plan = joined(seen)
    assert [*plan.started] == starting(seen) == lost
    assert plan.replica_ranks == size, "ranks with another number do not continue without others"


@pytest.mark.parametrize(("size", "lost"), [(1, [0, 1]), (2, [0, 1]), (3, [0, 1, 2])])
def test_with_a_pod_the_mates_of_its_ranks_are_lost(size: int, lost: list[int]) -> None:
    seen = film(replica_ranks=size)
    seen.falls_silent(0)
    seen.later(6)
    assert [[*seen.sent_orders(slot).lost] for slot in (1, 2)] == [lost] * 2


def test_with_a_rank_of_each_replica_the_whole_world_is_lost() -> None:
    seen = film(replica_ranks=3)
    dies(seen, 0, 5)
    assert [slot for slot in SLOTS if seen.sent_orders(slot).plan] == []
    assert joined(seen).started == ()


def test_a_checkpoint_of_a_replica_is_committed_once_all_of_its_ranks_have_saved() -> None:
    seen = film(replica_ranks=2)
    seen.falls_silent(1)
    seen.later(6)
    trains(seen, 12)
    saves_for_all(seen, 12, 4)
    assert seen.state.grant is None
    saves_for_all(seen, 12, 5)
    grant = seen.sent_orders(0).grant
    assert (grant.ref.step, grant.world_size) == (12, 2)
    assert [file.name for file in grant.files if file.name.startswith("rank")] == ["rank-4.pt", "rank-5.pt"]
