"""Why pods do not start, where the words must name a field or a container."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.test_conditions import condition, starting

from ropeteam.api.conditions import ConditionType
from ropeteam.core.seen.observation import ContainerSeen


def named(claim: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}}


def test_a_missing_claim_is_named_with_the_field_that_wants_it() -> None:
    seen = starting(
        scheduled_message='persistentvolumeclaim "ckpt" not found', checkpoint={"volume": named("ckpt")}
    )
    running = condition(seen, ConditionType.RUNNING)
    assert running.reason == "VolumeClaimNotBound"
    assert 'persistentvolumeclaim "ckpt" not found' in running.message
    assert "spec.checkpoint.volume requires it: create the claim ckpt" in running.message
    volumes = [{"name": "scratch", "emptyDir": {}}, {"name": "data", **named("datasets")}]
    spec = {"workers": 2, "command": ["x"], "template": {"spec": {"volumes": volumes}}}
    seen = starting(scheduled_message='persistentvolumeclaim "datasets" not found').but(spec=spec)
    message = condition(seen, ConditionType.STALLED).message
    assert "spec.template.spec.volumes[1] requires it: create the claim datasets" in message


def test_a_claim_without_a_volume_is_named_with_all_that_the_job_names() -> None:
    text = "pod has unbound immediate PersistentVolumeClaims"
    seen = starting(scheduled_message=text, checkpoint={"volume": named("ckpt")})
    message = condition(seen, ConditionType.STALLED).message
    assert (
        "The job's claims: ckpt (spec.checkpoint.volume); for the reason that one is not bound: kubectl"
        in message
    )
    assert (
        "The job's claims: none" in condition(starting(scheduled_message=text), ConditionType.STALLED).message
    )


@pytest.mark.parametrize(
    ("init", "reason", "expected"),
    [
        (
            {"running": True},
            "PodsStarting",
            "running; the trainer starts after it has ended: kubectl logs -n",
        ),
        (
            {"waiting_reason": "ErrImagePull"},
            "ImagePullFailed",
            "ErrImagePull. Correct its image in spec.template; if",
        ),
        (
            {"waiting_reason": "CrashLoopBackOff"},
            "CrashLoopBackOff",
            "exits again and again. For the last lines that it wrote: kubectl logs -n",
        ),
        (
            {"waiting_reason": "CreateContainerError"},
            "ContainerConfigError",
            "CreateContainerError. Correct what",
        ),
    ],
)
def test_an_init_container_that_keeps_a_pod_is_named(init: Any, reason: str, expected: str) -> None:
    seen = starting(node="node-0", init=ContainerSeen(name="fetch", **init))
    running = condition(seen, ConditionType.RUNNING)
    assert running.reason == reason
    assert f": init container fetch: {expected}" in running.message
    assert ("-c fetch" in running.message) == ("kubectl" in running.message)
    assert condition(seen, ConditionType.STALLED).holds != ("running" in init)
