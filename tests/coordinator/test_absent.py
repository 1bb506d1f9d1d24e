"""Under sync Exact: worlds that begin without slots whose pods are missing, and those that these join."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.coordinator.replicas import (
    changes,
    dies,
    film,
    loses_pods,
    plan_of,
    reaches,
    saves_for_all,
    starting,
    trains,
)
from tests.coordinator.test_deputies import able, granted
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import FailReason, ProcessExit, WorldId
from ropeteam_trainer.coordinator.membership import preserving
from ropeteam_trainer.coordinator.membership.forming import GATHER_SECONDS
from ropeteam_trainer.coordinator.membership.state import slotset


def missing(*slots: int, seen: Timeline | None = None) -> Timeline:
    """The pods of these slots are lost at step 12."""
    return loses_pods(able(seen or film()), *slots)


def comes(seen: Timeline, slot: int, incarnation: int = 2) -> None:
    """Another pod takes the slot."""
    seen.replaces(slot, incarnation)
    able(seen, slot)
    seen.applies_orders()


def without_slot_2() -> Timeline:
    """Slots 1 and 2 were lost, and slot 1 is there again."""
    seen = missing(1, 2)
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert (seen.phase, plan_of(seen).absent) == ("Running", (4, 5))
    return seen


def reboots_without(seen: Timeline, absent: int) -> None:
    """The coordinator is restarted, and this slot has no pod."""
    seen.reboots()
    seen.silent.discard(absent)
    del seen.agents[absent]
    seen.desires_slot(absent, incarnation=2, pod_uid="")
    for slot in sorted(seen.agents):
        seen.reports(slot)
    seen.later(6)


def join(seen: Timeline, step: int = 14) -> None:
    trains(seen, step)
    seen.applies_orders()


def test_one_of_two_lost_slots_joins_without_the_other():
    seen = missing(1, 2)
    comes(seen, 1)
    assert (seen.phase, starting(seen)) == ("Forming", []), "the other may come soon"
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    plan = plan_of(seen, 1)
    assert (seen.phase, plan.started, plan.absent, starting(seen)) == ("Running", (2, 3), (4, 5), [2, 3])
    assert (plan.world_size, seen.report.world_size) == (6, 4)
    assert seen.report.why == "world 1.0.2 works on its first step with 4 ranks"
    notice = seen.report.notice
    assert notice
    assert notice.reason is FailReason.WORKERS_ABSENT
    assert "train without slot 2, and wait for the agent of slot 2, which stopped reporting" in notice.message
    assert seen.report.incidents[-1].steps_lost == 0


def test_the_others_learn_of_those_that_are_lost_not_of_those_that_are_absent():
    seen = without_slot_2()
    assert seen.sent_orders(0).lost == ()
    join(seen)
    dies(seen, 3)
    assert seen.sent_orders(0).lost == (3,)


def test_nothing_is_started_while_no_lost_slot_is_ready():
    seen = missing(1, 2)
    seen.later(60)
    assert (seen.phase, starting(seen)) == ("Forming", [])


def test_it_joins_once_its_pod_is_there():
    seen = without_slot_2()
    comes(seen, 2)
    assert plan_of(seen).absent == (4, 5), "others are still joining"
    join(seen)
    plan = plan_of(seen, 2)
    assert (seen.phase, plan.started, plan.absent) == ("Running", (4, 5), ())
    assert len(seen.report.incidents) == 1, "no fault"
    assert seen.report.notice is None
    assert plan.origin == WorldId(1, 0, 1)


@pytest.mark.parametrize("what", ["a rank that could not continue without others", "a terminating pod"])
def test_none_joins_while_one_could_not_live_on(what: str):
    seen = without_slot_2()
    if "rank" in what:
        join(seen)
        changes(seen, 3, regroups=False)
    else:
        trains(seen, 14)
        seen.reports(0, terminating=True)
    comes(seen, 2)
    assert (seen.phase, plan_of(seen, 1).absent) == ("Running", (4, 5))


def test_two_that_come_one_after_the_other_join_at_once():
    seen = missing(0, 1, 2, seen=four())
    comes(seen, 0)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert plan_of(seen, 3).absent == (2, 3, 4, 5)
    join(seen)
    comes(seen, 1)
    assert plan_of(seen, 3).absent == (2, 3, 4, 5), "slot 2 may come soon"
    comes(seen, 2)
    assert (plan_of(seen, 3).started, plan_of(seen, 3).absent) == ((2, 3, 4, 5), ())


def test_one_that_comes_late_is_not_awaited():
    seen = missing(0, 1, 2, seen=four())
    comes(seen, 0)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    join(seen)
    comes(seen, 1)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert (plan_of(seen, 3).started, plan_of(seen, 3).absent) == ((2, 3), (4, 5))


def four(**settings: int) -> Timeline:
    seen = Timeline(workers=4, **{"processes": 2, "feature_level": 3, **settings}).up(step=10)
    for slot in range(4):
        seen.reports(slot, supports_claim=True)
    return seen


def test_a_rank_that_dies_meanwhile_is_started_again_at_once():
    seen = without_slot_2()
    join(seen)
    dies(seen, 0)
    seen.applies_orders()
    plan = plan_of(seen)
    assert (seen.phase, plan.started, plan.absent) == ("Running", (0,), (4, 5))
    assert seen.world_id == WorldId(1, 0, 3)


def test_a_loss_of_all_that_train_ends_the_world():
    seen = without_slot_2()
    join(seen)
    for slot in (0, 1):
        seen.falls_silent(slot)
    seen.later(6)
    comes(seen, 0, 2)
    comes(seen, 1, 3)
    seen.later(60)
    assert seen.phase == "Forming", "all are needed to begin again"
    comes(seen, 2)
    plan = plan_of(seen)
    assert (seen.phase, plan.started, plan.absent, plan.origin) == ("Running", (), (), None)


def test_agents_of_an_earlier_release_start_with_all():
    seen = missing(1, 2)
    seen.reports(0, supports_claim=False)
    comes(seen, 1)
    seen.later(60)
    assert seen.phase == "Forming"


def test_a_replica_of_two_pods_is_absent_as_a_whole():
    seen = Timeline(workers=6, processes=1, replica_ranks=2, feature_level=3).up(step=10)
    for slot in range(6):
        seen.reports(slot, supports_claim=True)
    trains(seen, 12)
    seen.falls_silent(2)
    seen.falls_silent(4)
    seen.later(6)
    seen.applies_orders()
    assert seen.state.world.preserved == slotset.of((0, 1))
    comes(seen, 2)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert (plan_of(seen).started, plan_of(seen).absent) == ((2, 3), (4, 5))
    comes(seen, 4)
    join(seen)
    assert (plan_of(seen).started, plan_of(seen).absent) == ((4, 5), ())


@pytest.mark.parametrize(
    ("processes", "replica_ranks", "slots", "expected"),
    [
        (2, 1, {1}, {1}),
        (4, 2, {1}, {1}),
        (1, 4, {5}, {4, 5, 6, 7}),
        (2, 4, {1, 6}, {0, 1, 6, 7}),
        (2, 3, {1}, set(range(12))),
        (2, 3, set(), set()),
    ],
)
def test_slots_that_share_a_replica(processes, replica_ranks, slots, expected):
    state = Timeline(workers=12, processes=processes, replica_ranks=replica_ranks).state
    assert {*slotset.each(preserving.with_mates(state, slotset.of(slots)))} == expected


def test_none_joins_before_the_end_of_a_backoff():
    seen = without_slot_2()
    join(seen)
    seen.state = replace(
        seen.state, failure_history=replace(seen.state.failure_history, not_before=seen.now + 20)
    )
    comes(seen, 2)
    seen.later(19)
    assert plan_of(seen).absent == (4, 5)
    seen.later(2)
    seen.applies_orders()
    assert plan_of(seen).absent == ()


def test_a_coordinator_that_was_restarted_adopts_it():
    seen = without_slot_2()
    join(seen)
    reboots_without(seen, 2)
    assert (seen.phase, seen.world_id, seen.report.world_size) == ("Running", WorldId(1, 0, 2), 4)
    comes(seen, 2)
    assert (plan_of(seen).started, plan_of(seen).absent) == ((4, 5), ())
    assert plan_of(seen).world_id == WorldId(1, 1, 1)


def test_it_ends_when_all_that_it_has_are_done():
    seen = without_slot_2()
    join(seen)
    for slot in (0, 1):
        seen.exits(slot, ProcessExit(0, None))
    saves = seen.state.lineage
    seen.desires(lineage=saves)
    seen.applies_orders(0, 1)
    assert seen.phase == "Complete"


def test_an_idle_pod_is_released_with_the_others():
    seen = without_slot_2()
    comes(seen, 2)
    assert seen.sent_orders(2).plan is None
    for slot in (0, 1):
        seen.exits(slot, ProcessExit(0, None))
    seen.desires(lineage=seen.state.lineage)
    seen.applies_orders()
    assert (seen.phase, seen.sent_orders(2).release) == ("Complete", True)


def test_a_suspension_saves_by_one_for_all():
    seen = without_slot_2()
    join(seen)
    seen.desires(drain=True)
    for slot in (0, 1):
        seen.applies_orders(slot)
        seen.reports(slot, ranks=tuple(replace(r, pause_received=True) for r in seen.agents[slot].ranks))
        reaches(seen, slot, RankPhase.PAUSED, 14)
    assert {seen.sent_orders(slot).stop_at for slot in (0, 1)} == {16}
    reaches(seen, 1, RankPhase.DRAINED, 16)
    saves_for_all(seen, 16, 0)
    reaches(seen, 0, RankPhase.DRAINED, 16)
    assert granted(seen)[0][0] == 16
    seen.applies_orders()
    assert seen.state.lineage[0].step == 16
    seen.applies_orders()
    assert seen.phase == "Drained"


def test_a_terminating_pod_is_left_behind():
    seen = without_slot_2()
    join(seen)
    seen.reports(1, terminating=True)
    seen.later(2)
    assert seen.sent_orders(0).lost == (2, 3)
    assert seen.sent_orders(0).plan is not None


def test_the_others_begin_a_world_without_a_pod_that_stays_away():
    seen = missing(2)
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert seen.phase == "Running"
    plan = plan_of(seen)
    assert (seen.world_id, plan.started, plan.absent) == (WorldId(1, 0, 2), (), (4, 5))
    assert (seen.report.world_size, seen.report.stage.value) == (4, "Training")
    notice = seen.report.notice
    assert notice
    assert notice.reason is FailReason.WORKERS_ABSENT
    for slot in (0, 1):
        seen.exits(slot, ProcessExit(0, None))
    seen.desires(lineage=seen.state.lineage)
    seen.applies_orders(0, 1)
    assert seen.phase == "Complete", "the training has ended without it"


def test_a_world_counts_as_training_while_others_join_it():
    seen = without_slot_2()
    assert seen.report.stage.value == "FirstStep", "a rank was lost"
    join(seen)
    assert seen.report.stage.value == "Training"
    comes(seen, 2)
    assert (plan_of(seen).started, seen.report.stage.value) == ((4, 5), "Training")


def test_ranks_of_an_earlier_world_end_before_others_join():
    """The pod of slot 2 was only cut off."""
    seen = without_slot_2()
    join(seen)
    before = replace(seen.agents[2], plan=replace(plan_of(seen), world_id=WorldId(1, 0, 1), absent=()))
    seen.silent.discard(2)
    seen.reports(2, plan=before.plan, stopped=False)
    assert (seen.phase, plan_of(seen).absent) == ("Running", (4, 5))
    assert seen.sent_orders(2).plan is None
    seen.reports(2, stopped=True, ranks=())
    seen.applies_orders()
    assert (seen.phase, plan_of(seen).started) == ("Running", (4, 5))


def test_others_join_once_the_last_ranks_of_an_earlier_world_have_ended():
    """Slot 2 was only cut off, and its ranks live still when slot 3 is there."""
    seen = missing(2, 3, seen=four())
    seen.later(GATHER_SECONDS)
    seen.applies_orders()
    assert (seen.phase, plan_of(seen).absent) == ("Running", (4, 5, 6, 7))
    seen.silent.discard(2)
    seen.reports(2)
    seen.replaces(3)
    able(seen, 3)
    seen.later(GATHER_SECONDS)
    assert seen.phase == "Stopping"
    assert seen.report.why.startswith(
        "ending the ranks of world 1.0.2, because others join its ranks; the ranks"
    )
    seen.applies_orders()
    seen.reports(2, stopped=True, ranks=())
    seen.later(1)
    seen.applies_orders()
    assert (seen.phase, plan_of(seen).absent) == ("Running", ())
