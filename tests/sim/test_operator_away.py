"""The operator is away, training continues, and pods are lost before it returns: no job fails by that."""

from __future__ import annotations

import pytest
from tests.sim.kubelet import Kubelet
from tests.sim.world import Setup, World

from ropeteam.api.conditions import ConditionType
from ropeteam.core.seen.observation import Role


def away(seed: int, workers: int, feature_level: int, seconds: float) -> World:
    """A job whose operator dies after 15 s and is back `seconds` later, the coordinator and worker 0 being
    lost by then."""
    world = World(Setup(seed, workers=workers, feature_level=feature_level, total_steps=300, max_failures=5))
    world.kubernetes.kubelets += [Kubelet(f"spare-{n}", world.kubernetes) for n in range(workers + 2)]
    world.run(15.0)
    world.operator.kill()
    world.run(seconds)
    pods = world.kubernetes.pods.values()
    lost = [pod for pod in pods if pod.role is Role.COORDINATOR or pod.slot == 0]
    for kubelet in dict.fromkeys(pod.kubelet for pod in lost if pod.kubelet):
        kubelet.go_out_of_touch(power_too=True)
    world.run(1.0)
    world.operator.start()
    return world


SCENES = [(0, 2, 3, 20.0), (1, 1, 2, 20.0), (2, 3, 3, 60.0), (3, 1, 3, 2.0)]


@pytest.mark.parametrize(("seed", "workers", "feature_level", "seconds"), SCENES)
def test_no_checkpoint_that_status_names_is_pruned_while_the_operator_is_away(
    seed: int, workers: int, feature_level: int, seconds: float
) -> None:
    world = away(seed, workers, feature_level, seconds)
    before = world.kubernetes.job.status.checkpoint
    assert before is not None
    on_disk = {(ref.step, str(ref.world_id)) for ref in world.disk.found()}
    assert {(ref.step, ref.world) for ref in before.lineage} <= on_disk
    world.settle()
    assert world.kubernetes.job.status.holds(ConditionType.COMPLETE)
