"""Checkpoints that are signed with the key of a Secret are trusted wherever that Secret is."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from lab.local.cluster import Cluster
from tests.e2e.test_recreated_jobs import recreated
from tests.e2e.test_training import tiny, trace

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.contract import seals

pytestmark = pytest.mark.timeout(600)
SECRETS = "/api/v1/namespaces/default/secrets"


def secret(cluster: Cluster, name: str, keys: str) -> None:
    """As `kubectl create secret generic NAME --from-literal=checkpoint-keys=KEYS`."""
    cluster.call("POST", SECRETS, {"metadata": {"name": name}, "stringData": {seals.FILE: keys}})


def signing(volume: Path, secret: str) -> dict[str, object]:
    source = {"hostPath": {"path": str(volume)}}
    return {"volume": source, "everySteps": 10, "signing": {"secretName": secret}}


def test_a_renamed_volume_is_trusted_by_who_names_the_same_secret_only(
    cluster: Cluster, name: str, tmp_path: Path
):
    key = secrets.token_hex(32)
    secret(cluster, f"{name}-mine", f"{key}\n")
    secret(cluster, f"{name}-other", secrets.token_hex(32))
    first, renamed = tmp_path / "volume", tmp_path / "restored"
    cluster.create(tiny(name, tmp_path, "20", workers=1, checkpoint=signing(first, f"{name}-mine")))
    cluster.wait_condition(name, "Complete")
    (tmp_path / "key").write_text(key)
    (saved,) = first.glob(f"*/run-*/step-20/*/{MANIFEST}")
    assert seals.is_valid(MANIFEST, saved.read_bytes(), seals.read_secret_keys(str(tmp_path / "key")))

    first.rename(renamed)
    recreated(cluster, name, tmp_path, 30, checkpoint=signing(renamed, f"{name}-other"))
    condition = cluster.wait_condition(name, "Failed")
    assert condition["reason"] == "CheckpointNotFound"
    assert "spec.checkpoint.signing" in condition["message"]

    recreated(cluster, name, tmp_path, 30, checkpoint=signing(renamed, f"{name}-mine"))
    cluster.wait_condition(name, "Complete")
    assert [line["step"] for line in trace(tmp_path, 0)] == list(range(1, 31))


def test_pods_wait_for_the_secret_and_the_job_has_a_condition(cluster: Cluster, name: str, tmp_path: Path):
    (tmp_path / "volume").mkdir()
    checkpoint = signing(tmp_path / "volume", f"{name}-keys")
    cluster.create(tiny(name, tmp_path, "10", workers=1, checkpoint=checkpoint))
    condition = cluster.wait_condition(name, "Stalled")
    assert condition["reason"] == "SecretNotFound"
    assert f'secret "{name}-keys" not found' in condition["message"]

    secret(cluster, f"{name}-keys", "too short")
    condition = cluster.wait_condition(name, "Failed")
    assert condition["reason"] == "CheckpointNotWritable"
    assert "line 1 of its entry checkpoint-keys is not a key" in condition["message"]
    assert not list((tmp_path / "volume").glob("*/run-*"))
