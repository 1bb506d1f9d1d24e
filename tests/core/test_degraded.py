"""The condition Degraded: what is wrong with a job that continues."""

from __future__ import annotations

import pytest
from tests.builders import (
    Change,
    Scene,
    a_running_job,
    edited,
    reporting,
    unreachable,
    written,
)

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.core.decide import decide
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason

SPLIT = Problem(FailReason.SPLIT_WORLD, "4 default process groups of 2 ranks were formed.\nSee status.")
NONE = Problem(FailReason.NO_PROCESS_GROUP, "No rank has formed a default process group.")


def noticed(notice: Problem | None) -> Change:
    return reporting(notice=notice)


def degraded(seen: Scene) -> Condition | None:
    return decide(seen).status.condition(ConditionType.DEGRADED)


def events(seen: Scene) -> list[tuple[str, str, str]]:
    return [(each.type, each.reason, each.message) for each in decide(seen).announcements]


def test_a_job_as_it_should_be_has_no_such_condition() -> None:
    assert degraded(a_running_job()) is None


def test_a_notice_is_shown_at_once_announced_once_and_goes_with_it() -> None:
    seen = a_running_job().after(noticed(SPLIT))
    assert events(seen) == [("Warning", "SplitWorld", "4 default process groups of 2 ranks were formed.")]
    status = decide(seen).status
    condition = status.condition(ConditionType.DEGRADED)
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == ("True", "SplitWorld", SPLIT.message)
    assert (status.state, status.reason) == ("Running", "SplitWorld")
    running = status.condition(ConditionType.RUNNING)
    assert running is not None
    assert running.reason == "WorldRunning"
    assert "All workers train together" not in running.message
    seen = seen.after(written)
    assert events(seen) == []
    better = seen.after(noticed(None), written)
    gone = degraded(better)
    assert gone is not None
    assert (gone.status, gone.reason, gone.message) == ("False", "AsExpected", "")
    assert better.status.reason == "WorldRunning"
    assert events(better.after(noticed(SPLIT))) == events(a_running_job().after(noticed(SPLIT)))


def test_workers_that_train_without_others_are_running() -> None:
    absent = Problem(FailReason.WORKERS_ABSENT, "the others train without slot 1.")
    status = decide(a_running_job().after(noticed(absent))).status
    running = status.condition(ConditionType.RUNNING)
    assert running is not None
    assert status.state == "Running"
    assert running.message == "Some workers train without the others: see the condition Degraded."


def test_another_notice_is_announced_too() -> None:
    seen = a_running_job().after(noticed(NONE), written, noticed(SPLIT))
    assert [reason for _, reason, _ in events(seen)] == ["SplitWorld"]


@pytest.mark.parametrize("quiet", [unreachable, reporting(phase=WorldPhase.WAITING, notice=None)])
def test_a_coordinator_that_reports_nothing_takes_nothing_back(quiet: Change) -> None:
    seen = a_running_job().after(noticed(SPLIT), written, quiet, written)
    condition = degraded(seen)
    assert condition is not None
    assert (condition.holds, condition.reason, condition.message) == (True, "SplitWorld", SPLIT.message)
    assert events(seen) == []


def test_a_suspended_job_has_no_degraded_world() -> None:
    seen = a_running_job().after(noticed(SPLIT), written, edited(suspend=True), written)
    seen = seen.but(pods=(), report=None).after(written)
    condition = degraded(seen)
    assert seen.status.state == "Suspended"
    assert condition is not None
    assert not condition.holds


@pytest.mark.parametrize("last", [reporting(phase=WorldPhase.COMPLETE), unreachable])
def test_a_job_that_never_formed_a_process_group_does_not_end_in_silence(last: Change) -> None:
    seen = a_running_job().after(noticed(NONE), written, last)
    if seen.report is None:
        pods = (pod.model_copy(update={"phase": "Succeeded"}) for pod in seen.pods)
        seen = seen.but(pods=tuple(pods))
    decision = decide(seen)
    complete = decision.status.condition(ConditionType.COMPLETE)
    finished = decision.status.condition(ConditionType.FINISHED)
    assert complete is not None
    assert finished is not None
    assert (complete.holds, complete.reason) == (True, "NoProcessGroup")
    assert complete.message == f"All ranks have finished, but: {NONE.message}"
    assert (finished.holds, finished.reason) == (True, "Succeeded")
    assert (decision.status.state, decision.status.reason) == ("Complete", "NoProcessGroup")
    assert ("Warning", "NoProcessGroup", complete.message) in events(seen)
    condition = decision.status.condition(ConditionType.DEGRADED)
    assert condition is not None
    assert (condition.holds, condition.reason) == (False, "Finished")


@pytest.mark.parametrize("notice", [None, SPLIT])
def test_any_other_end_is_plain_success(notice: Problem | None) -> None:
    seen = a_running_job().after(noticed(notice), written, reporting(phase=WorldPhase.COMPLETE))
    announced = [(kind, reason) for kind, reason, _ in events(seen)]
    assert ("Normal", "Succeeded") in announced
    assert decide(seen).status.holds(ConditionType.COMPLETE)
