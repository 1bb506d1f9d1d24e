"""The cache of container images: what is not whole is not there, and so is built again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from lab.kube.oci import Layout

PARTS = ["manifest", "configuration", "layer"]


def blob(folder: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    return f"sha256:{digest}"


def layout_with(folder: Path, name: str) -> list[str]:
    """Digests in the order of PARTS."""
    (folder / "blobs" / "sha256").mkdir(parents=True)
    configuration, layer = blob(folder, b"configuration"), blob(folder, b"layer")
    manifest = {"config": {"digest": configuration}, "layers": [{"digest": layer}]}
    digest = blob(folder, json.dumps(manifest).encode())
    entry = {"digest": digest, "annotations": {"org.opencontainers.image.ref.name": name}}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return [digest, configuration, layer]


def test_an_image_is_all_its_blobs(tmp_path: Path) -> None:
    digests = layout_with(tmp_path, "one")
    assert Layout(tmp_path).blobs_of("one") == digests
    assert Layout(tmp_path).blobs_of("another") == []


@pytest.mark.parametrize("part", PARTS)
def test_an_image_without_one_of_its_blobs_is_not_there(tmp_path: Path, part: str) -> None:
    """As a build leaves it that was killed, or a cache that was copied in part."""
    missing = layout_with(tmp_path, "one")[PARTS.index(part)]
    blobs = tmp_path / "blobs" / "sha256"
    (blobs / missing.removeprefix("sha256:")).unlink()
    assert Layout(tmp_path).blobs_of("one") == []
    Layout(tmp_path).prune()
    assert list(blobs.iterdir()) == []
