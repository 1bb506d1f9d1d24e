"""The environment of a pod, read back as it was given, and the manifest's references."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.checkpoint.decisions.manifest import Manifest, folder, parse_ref, ref_text
from ropeteam_trainer.contract import codec, config, seals
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

NUMBERS = st.integers(0, 10**9)
REFS = st.builds(
    CheckpointRef,
    NUMBERS,
    st.builds(WorldId, NUMBERS, NUMBERS, NUMBERS),
    st.text("0123456789abcdef", max_size=64),
)


def an_environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("00ff\n")
    worker = config.WorkerConfig("job", "default", "uid", 1, 3, 2, "127.0.0.1:1")
    return {
        config.CONFIG: codec.encode(worker).decode(),
        config.SLOT: "1",
        config.INCARNATION: "2",
        config.POD_UID: "pod-uid",
        config.POD_IP: "127.0.0.2",
        config.TOKEN_FILE: str(tmp_path / "token"),
    }


def test_a_worker_reads_what_it_was_given(tmp_path: Path) -> None:
    worker, identity = config.read_worker(an_environment(tmp_path))
    assert worker == config.WorkerConfig("job", "default", "uid", 1, 3, 2, "127.0.0.1:1")
    assert identity == config.PodIdentity(1, 2, "pod-uid", "127.0.0.2", "", b"\x00\xff")


def test_keys_of_the_checkpoint_folder_lie_beside_the_token(tmp_path: Path) -> None:
    """Pods of a job that an earlier release has made find none."""
    file = tmp_path / seals.FILE
    file.write_text(seals.keys_text((b"new", b"old")))
    _, identity = config.read_worker(an_environment(tmp_path))
    assert (identity.keys_file, identity.keys) == (str(file), (b"new", b"old"))


@pytest.mark.parametrize(
    "name", [config.CONFIG, config.SLOT, config.INCARNATION, config.POD_UID, config.POD_IP]
)
def test_a_missing_variable_is_named(tmp_path: Path, name: str) -> None:
    environment = an_environment(tmp_path)
    del environment[name]
    with pytest.raises(KeyError, match=name):
        config.read_worker(environment)


def test_a_damaged_config_is_reported_with_its_field(tmp_path: Path) -> None:
    environment = {**an_environment(tmp_path), config.CONFIG: '{"job": 7}'}
    with pytest.raises(codec.DecodeError, match=r"WorkerConfig\.job: expected str, got 7"):
        config.read_worker(environment)


@given(ref=REFS)
def test_a_checkpoint_reference_is_read_back_from_its_text(ref: CheckpointRef) -> None:
    assert parse_ref(ref_text(ref)) == ref
    assert ref_text(ref).startswith(folder(ref))


@pytest.mark.parametrize("text", ["", "#", "step-1", "step-x/1.0.1#", "1/2/3", "step-1/1.0#aa"])
def test_other_text_is_no_checkpoint_reference(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        parse_ref(text)


def test_a_manifest_names_itself_by_its_own_digest() -> None:
    files = (ShardFile("state.pt", 3, "00"),)
    manifest = Manifest(5, WorldId(1, 0, 2), 3, "job", "uid", files, parent=None)
    other = Manifest(5, WorldId(1, 0, 2), 3, "job", "uid", (), parent=None)
    assert codec.decode(Manifest, manifest.to_bytes()) == manifest
    assert (manifest.ref.step, manifest.ref.world_id, len(manifest.ref.digest)) == (5, WorldId(1, 0, 2), 64)
    assert manifest.ref.digest != other.ref.digest
