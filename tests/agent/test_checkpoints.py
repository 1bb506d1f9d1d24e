"""Manifests and pruning on a real disk."""

from __future__ import annotations

import hashlib

import pytest
from tests.agent.life import a_ref

from ropeteam_trainer.agent.checkpoints import prune, write_manifest
from ropeteam_trainer.checkpoint.manifest import MANIFEST, Manifest, folder
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig, WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import ShardFile


def settings_in(path) -> WorkerConfig:
    return WorkerConfig("j", "n", "uid", 1, 2, 2, "h:1", checkpoint=CheckpointConfig(str(path)))


def saved(path, *places: tuple[int, int]) -> None:
    for step, n in places:
        where = path / folder(a_ref(step, n))
        where.mkdir(parents=True)
        (where / "state.pt").write_bytes(b"x")


def test_a_granted_manifest_is_written_and_named_by_its_digest(tmp_path):
    saved(tmp_path, (10, 1))
    grant = Grant(a_ref(10, 1, ""), 4, (ShardFile("state.pt", 1, "s"),), a_ref(5))
    ref = write_manifest(settings_in(tmp_path), grant)
    data = (tmp_path / "step-10/1.0.1" / MANIFEST).read_bytes()
    assert ref.digest == hashlib.sha256(data).hexdigest()
    assert codec.decode(Manifest, data).ref == ref
    assert write_manifest(settings_in(tmp_path), grant) == ref, "twice is the same as once"
    assert [path.name for path in (tmp_path / "step-10/1.0.1").iterdir() if path.name != "state.pt"] == [
        MANIFEST
    ]


def test_a_manifest_without_its_folder_is_an_error_to_try_again(tmp_path):
    with pytest.raises(OSError, match="step-10"):
        write_manifest(settings_in(tmp_path), Grant(a_ref(10, 1, ""), 4, (), None))


def test_pruning_keeps_the_lineage_and_what_is_newer(tmp_path):
    saved(tmp_path, (5, 1), (10, 1), (10, 2), (20, 2), (30, 2))
    (tmp_path / "notes").mkdir()
    deleted = prune(settings_in(tmp_path), (a_ref(20, 2), a_ref(10, 1)))
    assert sorted(deleted) == ["step-10/1.0.2", "step-5/1.0.1"]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert left == ["step-10/1.0.1", "step-20/1.0.2", "step-30/1.0.2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step-10", "step-20", "step-30"]
