"""A job's clock: no step of a wall clock moves it, and it continues when another operator takes over."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOON

from ropeteam.api.status import ClockStatus, JobStatus
from ropeteam.controller.reconcile.jobclock import JobClock


def after(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def saved(job: float, wall: float) -> JobStatus:
    return JobStatus(clock=ClockStatus(job=NOON + after(job), wall=NOON + after(wall)))


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(-100_000, 100_000)), max_size=9))
def test_while_one_operator_leads_only_its_own_clock_counts(looks: list[tuple[int, int]]) -> None:
    clock, now = JobClock(), 500.0
    begin = clock.time(JobStatus(), NOON, now)
    assert begin == NOON
    for passed, step in looks:
        now += passed
        wall = NOON + after(step)
        assert clock.time(saved(0, step), wall, now) == begin + after(now - 500.0)


def test_the_next_operator_adds_what_has_passed_since_the_last_write() -> None:
    status = saved(job=100, wall=160)
    assert JobClock().time(status, NOON + after(190), 7.0) == NOON + after(130)
    assert JobClock().time(status, NOON + after(20), 7.0) == NOON + after(100), "it never goes back"


def test_how_far_the_clock_of_the_one_before_was_ahead_is_no_time_that_passed() -> None:
    status, an_hour = saved(job=100, wall=160), 3600.0
    ours = NOON + after(190 - an_hour)
    assert JobClock().time(status, ours, 7.0, predecessor_ahead_seconds=an_hour) == NOON + after(130)
