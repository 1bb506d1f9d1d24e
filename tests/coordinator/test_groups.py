"""One world, or a clear word: what default process groups say of the world that formed them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lab.coordinator.reports import CLEAN
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import GroupReport, ProcessGroup, RankPhase
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.coordinator.membership import groups


def group(size: int, *ranks: int, id: str = "a", members: tuple[int, ...] | None = None) -> GroupReport:
    return GroupReport(id, size, "train.py", ranks, ranks if members is None else members)


def notice_reason(film: Timeline) -> FailReason | None:
    notice = film.report.notice
    return notice.reason if notice else None


def failure(film: Timeline) -> FailReason | None:
    return film.state.failure.reason if film.state.failure else None


def film(workers: int = 2, **settings: Any) -> Timeline:
    return Timeline(workers, feature_level=0, **settings).up()


def test_the_requested_group_is_not_reported():
    seen = film()
    for slot in (0, 1):
        seen.reports(slot, groups=(group(2, slot),))
    seen.later(700)
    assert notice_reason(seen) is failure(seen) is None
    assert seen.report.process_groups == (ProcessGroup(2, 2, (0, 1), "train.py"),)


def test_a_smaller_group_is_reported_at_once_and_fails_the_job_after_start_seconds():
    seen = film()
    seen.reports(0, groups=(group(1, 0),))
    assert seen.report.notice is not None
    assert notice_reason(seen) is FailReason.SMALLER_PROCESS_GROUP
    assert "a process group of 1 by train.py in slot 0" in seen.report.notice.message
    seen.reports(1, groups=(group(1, 1, id="b", members=(0,)),))
    seen.later(598)
    assert failure(seen) is None
    seen.later(3)
    assert failure(seen) is FailReason.SPLIT_WORLD
    assert seen.state.failure is not None
    assert "no other has formed within spec.recovery.startSeconds (600 s)" in seen.state.failure.message
    assert "spec.worlds to PerPod" in seen.state.failure.message
    assert seen.orders(0) is not None
    assert seen.sent_orders(0).plan is None, "its ranks end"


def test_a_preflight_after_a_long_start_has_its_time_too():
    seen = film()
    seen.later(700)
    seen.reports(0, groups=(group(1, 0, id="preflight"),))
    seen.later(500)
    assert (notice_reason(seen), failure(seen)) == (FailReason.SMALLER_PROCESS_GROUP, None)
    for slot in (0, 1):
        seen.reports(slot, groups=(*seen.agents[slot].groups, group(2, slot, id="whole")))
    seen.later(700)
    assert notice_reason(seen) is failure(seen) is None


def test_a_rank_of_a_smaller_world_that_ends_well_fails_the_job():
    seen = film()
    for slot in (0, 1):
        seen.reports(slot, groups=(group(1, slot, id=str(slot)),))
    seen.exits(1, CLEAN)
    assert failure(seen) is FailReason.SPLIT_WORLD
    assert seen.state.failure is not None
    assert "rank 1 has ended with exit code 0" in seen.state.failure.message


def test_a_rank_that_is_in_no_group_may_end():
    seen = film(workers=3)
    seen.reports(0, groups=(group(1, 0),))
    seen.exits(2, CLEAN)
    assert failure(seen) is None


@pytest.mark.parametrize("first", [0, 1])
def test_groups_before_and_beside_the_whole_one_change_nothing(first: int):
    seen = film()
    seen.reports(first, groups=(group(1, first, id="preflight"),))
    for slot in (0, 1):
        seen.reports(slot, groups=(group(2, slot), group(1, slot, id=f"evaluator {slot}")))
    seen.later(700)
    seen.exits(0, CLEAN)
    assert notice_reason(seen) is failure(seen) is None
    assert [each.size for each in seen.report.process_groups] == [2, 1, 1, 1]


def test_two_worlds_of_the_jobs_size_in_two_pods_are_not_one():
    seen = film(processes=2)
    for slot in (0, 1):
        seen.reports(slot, groups=(group(4, 2 * slot, id=str(slot), members=(0, 1, 2, 3)),))
    assert notice_reason(seen) is FailReason.SMALLER_PROCESS_GROUP
    for slot in (0, 1):  # it was a server's, and the ranks form their own now
        mine = group(4, 2 * slot, 2 * slot + 1, id="whole")
        seen.reports(slot, groups=(*seen.agents[slot].groups, mine))
    assert notice_reason(seen) is None


def test_of_groups_whose_stores_cannot_name_them_nothing_is_concluded():
    seen = film()
    for slot in (0, 1):
        seen.reports(slot, groups=(group(2, slot, id="", members=(0, 1)),))
    seen.exits(1, CLEAN)
    assert notice_reason(seen) is failure(seen) is None


def test_a_command_that_runs_once_per_pod_may_be_all_of_its_pods_ranks():
    seen = film(processes=8)
    for slot in (0, 1):
        one = group(2, 8 * slot, members=(slot,))
        seen.reports(slot, launcher="PerPod (bash)", groups=(one,))
    assert notice_reason(seen) is None
    apart = film(processes=8)
    for slot in (0, 1):
        mine = group(8, 8 * slot, id=str(slot), members=tuple(range(8)))
        apart.reports(slot, launcher="PerPod (bash)", groups=(mine,))
    assert notice_reason(apart) is FailReason.SMALLER_PROCESS_GROUP


def test_of_agents_of_an_earlier_release_nothing_is_concluded():
    seen = film()
    seen.reports(1, reports_groups=False)
    seen.state = (
        replace(seen.state, world=replace(seen.state.world, reporting_groups=1))
        if seen.state.world
        else seen.state
    )
    seen.later(700)
    assert notice_reason(seen) is None


def test_a_world_that_forms_no_group_is_reported_after_start_seconds_and_at_its_end():
    seen = film()
    seen.later(590)
    assert notice_reason(seen) is None
    seen.later(20)
    assert notice_reason(seen) is FailReason.NO_PROCESS_GROUP
    assert seen.report.notice is not None
    assert "either they wait for each other" in seen.report.notice.message
    short = film()
    for slot in (0, 1):
        short.exits(slot, CLEAN)
    short.applies_orders()
    assert (short.phase, notice_reason(short)) == ("Complete", FailReason.NO_PROCESS_GROUP)
    assert short.report.notice is not None
    assert "either each trains by itself" in short.report.notice.message


@pytest.mark.parametrize("settings", [{"worlds_per_pod": True}, {"servers": 1}, {"workers": 1}])
def test_a_world_that_needs_no_group_is_not_checked(settings: dict[str, Any]):
    seen = film(**settings)
    seen.reports(0, groups=(group(1, 0),))
    seen.later(700)
    assert notice_reason(seen) is failure(seen) is None


def test_ranks_that_continue_without_one_that_ended_are_reported():
    seen = film()
    for slot in (0, 1):
        seen.reports(slot, groups=(group(2, slot),))
    seen.exits(1, CLEAN)
    seen.later(200)
    assert notice_reason(seen) is None
    seen.later(102)
    assert seen.report.notice is not None
    assert notice_reason(seen) is FailReason.RANK_ENDED
    assert "rank 1 has ended with exit code 0" in seen.report.notice.message
    assert "the script does not report its steps" in seen.report.notice.message
    seen.exits(0, CLEAN)
    assert notice_reason(seen) is None


def test_steps_of_the_others_are_going_on():
    seen = Timeline(2, feature_level=1).up(step=3)
    for slot in (0, 1):
        seen.reports(slot, groups=(group(2, slot),))
    seen.exits(1, CLEAN)
    seen.later(200)
    seen.ranks(0, RankPhase.RUNNING, step=4)
    seen.later(200)
    assert notice_reason(seen) is None
    seen.later(110)
    assert seen.report.notice is not None
    assert "5 minutes without a step" in seen.report.notice.message


def test_of_many_groups_the_largest_are_retained_and_shown():
    seen = film(workers=40)
    mine = tuple(group(1, 0, id=str(n)) for n in range(15))
    for slot in range(40):
        seen.reports(
            slot, groups=(*(replace(each, id=f"{slot}-{each.id}") for each in mine), group(40, slot))
        )
    assert len(seen.state.world.groups if seen.state.world else ()) == groups.MAX_GROUPS
    assert notice_reason(seen) is None
    (whole, *others) = seen.report.process_groups
    assert (whole.size, whole.members, len(whole.slots)) == (40, 40, groups.MAX_SLOTS_SHOWN)
    assert len(others) == groups.MAX_SHOWN - 1
    seen.reports(0, groups=(group(40, 0, 1 << 30, -1),))
    assert seen.report.process_groups[0].members == 40, "no number of a process makes the set large"


def test_many_smaller_groups_are_reported_briefly():
    seen = film(workers=8)
    for slot in range(8):
        seen.reports(slot, groups=(group(1, slot, id=str(slot)), group(6, slot, id="six")))
    assert seen.report.notice is not None
    text = seen.report.notice.message
    assert "in slots 0, 1, 2, 3, 4 and more" in text
    assert "and 6 more" in text


def test_a_world_that_ends_is_not_checked():
    seen = film()
    seen.desires(drain=True)
    seen.reports(0, groups=(group(1, 0),))
    seen.desires(drain=False)
    assert groups.notice(Timeline().state, 0.0) is None
    assert groups.split_world_problem(Timeline().state, 0.0) is None
    assert groups.shown_groups(Timeline().state) == ()
