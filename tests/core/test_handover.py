"""The successor of a terminating pod is created at once; the old one holds its slot until it saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.builders import (
    Change,
    Scene,
    a_running_job,
    deleted,
    reporting,
    seconds,
    silent,
    unreachable,
    written,
)

from ropeteam.api.status import SlotStatus
from ropeteam.core import deadlines
from ropeteam.core.decide import decide
from ropeteam.core.seen.observation import ContainerSeen
from ropeteam_trainer.contract.desired import SlotDesired, WorldPhase
from ropeteam_trainer.contract.world import Cause

FENCE_AND_MARGIN = 130


def slot(scene: Scene) -> SlotStatus:
    return decide(scene).status.slots[1]


def desired_slot(scene: Scene) -> SlotDesired:
    desired = decide(scene).desired
    assert desired is not None
    return desired.slots["1"]


def handed(grace: float = 70) -> Scene:
    """The pod of slot 1 is terminating; its successor has been made and runs."""
    seen = a_running_job().after(deleted(1, grace), written)
    (pod,) = [pod for pod in seen.pods if pod.name == "mnist-1-1"]
    running = {"phase": "Running", "node": "node-9", "container": ContainerSeen(running=True)}
    new = {"name": "mnist-1-2", "uid": "new", "incarnation": 2, "deleting": False, "delete_at": None}
    return seen.but(pods=(*seen.pods, pod.model_copy(update=new | running))).after(written)


def the_old_pod(**fields: Any) -> Change:
    def change(scene: Scene) -> Scene:
        pods = (each.model_copy(update=fields) if each.name == "mnist-1-1" else each for each in scene.pods)
        return scene.but(pods=tuple(pods))

    return change


def the_old_pod_vanishes(scene: Scene) -> Scene:
    return scene.but(pods=tuple(pod for pod in scene.pods if pod.name != "mnist-1-1"))


def test_a_successor_is_decided_on_at_once_and_made_in_the_next_round() -> None:
    seen = a_running_job().after(deleted(1))
    decision = decide(seen)
    assert decision.why == "slot 1: terminating, incarnation 2"
    assert (slot(seen).incarnation, slot(seen).handover_pending) == (2, True)
    assert decision.status.incidents == (), "nothing is lost yet"
    assert [str(action) for action in decide(seen.after(written)).actions] == [
        "ensure the agent's Secret",
        "create Pod mnist-1-2",
    ]


def test_the_coordinator_knows_of_the_old_pod_only_until_it_has_saved() -> None:
    old = a_running_job().worker(1)
    for seen in (a_running_job().after(deleted(1)), a_running_job().after(deleted(1), written), handed()):
        assert (
            desired_slot(seen).incarnation,
            desired_slot(seen).pod_uid,
            desired_slot(seen).terminating,
        ) == (1, old.uid, True)
    assert decide(handed()).requeue_after_seconds == deadlines.URGENT_POLL_SECONDS
    assert decide(handed()).actions == ()


@pytest.mark.parametrize(
    "over",
    [
        reporting(phase=WorldPhase.FORMING),
        silent(1),
        the_old_pod(container=ContainerSeen(exit_code=143)),
        the_old_pod_vanishes,
        seconds(76),
    ],
)
def test_the_successor_takes_over_when_nothing_can_be_saved_any_more(over: Change) -> None:
    seen = handed().after(over)
    decision = decide(seen)
    assert decision.why == "slot 1: the new pod replaces the terminating one"
    assert (slot(seen).incarnation, slot(seen).handover_pending, slot(seen).replacement_time) == (
        2,
        False,
        seen.now,
    )
    assert (desired_slot(seen).incarnation, desired_slot(seen).pod_uid, desired_slot(seen).terminating) == (
        2,
        "new",
        False,
    )
    assert [each.cause for each in decision.status.incidents] == [Cause.POD_DELETED]
    assert not decision.status.incidents[0].charged


def test_the_incident_shows_what_kubernetes_reports() -> None:
    seen = handed().after(the_old_pod(reason="Evicted", container=ContainerSeen(exit_code=143)))
    assert [each.cause for each in decide(seen).status.incidents] == [Cause.EVICTED]


def test_the_fence_begins_when_the_old_pod_has_given_up_the_slot() -> None:
    seen = handed(grace=3600).after(seconds(FENCE_AND_MARGIN))
    assert not slot(seen).previous_pod_fenced, "it trains"
    seen = seen.after(the_old_pod_vanishes, written)
    assert not slot(seen.after(seconds(FENCE_AND_MARGIN - 1))).previous_pod_fenced
    assert slot(seen.after(seconds(FENCE_AND_MARGIN))).previous_pod_fenced


@pytest.mark.parametrize("unknown", [unreachable, reporting(phase=WorldPhase.WAITING)])
def test_while_nobody_knows_whether_the_world_saves_everything_stays(unknown: Change) -> None:
    seen = a_running_job().after(deleted(1), unknown)
    assert (slot(seen).incarnation, desired_slot(seen).incarnation) == (1, 1)
    seen = handed().after(unknown)
    assert (slot(seen).handover_pending, desired_slot(seen).incarnation) == (True, 1)


def test_a_slot_whose_pod_before_the_last_may_still_write_waits() -> None:
    seen = a_running_job().after(deleted(1))
    slots = [each.model_copy(update={"previous_pod_fenced": each.slot != 1}) for each in seen.status.slots]
    assert slot(seen.but(status=seen.status.model_copy(update={"slots": tuple(slots)}))).incarnation == 1


def test_a_successor_that_is_lost_has_one_of_its_own_and_the_old_pod_is_not_held_any_more() -> None:
    seen = handed()
    seen = seen.but(pods=tuple(pod for pod in seen.pods if pod.name != "mnist-1-2"))
    assert (slot(seen).incarnation, slot(seen).handover_pending, desired_slot(seen).incarnation) == (
        3,
        False,
        3,
    )
    assert not slot(seen).previous_pod_fenced


def preserved(scene: Scene) -> Scene:
    """The world of slot 1 has ended, and its ranks continue."""
    assert scene.report is not None
    slots = scene.report.slots | {"1": replace(scene.report.slots["1"], preserved=True)}
    return scene.after(reporting(phase=WorldPhase.FORMING, slots=slots))


def test_a_terminating_pod_whose_ranks_continue_without_others_holds_its_slot() -> None:
    """The ranks may still save."""
    seen = a_running_job().after(preserved, deleted(1))
    assert decide(seen).why == "slot 1: terminating, incarnation 2"
    assert (slot(seen).incarnation, slot(seen).handover_pending) == (2, True)
    seen = handed().after(preserved)
    assert (slot(seen).handover_pending, desired_slot(seen).incarnation) == (True, 1)
    seen = seen.after(reporting(phase=WorldPhase.FORMING))
    assert slot(seen).handover_pending
    assert not slot(seen.after(silent(1))).handover_pending, "its agent is gone"


def test_it_is_replaced_at_once_if_its_world_has_ended() -> None:
    seen = a_running_job().after(reporting(phase=WorldPhase.FORMING), deleted(1))
    assert (slot(seen).incarnation, slot(seen).handover_pending) == (2, False)


def test_ranks_that_continue_in_an_earlier_pod_do_not_hold_the_slot() -> None:
    seen = handed().after(preserved)
    assert seen.report is not None
    slots = seen.report.slots | {"1": replace(seen.report.slots["1"], incarnation=2)}
    assert not slot(seen.after(reporting(slots=slots))).handover_pending
