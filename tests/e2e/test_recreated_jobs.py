"""A job that is deleted and created again resumes from what the previous one signed, and else by its resume
policy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lab.local.cluster import Cluster
from lab.waiting import wait_until
from tests.e2e.test_training import tiny, trace

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, Manifest
from ropeteam_trainer.contract import codec

pytestmark = pytest.mark.timeout(600)


def recreated(cluster: Cluster, name: str, folder: Path, steps: int, **spec: object) -> None:
    cluster.call("DELETE", f"/apis/ropeteam.dev/v1alpha1/namespaces/default/trainingjobs/{name}")
    wait_until("the former job gone", lambda: cluster.job(name) is None and not cluster.pods(name, None))
    cluster.create(tiny(name, folder, str(steps), workers=1, **spec))


def unsigned(path: Path, step: int) -> None:
    """As somebody without a key writes it, or an earlier release."""
    path.write_bytes(replace(codec.decode(Manifest, path.read_bytes()), step=step).to_bytes())


def test_it_goes_on_from_what_is_signed(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(tiny(name, tmp_path, "20", workers=1))
    cluster.wait_condition(name, "Complete")
    (signed,) = (tmp_path / "volume").glob("*/run-*/step-20/*")
    planted = signed.parent.parent / "step-1000" / signed.name
    shutil.copytree(signed, planted)
    unsigned(planted / MANIFEST, 1000)

    recreated(cluster, name, tmp_path, 30)
    cluster.wait_condition(name, "Complete")
    assert [line["step"] for line in trace(tmp_path, 0)] == list(range(1, 31))

    shutil.rmtree(planted)
    for path in (tmp_path / "volume").glob(f"*/run-*/step-*/*/{MANIFEST}"):
        unsigned(path, int(path.parts[-3].removeprefix("step-")))
    recreated(cluster, name, tmp_path, 40)
    condition = cluster.wait_condition(name, "Failed")
    assert condition["reason"] == "CheckpointNotFound"
    assert "step-30/" in condition["message"]
    assert "spec.resume.trust Any" in condition["message"]

    recreated(cluster, name, tmp_path, 40, resume={"trust": "Any"})
    cluster.wait_condition(name, "Complete")
    assert [line["step"] for line in trace(tmp_path, 0)] == list(range(1, 41))
