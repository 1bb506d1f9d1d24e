"""The job's Secret is there when a pod mounts it, also after a deletion."""

from __future__ import annotations

import pytest
from tests.builders import Change, Scene, a_running_job, evicted, without_coordinator_pod, written

from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.questions.steady import ASSUMED_UP_TO_DATE_SECONDS
from ropeteam.core.seen.observation import ContainerSeen

MADE = ["create Secret mnist-5eed5eed-k1", "ensure the agent's Secret"]


def names(decision: Decision) -> list[str]:
    return [str(action).split(" (")[0] for action in decision.actions]


def waiting(**containers: ContainerSeen) -> Scene:
    seen = a_running_job(workers=1)
    first = seen.pods[-1].model_copy(update={"container": ContainerSeen(), **containers})
    return seen.but(pods=(*seen.pods[:-1], first)).after(written)


def test_a_missing_secret_is_made() -> None:
    assert names(decide(a_running_job().but(secret_exists=False))) == MADE


def test_a_job_that_makes_no_pod_does_not_request_it_again() -> None:
    assert decide(a_running_job().but(secret_age=1e6)).actions == ()


@pytest.mark.parametrize("loss", [evicted(slot=1), without_coordinator_pod])
def test_it_is_made_again_with_the_next_pod(loss: Change) -> None:
    seen = a_running_job().after(loss, written)
    for _ in range(3):  # the intent is saved, and the pause after a fault passes
        seen = seen.after(written)
    assert names(decide(seen.but(secret_age=ASSUMED_UP_TO_DATE_SECONDS)))[:2] == MADE
    assert MADE[0] not in names(decide(seen.but(secret_age=ASSUMED_UP_TO_DATE_SECONDS - 1))), (
        "it was there just now"
    )


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
@pytest.mark.parametrize("which", ["container", "init"])
def test_it_is_made_again_for_a_pod_that_waits_for_what_it_mounts(reason: str, which: str) -> None:
    seen = waiting(**{which: ContainerSeen(waiting_reason=reason)})
    assert names(decide(seen.but(secret_age=ASSUMED_UP_TO_DATE_SECONDS))) == MADE
    assert decide(seen.but(secret_age=0.0)).actions == ()


def test_who_waits_is_looked_at_again_when_that_may_be_doubted() -> None:
    seen = waiting(container=ContainerSeen(waiting_reason="ContainerCreating"))
    assert decide(seen.but(secret_age=58.0)).requeue_after_seconds == pytest.approx(2.0)
