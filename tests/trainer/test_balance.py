"""Parts in proportion to speed: exact, deterministic, as quick as whole samples allow, and calm."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ropeteam_trainer.data.decisions.balance import MIN_GAIN, Balance, part_sizes
from ropeteam_trainer.data.decisions.plan import DataPlan, Position

speed = st.floats(1e-3, 1e6)
worlds = st.lists(speed, min_size=1, max_size=7).map(tuple)


def seconds(counts: tuple[int, ...], speeds: tuple[float, ...]) -> float:
    return max(count / speed for count, speed in zip(counts, speeds, strict=True))


@given(total=st.integers(1, 500), speeds=worlds)
@example(total=3, speeds=(1e6, 1e-3, 1e-3))
def test_parts_are_whole_and_leave_nobody_without_work(total: int, speeds: tuple[float, ...]) -> None:
    counts = part_sizes(total, speeds)
    assert sum(counts) == total
    assert min(counts) >= (1 if total >= len(speeds) else 0)
    assert all(type(count) is int for count in counts)


@given(total=st.integers(1, 14), speeds=st.lists(speed, min_size=1, max_size=4).map(tuple))
def test_no_other_parts_are_done_sooner(total: int, speeds: tuple[float, ...]) -> None:
    assume(total >= len(speeds) and len(set(speeds)) > 1)
    best = min(
        seconds(other, speeds)
        for other in itertools.product(range(1, total + 1), repeat=len(speeds))
        if sum(other) == total
    )
    assert seconds(part_sizes(total, speeds), speeds) == pytest.approx(best)


@given(total=st.integers(1, 10_000), speeds=worlds)
def test_the_slowest_could_give_no_sample_away_and_gain(total: int, speeds: tuple[float, ...]) -> None:
    """Sizes for which not all parts can be tried."""
    assume(total >= len(speeds) and len(set(speeds)) > 1)
    counts = part_sizes(total, speeds)
    movable = [count / each for count, each in zip(counts, speeds, strict=True) if count > 1]
    sooner = min((count + 1) / each for count, each in zip(counts, speeds, strict=True))
    assert max(movable, default=0.0) <= sooner * (1 + 1e-9)


@given(total=st.integers(1, 500), world=st.integers(1, 9), each=speed)
def test_equal_speeds_give_the_parts_of_before(total: int, world: int, each: float) -> None:
    bounds = [total * rank // world for rank in range(world + 1)]
    assert part_sizes(total, (each,) * world) == tuple(b - a for a, b in itertools.pairwise(bounds))


def test_half_the_speed_is_half_the_part() -> None:
    assert part_sizes(96, (2.0, 1.0)) == (64, 32)
    assert part_sizes(100, (4.0, 4.0, 2.0)) == (40, 40, 20)
    assert part_sizes(3, (9.0, 1.0, 1.0, 1.0)) == (0, 1, 1, 1), "fewer samples than ranks: one each"


@given(
    plan=st.builds(DataPlan, samples=st.integers(1, 60), global_batch=st.integers(1, 25)),
    world=st.integers(1, 5),
    data=st.data(),
)
def test_exactly_once_and_an_exact_mean_under_any_speeds(
    plan: DataPlan, world: int, data: st.DataObject
) -> None:
    """The speeds may be others for each batch."""
    at, used = Position(), []
    while at.epoch == 0:
        speeds = data.draw(st.none() | st.tuples(*[speed] * world))
        shares = [plan.share(at, rank, world, speeds) for rank in range(world)]
        ids = [i for share in shares for i in share.ids]
        assert tuple(ids) == plan.share(at, 0, 1).ids
        mean = sum(s.weight * (sum(s.ids) / len(s.ids) if s.ids else 7.0) for s in shares) / world
        assert mean == pytest.approx(sum(ids) / len(ids))
        used += ids
        at = plan.after(at)
    assert sorted(used) == list(range(plan.samples))


def test_parts_follow_a_rank_that_slows_and_recovers() -> None:
    state = Balance().after([10.0, 10.0], 60)
    assert state.in_force is None, "equal parts are right"
    for _ in range(5):
        state = state.after([10.0, 5.0], 60)
    assert part_sizes(60, state.in_force) == pytest.approx((40, 20), abs=1)
    for _ in range(6):
        state = state.after([10.0, 10.0], 60)
    assert part_sizes(60, state.in_force) == pytest.approx((30, 30), abs=1)


@given(noise=st.lists(st.tuples(st.floats(0.98, 1.02), st.floats(0.98, 1.02)), max_size=30))
def test_noise_in_speeds_changes_no_parts(noise: list[tuple[float, float]]) -> None:
    state = start = Balance().after([20.0, 10.0], 96)
    for fast, slow in noise:
        state = state.after([20.0 * fast, 10.0 * slow], 96)
    assert state.in_force == start.in_force == (20.0, 10.0)


@given(speeds=worlds, later=worlds, total=st.integers(1, 100))
@example(speeds=(10.0, 10.0), later=(10.0, 1.0), total=60)  # changes
@example(speeds=(10.0, 10.0), later=(10.0, 9.9), total=60)  # does not
def test_parts_change_where_that_gains_enough_and_only_there(
    speeds: tuple[float, ...], later: tuple[float, ...], total: int
) -> None:
    assume(len(speeds) == len(later))
    old = Balance().after(speeds, total)
    new = old.after(later, total)
    assert new.smoothed is not None
    before = seconds(part_sizes(total, old.in_force or (1.0,) * len(speeds)), new.smoothed)
    gains = before > (1 + MIN_GAIN) * seconds(part_sizes(total, new.smoothed), new.smoothed)
    assert new.in_force == (new.smoothed if gains else old.in_force)


@pytest.mark.parametrize("fixed", [0.0, 0.05, 0.5])
def test_ranks_with_fixed_costs_end_at_equal_times(fixed: float) -> None:
    """Speed is measured as if time were in proportion to samples; where it is not, it still gets there."""
    state, counts = Balance(), part_sizes(96, (1.0, 1.0))
    for _ in range(60):
        times = (fixed + 0.01 * counts[0], fixed + 0.03 * counts[1])
        state = state.after([n / t for n, t in zip(counts, times, strict=True)], 96)
        counts = part_sizes(96, state.in_force or (1.0, 1.0))
    best = min(max(fixed + 0.01 * n, fixed + 0.03 * (96 - n)) for n in range(97))
    assert max(times) <= 1.08 * best


def test_what_could_not_be_measured_changes_nothing() -> None:
    known = Balance().after([20.0, 10.0], 96)
    assert known.after([20.0, None], 96) == known
    assert Balance().after([None, 1.0], 96) == Balance()
