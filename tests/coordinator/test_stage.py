"""How far a world is before its first step: what it is waiting for, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import CLEAN
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.desired import Stage
from ropeteam_trainer.contract.messages import GroupReport, Progress, RankPhase
from ropeteam_trainer.coordinator.membership import stage
from ropeteam_trainer.coordinator.membership.state.state import with_world


def joins(seen: Timeline, *slots: int) -> None:
    for slot in slots:
        ranks = tuple(replace(rank, joins=True) for rank in seen.agents[slot].ranks)
        seen.reports(slot, ranks=ranks)


def forms(seen: Timeline, size: int) -> None:
    for slot in range(size):
        seen.reports(slot, groups=(GroupReport("a", size, "train.py", (slot,), (slot,)),))


def get(seen: Timeline) -> Stage:
    """As the operator does, which sends its desired state each second."""
    seen.desires()
    return seen.report.stage


def test_each_step_on_the_way_has_a_name():
    seen = Timeline(workers=3)
    assert get(seen) is Stage.UNKNOWN
    seen.up()
    seen.reports(2, ranks=(replace(seen.agents[2].ranks[0], phase=RankPhase.STARTING),))
    stages, sentences = [get(seen)], [seen.report.why]
    for change in (
        lambda: joins(seen, 0),
        lambda: forms(seen, 3),
        lambda: seen.reports(0, progress=Progress(phase="restore")),
        lambda: seen.reports(0, progress=Progress(phase="data")),
        lambda: seen.reaches(12, base=11),
    ):
        change()
        stages.append(get(seen))
        sentences.append(seen.report.why)
    assert stages == [
        Stage.SCRIPT_STARTING,
        Stage.PROCESS_GROUP_FORMING,
        Stage.FIRST_STEP,
        Stage.RESTORING,
        Stage.FIRST_STEP,
        Stage.TRAINING,
    ]
    assert sentences == [
        "world 1.0.1 has started its 3 ranks; their script is importing or preparing",
        "the 3 ranks of world 1.0.1 form their process group: ranks 1, 2 not in init_process_group yet",
        "world 1.0.1 works on its first step with 3 ranks",
        "world 1.0.1 restores its checkpoint with 3 ranks",
        "world 1.0.1 works on its first step with 3 ranks",
        "world 1.0.1 runs with 3 ranks",
    ]
    for slot in range(3):
        seen.exits(slot, CLEAN)
    assert get(seen) is Stage.UNKNOWN


def test_ranks_that_are_not_started_yet():
    seen = Timeline().up()
    early = with_world(seen.state, started_at=None)
    assert stage.current_stage(early) is Stage.RANKS_STARTING
    assert stage.stage_text(early) == "the 2 ranks of world 1.0.1 are being started"


def test_few_that_are_missed_are_named():
    seen = Timeline(workers=8).up()
    joins(seen, 0, 1)
    assert seen.report.why.endswith("more than 5 have not called init_process_group yet")
    joins(seen, 2, 3, 4, 5, 6)
    assert seen.report.why.endswith("rank 7 not in init_process_group yet")
    joins(seen, 7)
    assert seen.report.why.endswith("all have called init_process_group")


def test_of_a_command_per_pod_the_first_rank_of_each_pod_speaks():
    seen = Timeline(feature_level=0, processes=2).up()
    for slot in (0, 1):
        seen.reports(slot, launcher="PerPod (accelerate launch)")
    first, second = seen.agents[0].ranks
    seen.reports(0, ranks=(replace(first, joins=True), second))
    assert seen.report.why.endswith("rank 2 not in init_process_group yet")


def test_a_script_that_reports_no_steps_trains_when_its_group_has_formed():
    seen = Timeline(feature_level=0).up()
    assert get(seen) is Stage.SCRIPT_STARTING
    seen.later(59)
    assert get(seen) is Stage.SCRIPT_STARTING
    forms(seen, 2)
    assert get(seen) is Stage.FIRST_STEP, "it may be in init() of our library"
    seen.later(2)
    assert get(seen) is Stage.TRAINING
    why = "world 1.0.1 runs with 2 ranks; no steps are reported, so a hang is not detected"
    assert seen.report.why == why
    for slot in (0, 1):
        seen.reports(slot, feature_level=1)
    assert get(seen) is Stage.TRAINING, "its first step is still to come, but it was said"
    seen.reaches(1)
    assert seen.report.why == "world 1.0.1 runs with 2 ranks"


def test_a_script_that_uses_the_library_trains_from_its_first_step():
    seen = Timeline(feature_level=0).up()
    forms(seen, 2)
    seen.reports(0, feature_level=1)
    seen.later(60)
    assert get(seen) is Stage.FIRST_STEP
    seen.reaches(1)
    assert get(seen) is Stage.TRAINING


def test_ranks_that_wait_for_a_group_train_when_it_is_called_missing():
    seen = Timeline(feature_level=0).up()
    joins(seen, 0)
    seen.later(599)
    assert get(seen) is Stage.PROCESS_GROUP_FORMING
    seen.later(2)
    assert get(seen) is Stage.TRAINING
    assert seen.report.notice is not None


def test_where_no_rank_joins_a_group_none_is_waited_for():
    seen = Timeline(feature_level=0).up()
    seen.later(61)
    assert get(seen) is Stage.TRAINING


@pytest.mark.parametrize("settings", [{"workers": 1}, {"worlds_per_pod": True}])
def test_where_no_group_is_waited_for_time_decides(settings):
    seen = Timeline(feature_level=0, **settings).up()
    seen.later(9)
    assert get(seen) is Stage.SCRIPT_STARTING
    seen.later(2)
    assert get(seen) is Stage.TRAINING
    other = Timeline(feature_level=1, **settings).up()
    other.later(11)
    assert get(other) is Stage.FIRST_STEP


def test_agents_of_an_earlier_release_report_no_groups():
    seen = Timeline(feature_level=0).up()
    for slot in (0, 1):
        seen.reports(slot, reports_groups=False)
    seen.state = with_world(seen.state, reporting_groups=0)
    seen.later(11)
    assert get(seen) is Stage.TRAINING


@pytest.mark.parametrize(
    ("feature_level", "step", "then"),
    [(1, 5, Stage.TRAINING), (1, 0, Stage.SCRIPT_STARTING), (0, 0, Stage.TRAINING)],
)
def test_a_restarted_coordinator_reports_the_same_stage(feature_level, step, then):
    seen = Timeline(feature_level=feature_level).up(step=step)
    seen.reboots()
    seen.desires()
    for slot in (0, 1):
        seen.reports(slot)
    assert seen.phase == "Running"
    assert seen.report.stage is then
