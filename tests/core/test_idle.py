"""Pods are freed without a decision only where nothing can be training in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from tests.builders import (
    Change,
    Scene,
    a_problem,
    a_running_job,
    ended,
    reporting,
    silent,
    unreachable,
    written,
)
from tests.core.observations import scenes

from ropeteam.core.objects.actions import DeletePod
from ropeteam.core.questions.idle import idle_pod_deletions
from ropeteam.core.seen.observation import ContainerSeen, Role
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import FailReason

over = reporting(phase=WorldPhase.FAILED)


def freed(seen: Scene) -> list[str]:
    return [action.name for action in idle_pod_deletions(seen) if isinstance(action, DeletePod)]


def never_started(scene: Scene) -> Scene:
    """The pods of the workers wait for a node or an image, and no agent reports to the coordinator."""
    fields = {"phase": "Pending", "container": ContainerSeen()}
    pods = (each if each.role is Role.COORDINATOR else each.model_copy(update=fields) for each in scene.pods)
    return scene.but(pods=tuple(pods)).after(reporting(phase=WorldPhase.FORMING), silent(0), silent(1))


def test_pods_of_a_job_that_its_coordinator_calls_failed() -> None:
    seen = a_running_job(workers=2).after(over, ended(slot=0))
    assert freed(seen) == ["mnist-1-1"], "neither who has ended, for its log, nor the coordinator"


def test_pods_of_a_job_that_has_ended() -> None:
    failure = a_problem(FailReason.REPEATED_ERROR, "no")
    seen = a_running_job(workers=2).after(reporting(failure=failure), written, unreachable)
    assert seen.status.finished
    assert freed(seen) == ["mnist-0-1", "mnist-1-1"]


def test_who_wants_to_keep_them_keeps_them() -> None:
    assert freed(a_running_job(workers=2, cleanPodPolicy="None").after(over)) == []


def test_pods_in_which_nothing_ever_began() -> None:
    assert freed(a_running_job(workers=2).after(never_started)) == ["mnist-0-1", "mnist-1-1"]


def receives_one(scene: Scene) -> Scene:
    assert scene.report is not None
    slots = {name: replace(slot, registered=True) for name, slot in scene.report.slots.items()}
    return scene.after(reporting(slots=slots))


def one_runs(scene: Scene) -> Scene:
    first = scene.worker(0)
    running = first.model_copy(update={"phase": "Running"})
    return scene.but(pods=tuple(running if pod is first else pod for pod in scene.pods))


@pytest.mark.parametrize("doubt", [receives_one, one_runs, unreachable, reporting(phase=WorldPhase.RUNNING)])
def test_nothing_while_that_is_in_doubt(doubt: Change) -> None:
    assert freed(a_running_job(workers=2).after(never_started, doubt)) == []


@given(scenes)
def test_a_world_that_may_run_is_never_touched(seen: Scene) -> None:
    report = seen.report
    is_reported = report is not None and report.phase in (WorldPhase.FAILED, WorldPhase.FORMING)
    assert is_reported or seen.status.finished or idle_pod_deletions(seen) == ()
