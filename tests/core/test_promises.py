"""Properties that hold for every observation, however malformed (architecture, section 7)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from tests.builders import Scene, saved
from tests.core.observations import scenes

from ropeteam.api.status import JobStatus
from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import DeleteJob, DeletePod, DeleteService, PointService
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import build_view


def every_observation_has_an_answer_and_a_reason(seen: Scene) -> None:
    decision = decide(seen)
    assert decision.why.strip()
    assert decision.requeue_after_seconds is None or decision.requeue_after_seconds >= 0


def intent_comes_before_effect(seen: Scene) -> None:
    decision = decide(seen)
    if decision.status != seen.status and not seen.status.finished:
        assert decision.actions == ()
        assert decision.requeue_after_seconds == 0


def what_is_written_can_be_written_and_is_read_back_the_same(seen: Scene) -> None:
    text = json.dumps(decide(seen).status.to_json())
    assert JobStatus.model_validate(json.loads(text)) == decide(seen).status


def deciding_again_about_what_was_saved_comes_to_rest(seen: Scene) -> None:
    for _ in range(8):
        decision = decide(seen)
        if decision.status == seen.status:
            return
        seen = seen.after(saved(decision))
    raise AssertionError(f"still writes: {decision.why}")


def deletes_carry_a_uid(seen: Scene) -> None:
    for action in decide(seen).actions:
        if isinstance(action, DeletePod | DeleteService | DeleteJob | PointService):
            assert action.uid


def every_pod_is_in_exactly_one_bucket(seen: Scene) -> None:
    view = build_view(seen)
    found = [pod.uid for pods in view.pods.values() for pod in pods]
    assert sorted(found) == sorted(pod.uid for pod in seen.pods)


def terminal_is_final(seen: Scene) -> None:
    decision = decide(seen)
    if seen.status.finished:
        observed = {"observed_generation": decision.status.observed_generation}
        assert decision.status == seen.status.model_copy(update=observed)


def a_charge_is_never_forgotten_within_the_window(seen: Scene) -> None:
    decision = decide(seen)
    window = build_view(seen).spec.recovery.window_seconds
    recent = {
        each.id for each in seen.status.failures.charges if (seen.now - each.time).total_seconds() < window
    }
    assert recent <= {each.id for each in decision.status.failures.charges}


def numbers_of_pods_only_grow(seen: Scene) -> None:
    new = decide(seen).status
    assert new.attempt >= seen.status.attempt
    assert new.coordinator.term >= seen.status.coordinator.term
    before = {slot.slot: slot.incarnation for slot in seen.status.slots}
    assert all(slot.incarnation >= before.get(slot.slot, 1) for slot in new.slots)


def a_decision_can_be_replayed_from_a_file(seen: Scene) -> None:
    file = seen.model_dump_json()
    assert decide(Observation.model_validate_json(file)) == decide(seen)


PROMISES: tuple[Callable[[Scene], None], ...] = (
    every_observation_has_an_answer_and_a_reason,
    intent_comes_before_effect,
    what_is_written_can_be_written_and_is_read_back_the_same,
    deciding_again_about_what_was_saved_comes_to_rest,
    deletes_carry_a_uid,
    every_pod_is_in_exactly_one_bucket,
    terminal_is_final,
    a_charge_is_never_forgotten_within_the_window,
    numbers_of_pods_only_grow,
    a_decision_can_be_replayed_from_a_file,
)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seen=scenes)
def test_the_promises_hold_for_every_observation(promise: Callable[[Scene], None], seen: Scene) -> None:
    promise(seen)
