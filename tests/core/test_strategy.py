"""spec.strategy on its way from the manifest to the ranks."""

from __future__ import annotations

import pytest
from tests.builders import a_job, a_running_job

from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import TrainingJobSpec
from ropeteam.core.decide import decide
from ropeteam.core.objects.workerpod import worker_pod
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.strategy import Parallelism, Sharding, Strategy


def test_ranks_receive_the_strategy_of_the_manifest() -> None:
    seen = a_running_job(strategy={"parallelism": {"shard": 2}, "sharding": "Gradients"})
    spec = TrainingJobSpec.model_validate(seen.spec)
    container = worker_pod(seen, spec, seen.status.slots[0])["spec"]["containers"][0]
    text = next(each["value"] for each in container["env"] if each["name"] == config.CONFIG)
    decoded = codec.decode(config.WorkerConfig, text)
    assert decoded.strategy == Strategy(Parallelism(shard=2), Sharding.GRADIENTS)


@pytest.mark.parametrize("more", [{}, {"processesPerWorker": 2}])
def test_a_strategy_that_does_not_fit_the_ranks_is_refused_before_a_pod_is_made(more: dict[str, int]) -> None:
    decision = decide(a_job(workers=4, strategy={"parallelism": {"tensor": 3}}, **more))
    assert decision.status.state == "Invalid"
    accepted = decision.status.condition(ConditionType.ACCEPTED)
    ranks = 4 * more.get("processesPerWorker", 1)
    assert accepted.message.startswith(
        f"spec.strategy.parallelism: tensor 3 x pipeline 1 does not divide {ranks} ranks"
    )
    assert decision.actions == ()
