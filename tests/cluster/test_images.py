"""The operator's image as it is released: the same bytes each time, and in it what its SBOM says.

The trainer's is made in the same way; twice its gigabytes are too much for a test.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from importlib.util import source_hash
from pathlib import Path
from typing import Any

import pytest
from lab.kube import images
from tests.tools.test_release import VERSION
from tools.release import OPERATOR, Release, build, sbom

EPOCH = 1_700_000_000
SITE = "opt/ropeteam/lib/python3.11/site-packages/"
Object = dict[str, Any]

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.skipif(bool(os.geteuid() or not shutil.which("buildah")), reason="needs buildah, as root"),
]


@pytest.fixture(scope="module")
def release() -> Release:
    images.base()
    digest = images.buildah(
        "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", images.PYTHON
    ).strip()
    return Release(VERSION, f"{images.PYTHON}@{digest}", EPOCH)


@pytest.fixture(scope="module")
def archives(release: Release, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPETEAM_BUILDAH", " ".join(("--pull-never", *images.CERTIFICATES)))
        made = [tmp_path_factory.mktemp("image") / f"{number}.tar" for number in (1, 2)]
        for each in made:
            build(OPERATOR, release, each)
    return made


class Archive:
    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            self._files = {each.name: tar.extractfile(each).read() for each in tar}
        self.manifest = self._json(json.load(self._file("index.json"))["manifests"][0]["digest"])
        self.config = self._json(self.manifest["config"]["digest"])

    def our_files(self) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """Of the layer above the base."""
        digest = self.manifest["layers"][-1]["digest"]
        with tarfile.open(fileobj=self._file(f"blobs/{digest.replace(':', '/')}")) as layer:
            return {each.name: (each, layer.extractfile(each).read()) for each in layer if each.isfile()}

    def _file(self, name: str) -> io.BytesIO:
        return io.BytesIO(self._files[name])

    def _json(self, digest: str) -> Object:
        found: Object = json.load(self._file(f"blobs/{digest.replace(':', '/')}"))
        return found


def test_two_builds_without_a_cache_are_the_same_bytes(archives: list[Path]) -> None:
    first, second = (Archive(path) for path in archives)
    ours, theirs = first.our_files(), second.our_files()
    assert [name for name in ours if ours[name][1] != theirs[name][1]] == []
    assert first.manifest == second.manifest
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_an_image_holds_what_its_sbom_lists_and_no_installer(archives: list[Path], release: Release) -> None:
    files = Archive(archives[0]).our_files()
    held = {
        name.split("/")[-2].removesuffix(".dist-info").lower().replace("_", "-")
        for name in files
        if name.endswith(".dist-info/METADATA")
    }
    named = {f"{each['name']}-{each['version']}" for each in sbom(OPERATOR, release)["components"][1:]}
    assert held == named | {f"ropeteam-{VERSION}"}


def test_bytecode_is_of_its_source_whatever_the_times_of_files(archives: list[Path]) -> None:
    files = Archive(archives[0]).our_files()
    assert {entry.mtime for entry, _ in files.values()} == {EPOCH}
    sources = [name for name in files if name.startswith(SITE) and name.endswith(".py")]
    assert len(sources) > 1000
    for name in sources:
        folder, _, module = name.rpartition("/")
        compiled = files[f"{folder}/__pycache__/{module[:-3]}.cpython-311.pyc"][1]
        # PEP 552: flags 1, by hash and unchecked; then the hash.
        assert compiled[4:16] == b"\1\0\0\0" + source_hash(files[name][1]), name


def test_nobody_in_it_is_root(archives: list[Path]) -> None:
    archive = Archive(archives[0])
    assert archive.config["config"]["User"] == "65532:65532"
    files = archive.our_files().values()
    assert {entry.uid for entry, _ in files} == {0}
    assert [entry.name for entry, _ in files if entry.mode & 0o022] == [], "and nobody may change our code"
