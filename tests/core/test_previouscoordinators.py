"""A coordinator that may still live keeps its agents alive: below feature level 2 its end must be proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import (
    Scene,
    a_report,
    a_running_job,
    edited,
    force_deleted,
    seconds,
    unreachable,
    without_coordinator_pod,
    written,
)

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import PreviousCoordinatorStatus
from ropeteam.core.decide import decide
from ropeteam.core.seen.names import COORDINATORS_ENDED
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role, SilentCoordinator
from ropeteam.core.seen.previouscoordinators import MAX_COORDINATORS
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.fence import longest_lease

NODE = "node-0"


def an_island(feature_level: int = 0) -> Scene:
    """Coordinator and slot 1 are gone without a proof; their successors run and wait for one another."""
    seen = a_running_job(workers=2)
    seen = seen.but(status=seen.status.model_copy(update={"feature_level": feature_level}))
    seen = seen.after(without_coordinator_pod, force_deleted(1), written, written)
    fresh = (
        PodSeen(name="mnist-coordinator-2", uid="c2", role=Role.COORDINATOR, term=2, node="node-8"),
        PodSeen(name="mnist-1-2", uid="w2", role=Role.WORKER, slot=1, incarnation=2, node="node-8"),
    )
    up = {"phase": "Running", "container": ContainerSeen(running=True)}
    seen = seen.but(pods=(*seen.pods, *(pod.model_copy(update=up) for pod in fresh))).after(written)
    report = a_report(seen, WorldPhase.FORMING, why="waiting for proof", feature_level=feature_level)
    return seen.but(report=replace(report, slots={"1": report.slots["1"]})).after(written)


def previous_terms(seen: Scene) -> tuple[int, ...]:
    return tuple(each.term for each in decide(seen).status.coordinator.previous)


def gone(seen: Scene) -> bool:
    return decide(seen).status.slots[1].previous_pod_fenced


def test_a_coordinator_without_a_proof_of_its_end_is_remembered_and_status_shows_what_is_awaited() -> None:
    seen = an_island()
    (left,) = seen.status.coordinator.previous
    assert (left.term, left.node) == (1, NODE)
    assert previous_terms(seen) == (1,)
    stalled = decide(seen).status.condition(ConditionType.STALLED)
    assert stalled
    assert (stalled.holds, stalled.reason) == (True, "PreviousCoordinatorMayRun")
    assert (
        f"(pod mnist-coordinator-1 on node {NODE}), and with it a previous pod of slot 1" in stalled.message
    )
    assert stalled.message.endswith(
        f"kubectl annotate trainingjob -n lab mnist {COORDINATORS_ENDED}=1 --overwrite"
    )


@pytest.mark.parametrize("newest", [3, 10**9])
def test_those_that_a_restored_status_does_not_know_may_live(newest: int) -> None:
    """Agents report them; of their pods one is seen."""
    seen = a_running_job(workers=2)
    name = f"mnist-coordinator-{newest - 1}"
    ahead = PodSeen(name=name, uid="c2", role=Role.COORDINATOR, term=newest - 1, node="node-7")
    report = replace(a_report(seen, WorldPhase.RUNNING), newer_term=newest)
    known = decide(seen.but(pods=(*seen.pods, ahead), report=report)).status.coordinator
    assert known.term == newest + 1
    assert [(each.term, each.node) for each in known.previous[-2:]] == [(newest - 1, "node-7"), (newest, "")]
    assert len(known.previous) <= MAX_COORDINATORS
    if newest == 3:
        assert [(each.term, each.node) for each in known.previous[:-2]] == [(1, NODE)]


@pytest.mark.parametrize(
    "proof",
    [
        {"dead_nodes": (NODE,)},
        {"annotation": "1"},
        {"annotation": "7"},
        {"pod": {"phase": "Failed", "container": ContainerSeen(exit_code=143)}},
        {"was_seen_to_end": True},
    ],
)
def test_what_proves_its_end(proof: dict[str, Any]) -> None:
    assert previous_terms(with_proof(an_island(), **proof)) == ()


@pytest.mark.parametrize(
    "proof",
    [
        {"dead_nodes": ("node-9",)},
        {"annotation": "0"},
        {"annotation": "yes"},
        {"pod": {"phase": "Running", "container": ContainerSeen(exit_code=143), "deleting": True}},
        {"pod": {"phase": "Failed", "container": ContainerSeen(running=True)}},
        {"pod": {"phase": "Failed", "reason": "DeletionByPodGC", "container": ContainerSeen(exit_code=1)}},
    ],
)
def test_what_does_not_prove_its_end(proof: dict[str, Any]) -> None:
    assert previous_terms(with_proof(an_island(), **proof)) == (1,)


def with_proof(
    seen: Scene,
    dead_nodes: tuple[str, ...] = (),
    annotation: str = "",
    pod: dict[str, Any] | None = None,
    was_seen_to_end: bool = False,
) -> Scene:
    seen = seen.but(dead_nodes=dead_nodes)
    if was_seen_to_end:
        seen = seen.but(ended_pods=(seen.status.coordinator.previous[0].pod_uid,))
    if annotation:
        seen = seen.but(
            metadata=seen.metadata.model_copy(update={"annotations": {COORDINATORS_ENDED: annotation}})
        )
    if pod is not None:
        uid = seen.status.coordinator.previous[0].pod_uid
        old = PodSeen(name="mnist-coordinator-1", uid=uid, role=Role.COORDINATOR, term=1, node=NODE, **pod)
        seen = seen.but(pods=(*seen.pods, old))
    return seen


def test_a_previous_pod_that_was_seen_to_end_writes_no_more() -> None:
    seen = an_island()
    assert not gone(seen)
    assert gone(seen.but(ended_pods=(seen.status.slots[1].previous_pod_uid,)))


def leased(seen: Scene, seconds: int = 20) -> Scene:
    """The former coordinator was made with recovery.selfFence."""
    (old,) = seen.status.coordinator.previous
    promised = (old.model_copy(update={"lease_seconds": seconds}),)
    coordinator = seen.status.coordinator.model_copy(update={"previous": promised})
    return seen.but(status=seen.status.model_copy(update={"coordinator": coordinator})).after(written)


def without_contact(seen: Scene, seconds: float) -> Scene:
    return seen.but(silent_coordinators=(SilentCoordinator(term=1, seconds=seconds),))


@given(st.integers(10, 3600))
def test_a_lease_that_has_run_out_needs_no_proof(lease: int) -> None:
    seen = leased(an_island(), lease)
    over = longest_lease(lease)
    assert previous_terms(without_contact(seen, over - 0.01)) == (1,)
    assert previous_terms(without_contact(seen, over)) == ()
    again = decide(without_contact(seen, over - 1)).requeue_after_seconds
    assert again is not None
    assert again <= 1
    assert not gone(without_contact(seen, over)), "the fence is counted from there"


def test_a_job_that_waits_for_a_lease_needs_no_person_and_status_shows_it() -> None:
    seen = leased(an_island())
    running, stalled = (
        decide(seen).status.condition(kind) for kind in (ConditionType.RUNNING, ConditionType.STALLED)
    )
    assert stalled
    assert running
    assert (stalled.holds, running.reason) == (False, "PreviousCoordinatorMayRun")
    assert running.message.endswith(
        "The job continues by itself when no operator has had contact with that coordinator for 20 s "
        "(spec.recovery.selfFence), and spec.recovery.fenceSeconds later."
    )


def test_a_coordinator_is_remembered_with_its_promise() -> None:
    recovery = {"selfFence": True, "fenceSeconds": 30}
    seen = a_running_job(workers=2, recovery=recovery)
    assert seen.status.coordinator.lease_seconds == 30
    without = {**recovery, "selfFence": False}
    seen = seen.after(edited(recovery=without), without_coordinator_pod, written)
    (left,) = seen.status.coordinator.previous
    assert (left.lease_seconds, seen.status.coordinator.lease_seconds) == (30, 0)


def test_a_lease_that_is_over_when_its_coordinator_is_lost_is_not_waited_for_again() -> None:
    seen = a_running_job(workers=2, recovery={"selfFence": True})
    assert previous_terms(without_contact(seen, 200.0).after(without_coordinator_pod, written)) == ()


def test_after_the_proof_the_fence_is_counted_from_there() -> None:
    seen = with_proof(an_island(), annotation="1").after(written)
    assert not gone(seen.but(held_slots=()).after(seconds(129)))
    assert gone(seen.but(held_slots=()).after(seconds(130)))


def test_an_agent_of_the_present_coordinator_is_not_with_a_previous_one() -> None:
    seen = a_running_job(workers=2)
    seen = seen.after(without_coordinator_pod, written)
    assert previous_terms(seen) == (1,)
    obeying = a_report(seen)
    stale = {slot: replace(each, term=1) for slot, each in obeying.slots.items()}
    assert previous_terms(seen.but(report=replace(obeying, slots=stale))) == (1,), (
        "it has not heard the new term yet"
    )
    assert previous_terms(seen.but(report=obeying)) == ()


def test_from_feature_level_2_on_the_storage_decides() -> None:
    seen = an_island(feature_level=2)
    assert previous_terms(seen) == ()
    assert decide(seen).status.condition(ConditionType.STALLED).reason != "PreviousCoordinatorMayRun"


def test_a_suspended_job_remembers_it_too() -> None:
    seen = a_running_job(workers=1)
    seen = seen.after(edited(suspend=True), written, unreachable, seconds(80), written)
    seen = seen.but(pods=()).after(written)
    assert seen.status.state == "Suspended"
    assert [each.term for each in seen.status.coordinator.previous] == [1]


def test_of_too_many_the_oldest_two_become_one_that_only_a_person_knows() -> None:
    seen = a_running_job(workers=1)
    many = tuple(
        PreviousCoordinatorStatus(term=n, pod_uid=f"u{n}", node="n") for n in range(MAX_COORDINATORS)
    )
    old = seen.status.coordinator.model_copy(
        update={"term": MAX_COORDINATORS, "previous": many, "node": NODE}
    )
    seen = seen.but(status=seen.status.model_copy(update={"coordinator": old}), pods=(), report=None)
    left = decide(seen).status.coordinator.previous
    assert [each.term for each in left] == [*range(1, MAX_COORDINATORS + 1)]
    assert (left[0].pod_uid, left[0].node) == ("", "")
