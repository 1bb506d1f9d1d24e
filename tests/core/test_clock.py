"""A wall clock that steps back by an hour, or another operator's, makes nothing wait for an hour."""

from __future__ import annotations

from datetime import timedelta

from tests.builders import Change, Scene, a_running_job, edited, force_deleted, seconds, unreachable, written
from tests.core.test_release import a_half_placed_job

from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import CreatePod, DeletePod


def set_back(scene: Scene) -> Scene:
    return scene.but(now=scene.now - timedelta(hours=1))


def made_by(*changes: Change) -> list[str]:
    actions = decide(a_running_job(workers=2).after(*changes)).actions
    return [action.manifest["metadata"]["name"] for action in actions if isinstance(action, CreatePod)]


def test_a_lost_pod_is_made_again() -> None:
    assert made_by(force_deleted(0), written) == ["mnist-0-2"]
    assert made_by(force_deleted(0), written, set_back, written) == ["mnist-0-2"]


def test_what_begins_to_wait_anew_is_saved_before_anything_is_done() -> None:
    seen = a_running_job(workers=2).after(force_deleted(0), written, set_back)
    decision = decide(seen)
    assert decision.status != seen.status
    assert (decision.actions, decision.requeue_after_seconds) == ((), 0)


def test_a_drain_has_an_end() -> None:
    seen = a_running_job(workers=2).after(edited(suspend=True), written, unreachable, written, set_back)
    assert decide(seen.after(seconds(69), written)).actions == ()
    late = decide(seen.after(written, seconds(70), written))
    assert [type(action) for action in late.actions] == [DeletePod, DeletePod]


def test_a_gang_without_capacity_for_all_releases_its_pods_and_starts_again() -> None:
    cluster = a_half_placed_job()
    cluster.scene = cluster.scene.after(set_back)
    cluster.round()
    cluster.pass_time(151)
    assert cluster.round().status.backoff_end_time is not None
    cluster.scene = cluster.scene.after(set_back).but(pods=())
    cluster.round()
    cluster.pass_time(60)
    assert cluster.round().status.attempt == 2
