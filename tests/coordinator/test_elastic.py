"""Under sync Exact with spec.elastic: worlds that begin without workers that do not come in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.coordinator.replicas import dies, plan_of, starting, trains
from tests.coordinator.test_absent import comes, join
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.config import Elastic
from ropeteam_trainer.contract.world import ProcessExit, WorldId


def begins_with(least: int, *slots: int, wait: int = 30, **settings: Any) -> Timeline:
    """The agents of these slots have registered."""
    shape = {"workers": 3, "processes": 2, "feature_level": 3, **settings}
    seen = Timeline(elastic=Elastic(least, wait), **shape)
    seen.desires()
    for slot in slots:
        seen.reports(slot, supports_claim=True)
    return seen


def assert_begins_after(seen: Timeline, seconds: float) -> None:
    seen.later(seconds - 1)
    assert seen.phase == "Forming"
    seen.later(2)
    seen.applies_orders()
    assert seen.phase == "Running"


def test_training_begins_without_a_pod_that_does_not_come_in_time():
    seen = begins_with(2, 0, 2)
    assert_begins_after(seen, 30)
    plan = plan_of(seen)
    assert (plan.started, plan.absent) == ((1, 4, 5), (2, 3))
    assert (plan.origin, plan.preserved) == (None, ())
    assert starting(seen) == [0, 1, 4, 5]
    join(seen, 1)
    comes(seen, 1)
    assert (plan_of(seen).started, plan_of(seen).absent) == ((2, 3), ())
    assert seen.report.incidents == ()


def test_the_wait_begins_when_enough_are_there():
    seen = begins_with(2, 0)
    seen.later(60)
    seen.reports(2, supports_claim=True)
    assert_begins_after(seen, 30)


def test_it_begins_again_when_one_of_them_is_lost():
    seen = begins_with(2, 0, 2)
    seen.later(20)
    seen.falls_silent(2)
    seen.later(6)
    seen.silent.discard(2)
    seen.reports(2)
    assert_begins_after(seen, 30)


def test_one_that_comes_in_time_is_there_from_the_begin():
    seen = begins_with(2, 0, 2)
    seen.later(20)
    seen.reports(1, supports_claim=True)
    seen.applies_orders()
    assert (seen.phase, plan_of(seen).started, plan_of(seen).absent) == ("Running", (), ())


@pytest.mark.parametrize(
    ("least", "slots", "settings"),
    [
        (3, (0, 2), {}),
        (2, (1, 2), {}),
        (2, (0, 2), {"replica_ranks": 4, "workers": 4, "processes": 2}),
        (1, (0,), {"replica_ranks": 4, "workers": 4, "processes": 2}),
    ],
    ids=["too few", "without rank 0", "its replica is not whole", "its replica is not there"],
)
def test_it_waits(least: int, slots: tuple[int, ...], settings: dict[str, int]):
    seen = begins_with(least, *slots, **settings)
    seen.later(100)
    assert seen.phase == "Forming"


def test_agents_of_an_earlier_release_begin_with_all():
    seen = begins_with(2, 0, 2)
    seen.reports(2, supports_claim=False)
    seen.later(100)
    assert seen.phase == "Forming"


def test_a_command_for_a_whole_pod_begins_with_all():
    seen = begins_with(2, 0, 2)
    seen.reports(2, launcher="PerPod (torchrun)")
    seen.later(100)
    assert seen.phase == "Forming"


def test_without_the_field_all_are_awaited():
    seen = begins_with(1, 0, 1)
    seen.state = replace(seen.state, config=replace(seen.config, elastic=None))
    seen.later(100)
    assert seen.phase == "Forming"


def test_a_whole_replica_begins_alone():
    seen = begins_with(1, 0, 1, workers=4, processes=1, replica_ranks=2)
    seen.later(31)
    seen.applies_orders()
    assert (plan_of(seen).started, plan_of(seen).absent) == ((), (2, 3))


def test_a_fault_of_all_restarts_without_those_that_are_absent_at_once():
    seen = begins_with(2, 0, 2)
    seen.later(31)
    seen.applies_orders()
    join(seen, 1)
    trains(seen, 10)
    dies(seen, 0, 1, 4, 5)
    seen.later(2)
    seen.applies_orders()
    assert (seen.phase, seen.world_id > WorldId(1, 0, 1)) == ("Running", True)
    assert (plan_of(seen).started, plan_of(seen).absent, plan_of(seen).origin) == ((1, 4, 5), (2, 3), None)


def test_a_pod_that_is_lost_with_all_ranks_is_awaited():
    seen = begins_with(2, 0, 1, 2)
    seen.applies_orders()
    trains(seen, 10)
    seen.falls_silent(1)
    dies(seen, 0, 1, 4, 5)
    seen.later(28)
    assert seen.phase == "Forming"
    seen.later(10)
    seen.applies_orders()
    assert (seen.phase, plan_of(seen).started, plan_of(seen).absent) == ("Running", (1, 4, 5), (2, 3))


def test_an_error_of_one_that_was_to_join_restarts_all():
    seen = begins_with(2, 0, 2)
    seen.later(31)
    seen.applies_orders()
    dies(seen, 4, how=ProcessExit(1, None))
    assert seen.phase == "Stopping"
    assert [seen.sent_orders(slot).plan for slot in (0, 2)] == [None, None]
    assert seen.incident.rank == 4
