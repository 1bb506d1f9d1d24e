"""The operator's key is changed: running jobs keep their own, new jobs get the new one."""

from __future__ import annotations

import base64
import os
import secrets
import signal
from pathlib import Path

import pytest
from lab.local.cluster import Cluster, files
from lab.waiting import wait_until
from tests.e2e.test_recreated_jobs import recreated
from tests.e2e.test_training import slowly, tiny, trace, wait_step

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.contract import seals

pytestmark = pytest.mark.timeout(600)


def change_key(cluster: Cluster) -> None:
    key, previous = cluster.home / "operator.key", cluster.home / "operator.key.previous"
    known = previous.read_text() if previous.exists() else ""
    previous.write_text(key.read_text() + known)
    key.write_text(secrets.token_hex(48) + "\n")
    os.kill(cluster.operator_pid(), signal.SIGKILL)  # another one reads them when it starts


def secrets_of(cluster: Cluster, name: str) -> set[str]:
    """Secret that the job's pods mount."""
    volumes = [volume for pod in cluster.pods(name, None) for volume in pod["spec"]["volumes"]]
    return {each["secret"]["secretName"] for each in volumes if each["name"] == "ropeteam-token"}


def keys_in(cluster: Cluster, secret: str, folder: Path) -> seals.Keys:
    held = cluster.call("GET", f"/api/v1/namespaces/default/secrets/{secret}")["data"]
    (folder / "keys").write_bytes(base64.b64decode(held[seals.FILE]))
    return seals.read_keys(str(folder / "keys"))


def newest_manifest(folder: Path) -> tuple[int, Path]:
    """With its step. Older ones may be pruned while one looks."""
    found = (file for file in files(folder / "volume") if file.name == MANIFEST)
    return max((int(file.parts[-3].removeprefix("step-")), file) for file in found)


def test_a_running_job_and_its_checkpoints_outlive_a_change_of_the_key(
    cluster: Cluster, name: str, tmp_path: Path
):
    cluster.create(tiny(name, tmp_path, "60", "0.05", workers=2))
    wait_step(tmp_path, 12)
    with slowly(tmp_path):
        (old,) = secrets_of(cluster, name)
        change_key(cluster)
        cluster.delete_pod(f"{name}-1-1")
        wait_step(tmp_path, 1, world_number=2)
    wait_step(tmp_path, 20, world_number=2)
    assert secrets_of(cluster, name) == {old}
    cluster.wait_condition(name, "Complete")
    assert max(line["step"] for line in trace(tmp_path, 0)) == 60

    recreated(cluster, name, tmp_path, 2000)
    wait_step(tmp_path, 61, world_number=1)
    (new,) = secrets_of(cluster, name)
    assert new.rpartition("-")[2] != old.rpartition("-")[2]
    first, *_ = keys_in(cluster, new, tmp_path)
    wait_until("a manifest", lambda: newest_manifest(tmp_path)[0] > 60)
    assert seals.is_valid(MANIFEST, newest_manifest(tmp_path)[1].read_bytes(), (first,))
    steps = [line["step"] for line in trace(tmp_path, 0)]
    assert steps[steps.index(60) + 1] == 61, "it went on from what was signed with the key of before"
