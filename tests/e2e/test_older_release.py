"""Operators of this release and of earlier ones follow each other; a job's library stays in its image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import olderrelease
from lab.local.jobs import SCRIPTS, job, ticking
from lab.local.releases import Releases, image
from lab.olderrelease import ROOT, STATUS_OF_NOW, OlderRelease
from lab.waiting import wait_until

from ropeteam.api.status import JobStatus
from ropeteam_trainer.contract import SIGNED

pytestmark = olderrelease.needed
NAME, KEEP = "older", 2


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[Releases]:
    running = Releases(tmp_path / "home")
    yield running
    running.stop()


@pytest.fixture
def tree(older: OlderRelease, tmp_path: Path) -> Path:
    return older.unpack(tmp_path / "tree")


def saving(tree: Path, volume: Path, **spec: Any) -> dict[str, Any]:
    """A job with the library of `tree` that saves every 10 steps and never ends."""
    checkpoint = {"volume": {"hostPath": {"path": str(volume)}}, "everySteps": 10, "keep": KEEP}
    command = ["python", str(SCRIPTS / "tiny.py"), "100000", "0.05"]
    return with_image(tree, job(NAME, command, workers=1, torch=True, checkpoint=checkpoint, **spec))


def with_image(tree: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    return {**manifest, "spec": manifest["spec"] | {"image": image(tree)}}


def step(cluster: Releases) -> int:
    return int((cluster.status(NAME).get("checkpoint") or {}).get("step") or 0)


def saved_steps(volume: Path) -> set[str]:
    """Where earlier releases and this one save."""
    return {path.name for where in ("*/step-*", "*/run-*/step-*") for path in volume.glob(where)}


def wait_for_more(cluster: Releases, what: str) -> None:
    known = step(cluster)
    wait_until(f"a checkpoint {what}", lambda: step(cluster) > known)


def wait_for_this_release(cluster: Releases) -> None:
    wait_until("status is saved anew", lambda: STATUS_OF_NOW in cluster.status(NAME))


@olderrelease.each
def test_a_running_job_goes_on_and_an_agent_of_this_release_commits_and_prunes(
    releases: Releases, older: OlderRelease, tree: Path, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    releases.install(tree)
    releases.create(saving(tree, volume))
    wait_for_more(releases, "of the earlier release")
    uids, before = releases.pod_uids(NAME), JobStatus.model_validate(releases.status(NAME))
    releases.install(ROOT)
    wait_for_this_release(releases)
    reason = "WorldRunning" if older.contract >= SIGNED else "CoordinatorOutdated"
    wait_until("the reason", lambda: releases.condition(NAME, "Running").get("reason") == reason)
    wait_for_more(releases, "after the upgrade")
    assert releases.pod_uids(NAME) == uids
    after = JobStatus.model_validate(releases.status(NAME))
    assert (after.attempt, after.slots, after.incidents) == (before.attempt, before.slots, ())

    releases.delete_pod(f"{NAME}-0-1")
    wait_until("another pod", lambda: releases.pod_uids(NAME).isdisjoint(uids))
    old = saved_steps(volume)
    for _ in range(KEEP + 1):
        wait_for_more(releases, "of an agent of this release")
    wait_until("the rest is pruned", lambda: len(saved_steps(volume) - old) <= KEEP + 1)
    assert [each["stepsLost"] for each in releases.status(NAME)["incidents"]] == [0]


@olderrelease.latest
def test_a_pod_that_may_live_is_remembered_while_the_definition_is_newer_than_the_operator(
    releases: Releases, tree: Path, tmp_path: Path
) -> None:
    """The pod was deleted by force, so nothing but time proves that it has ended."""

    def replaced() -> Any:
        return next(
            (each for each in releases.status(NAME).get("slots", ()) if each["incarnation"] == 2), None
        )

    recovery = {"fenceSeconds": 3600}
    releases.install(tree)
    releases.create(with_image(tree, ticking(NAME, tmp_path / "ticks", recovery=recovery)))
    releases.wait_condition(NAME, "Running")
    (uid,) = (
        pod["metadata"]["uid"] for pod in releases.pods(NAME) if pod["metadata"]["name"] == f"{NAME}-1-1"
    )
    releases.define(ROOT)
    releases.delete_pod(f"{NAME}-1-1", grace=0)
    slot = wait_until(
        "the new pod, in a later write", lambda: (found := replaced()) and found["podUid"] and found
    )
    assert (slot["oldPodUid"], slot["oldPodGone"]) == (uid, False)
    releases.operate(ROOT)
    wait_for_this_release(releases)
    assert (replaced()["previousPodUID"], replaced()["previousPodFenced"]) == (uid, False)


@olderrelease.latest
def test_after_a_rollback_a_job_that_is_created_again_resumes(
    releases: Releases, tree: Path, tmp_path: Path
) -> None:
    """As docs/install.md says: suspended, deleted, and created again under the older release."""
    volume = tmp_path / "volume"
    releases.install(ROOT)
    releases.create(saving(tree, volume))
    wait_for_more(releases, "of this release")
    releases.patch(NAME, {"suspend": True})
    releases.wait_condition(NAME, "Suspended")
    saved = step(releases)
    releases.delete(NAME)
    wait_until("no pod is left", lambda: not releases.pods(NAME, role=None))
    releases.install(tree)
    releases.create(saving(tree, volume, resume={"policy": "Latest"}))
    wait_until("it resumes", lambda: step(releases) > saved)
    assert releases.status(NAME)["incidents"] == []
