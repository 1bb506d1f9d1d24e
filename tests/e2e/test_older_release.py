"""An operator of this release finds a job of an earlier one, whose library stays in its image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import olderrelease
from lab.local.jobs import SCRIPTS, job
from lab.local.releases import Releases, image
from lab.waiting import wait_until

pytestmark = olderrelease.needed
NAME, KEEP = "older", 2


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[Releases]:
    running = Releases(tmp_path / "home")
    yield running
    running.stop()


def step(cluster: Releases) -> int:
    return int((cluster.status(NAME).get("checkpoint") or {}).get("step") or 0)


def wait_for_more(cluster: Releases, what: str) -> None:
    known = step(cluster)
    wait_until(f"a checkpoint {what}", lambda: step(cluster) > known)


def test_its_checkpoints_are_committed_and_pruned_by_an_agent_of_this_release(
    releases: Releases, tmp_path: Path
) -> None:
    older_tree = olderrelease.unpack(tmp_path / "tree")
    volume = tmp_path / "volume"
    checkpoint = {"volume": {"hostPath": {"path": str(volume)}}, "everySteps": 10, "keep": KEEP}
    command = ["python", str(SCRIPTS / "tiny.py"), "100000", "0.05"]
    releases.upgrade(older_tree)
    manifest = job(NAME, command, workers=1, torch=True, checkpoint=checkpoint)
    releases.create(manifest | {"spec": manifest["spec"] | {"image": image(older_tree)}})
    wait_for_more(releases, "of the earlier release")
    uids = releases.pod_uids(NAME)
    releases.upgrade(olderrelease.ROOT)
    wait_until("outdated", lambda: releases.condition(NAME, "Running").get("reason") == "CoordinatorOutdated")
    wait_for_more(releases, "after the upgrade")
    assert releases.pod_uids(NAME) == uids
    assert releases.status(NAME)["incidents"] == []

    releases.delete_pod(f"{NAME}-0-1")
    wait_until("another pod", lambda: releases.pod_uids(NAME).isdisjoint(uids))
    old = {path.name for path in volume.glob("*/step-*")}
    for _ in range(KEEP + 1):
        wait_for_more(releases, "of an agent of this release")
    wait_until("the rest is pruned", lambda: len({p.name for p in volume.glob("*/step-*")} - old) <= KEEP + 1)
    assert [each["stepsLost"] for each in releases.status(NAME)["incidents"]] == [0]
