"""The manifest: its content survives the way to disk, and its digest names exactly that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.checkpoint.decisions.manifest import Manifest, folder, parse_ref, ref_at, ref_text
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

numbers = st.integers(0, 10_000)
world_ids = st.builds(WorldId, term=numbers, boot=numbers, n=numbers)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
refs = st.builds(CheckpointRef, step=numbers, world_id=world_ids, digest=st.just("") | digests)
files = st.builds(ShardFile, name=st.text(), size=numbers, sha256=digests)
manifests = st.builds(
    Manifest,
    step=numbers,
    world_id=world_ids,
    world_size=numbers,
    job=st.text(),
    job_uid=st.text(),
    files=st.lists(files, max_size=4).map(tuple),
    parent=st.none() | refs,
)


@given(ref=refs)
def test_a_reference_survives_as_text(ref: CheckpointRef) -> None:
    assert parse_ref(ref_text(ref)) == ref
    assert parse_ref(folder(ref)) == replace(ref, digest="")


@given(ref=refs)
def test_the_names_of_its_folders_identify_a_checkpoint(ref: CheckpointRef) -> None:
    step, world = folder(ref).split("/")
    found = ref_at("uid", step, world)
    assert found == replace(ref, digest="")
    assert found.run == "uid"


@pytest.mark.parametrize(
    "names", ["step-x/1.0.1", "step-3/latest", "step-03/1.0.1", "3/1.0.1", "step-3/1_0.0.1"]
)
def test_names_that_we_do_not_write_are_no_checkpoints(names: str) -> None:
    assert ref_at("", *names.split("/")) is None


@given(manifest=manifests)
def test_a_manifest_survives_on_disk(manifest: Manifest) -> None:
    again = codec.decode(Manifest, manifest.to_bytes())
    assert again == manifest
    assert again.ref == manifest.ref


@given(manifest=manifests)
def test_the_digest_changes_with_the_content(manifest: Manifest) -> None:
    assert replace(manifest, world_size=manifest.world_size + 1).ref.digest != manifest.ref.digest


def test_names_in_json_are_those_of_every_release() -> None:
    """Manifests of earlier releases are read, and theirs read ours."""
    parent = CheckpointRef(2, WorldId(1, 0, 1), "cd", "uid")
    files = (ShardFile("state.pt", 7, "ab"),)
    assert Manifest(3, WorldId(1, 0, 2), 2, "job", "uid", files, parent).to_bytes() == (
        b'{"step":3,"epoch":{"term":1,"boot":0,"n":2},"world_size":2,"job":"job","job_uid":"uid",'
        b'"files":[{"name":"state.pt","size":7,"sha256":"ab"}],'
        b'"parent":{"step":2,"epoch":{"term":1,"boot":0,"n":1},"digest":"cd","run":"uid"},"format":1}'
    )
