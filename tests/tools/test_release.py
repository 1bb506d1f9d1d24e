"""Refusals of `make release`, and that it makes the same bytes each time. Images: see tests/cluster."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools import release
from tools.release import OPERATOR, ROOT, TRAINER, CannotRelease, Release, check, sbom

BASE = f"docker.io/library/python:3.11-slim-bookworm@sha256:{'0' * 64}"
VERSION = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
EPOCH = 1_700_000_000
WITHOUT_IMAGES = ("wheel", "chart", "sboms", "sums")


def made(folder: Path, epoch: int = EPOCH) -> Release:
    one = Release(VERSION, BASE, epoch, folder)
    folder.mkdir()
    for step in WITHOUT_IMAGES:
        getattr(one, step)()
    return one


def test_two_releases_of_one_commit_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = made(tmp_path / "1"), made(tmp_path / "2")
    sums = [(each.dist / "SHA256SUMS").read_text() for each in (first, second)]
    assert sums[0] == sums[1]
    assert len(sums[0].splitlines()) == len(WITHOUT_IMAGES[:-1]) + 1, "one SBOM for each image"
    later = made(tmp_path / "3", epoch=1_800_000_000)
    assert (later.dist / "SHA256SUMS").read_text() != sums[0], "times are those that were requested"


def test_the_sums_are_what_sha256sum_reads(tmp_path: Path) -> None:
    folder = made(tmp_path / "dist").dist
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 0
    (folder / f"ropeteam-{VERSION}.tgz").write_bytes(b"another")
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode != 0


def test_the_wheel_has_the_two_packages_and_nothing_of_tests_or_examples(tmp_path: Path) -> None:
    release = Release(VERSION, BASE, EPOCH, tmp_path)
    release.wheel()
    with zipfile.ZipFile(tmp_path / f"ropeteam-{VERSION}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
    folders = {"ropeteam", "ropeteam_trainer", f"ropeteam-{VERSION}.dist-info"}
    assert {name.split("/")[0] for name in names} == folders
    assert [name for name in names if "demo" in name] == []


def test_the_chart_is_its_folder_and_holds_nothing_of_this_machine(tmp_path: Path) -> None:
    file = made(tmp_path / "dist").dist / f"ropeteam-{VERSION}.tgz"
    assert int.from_bytes(file.read_bytes()[4:8], "little") == EPOCH
    with tarfile.open(file) as tar:
        entries = tar.getmembers()
    files = {str(path.relative_to(ROOT / "helm")) for path in (ROOT / "helm" / "ropeteam").rglob("*.*")}
    assert {each.name for each in entries} == files
    assert {(each.mtime, each.uid, each.gid, each.uname, each.mode) for each in entries} == {
        (EPOCH, 0, 0, "", 0o644)
    }


@pytest.mark.parametrize("image", [OPERATOR, TRAINER], ids=lambda image: image.name)
def test_an_sbom_names_what_the_image_installs_and_its_base(image: release.Image) -> None:
    document = sbom(image, Release(VERSION, BASE, 0))
    base, *packages = document["components"]
    assert f"{base['name']}@{base['version']}" == BASE
    given = (ROOT / "requirements" / f"{image.extras[0]}.txt").read_text()
    names = [each["name"] for each in packages]
    assert len(names) == len(set(names)), "one version of each: that of the image's Python"
    assert set(names) <= set(re.findall(r"^([\w.-]+)==", given, re.MULTILINE))
    for each in packages:
        assert f"{each['name']}=={each['version']}" in given
        hashes = [one["content"] for one in each["externalReferences"] for one in one["hashes"]]
        assert any(f"sha256:{one}" in given for one in hashes)
    references = {each["bom-ref"] for each in packages}
    assert {one for each in document["dependencies"] for one in each["dependsOn"]} <= references


@pytest.mark.parametrize(
    ("version", "base", "steps", "part"),
    [
        ("", BASE, ("wheel",), "VERSION is missing"),
        ("9.9.9", BASE, ("wheel",), "pyproject.toml has"),
        (VERSION, "docker.io/library/python:3.11", ("sboms",), "by its digest"),
        (VERSION, "docker.io/library/python@sha256:123", ("images",), "by its digest"),
        (VERSION, "", ("images",), "(none)"),
        (VERSION, BASE, ("wheel", "charts"), "charts"),
    ],
)
def test_a_release_that_cannot_be_made_is_refused(
    version: str, base: str, steps: tuple[str, ...], part: str
) -> None:
    with pytest.raises(CannotRelease, match=re.escape(part)):
        check(version, base, steps)


def test_images_without_buildah_or_root_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    check(VERSION, "", ("wheel", "chart", "sums"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRelease, match=r"as root.*STEPS="):
        check(VERSION, BASE, ("images",))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotRelease, match="apt-get install buildah"):
        check(VERSION, BASE, ("images",))


def test_every_requirement_has_hashes_and_all_are_of_the_lock() -> None:
    """That they are all of it is compared by `make check`."""
    lock = (ROOT / "uv.lock").read_text()
    for file in (ROOT / "requirements").iterdir():
        for entry in re.split(r"\n(?=\S)", file.read_text().strip()):
            hashes = re.findall(r"--hash=(sha256:\w+)", entry)
            assert "==" in entry
            assert hashes
            assert [each for each in hashes if each not in lock] == []


@pytest.mark.parametrize("image", [OPERATOR, TRAINER], ids=lambda image: image.name)
def test_images_install_by_hash_only(image: release.Image) -> None:
    text = (ROOT / image.dockerfile).read_text().replace("\\\n", " ")
    installs = re.findall(r"pip (?:--python \S+ )?install[^&\n]*", text)
    assert installs
    for command in installs:
        assert "--require-hashes" in command or "--no-index" in command, command
