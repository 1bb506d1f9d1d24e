"""A coordinator that hangs for good: its kubelet starts it again, and training continues."""

from __future__ import annotations

import pytest
from tests.sim.kubelet import Pod
from tests.sim.world import Setup, World

from ropeteam.api.conditions import ConditionType


@pytest.mark.parametrize("feature_level", [1, 3])
def test_a_coordinator_that_hangs_for_ever_does_not_stop_the_job(feature_level: int) -> None:
    world = World(Setup(seed=3, workers=2, feature_level=feature_level, total_steps=300))
    world.run(15.0)
    (hung,) = world.live_coordinators()
    hung.frozen = True
    world.run(90.0)
    assert not hung.running
    assert len(world.coordinators) == 2
    assert world.coordinators[-1].pod is hung.pod, "another container, not another pod"
    world.settle()
    assert world.kubernetes.job.status.state == "Complete"


def test_one_that_hangs_where_the_kubelet_does_nothing_is_reported_and_left_to_a_person() -> None:
    world = World(Setup(seed=3, workers=2, total_steps=300))
    world.run(15.0)
    (hung,) = world.live_coordinators()
    hung.pod.lives += 1  # the kubelet's probe is of the life before
    hung.frozen = True
    world.run(120.0)
    status = world.kubernetes.job.status
    stalled = status.condition(ConditionType.STALLED)
    assert stalled
    assert (stalled.status, stalled.reason) == ("True", "CoordinatorUnreachable")
    assert not world.live_ranks(), "they were fenced"
    assert not status.holds(ConditionType.RUNNING)
    pod = world.kubernetes.pods[stalled.message.split()[-1]]
    assert isinstance(pod, Pod)
    world.kubernetes.force_delete(pod)
    world.run(60.0)
    assert world.live_ranks(), "as the message says"
