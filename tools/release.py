"""The parts of a release, made from this commit into dist/: `make release VERSION=x.y.z`.

    wheel     the Python package
    chart     the Helm chart, .tgz
    sboms     the contents of each image, CycloneDX, from uv.lock
    images    operator and trainer as OCI archives, for this machine's architecture, and the digest of each
              (buildah, root)
    sums      SHA256SUMS over all of it: what is signed
In this order, into an empty dist/; `make release STEPS="wheel chart"` makes these only. Promise: the same
commit, base image and SOURCE_DATE_EPOCH (default: the commit's time) give the same bytes, so anybody can
check a release by making it. Limits: an SBOM names the base image by its digest, and does not list the
contents of that; nothing is signed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "ropeteam"
STEPS = ("wheel", "chart", "sboms", "images", "sums")
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.0"}
"""Of the images, as their Dockerfiles say."""
Object = dict[str, Any]


class CannotRelease(Exception):
    """A part is missing or does not fit; the message has the way out."""


@dataclass(frozen=True)
class Image:
    name: str
    dockerfile: str
    extras: tuple[str, ...]
    """Of our package, as in requirements/."""


OPERATOR = Image("ropeteam", "Dockerfile", ("operator",))
TRAINER = Image("trainer", "trainer-image/Dockerfile", ("trainer", "recipes"))


@dataclass(frozen=True)
class Release:
    version: str
    base: str
    """The image that ours are built from; with its digest wherever it matters."""
    epoch: int
    """The time that all files have, in seconds."""
    dist: Path = ROOT / "dist"

    def wheel(self) -> None:
        _run("hatchling", "build", "-t", "wheel", "-d", str(self.dist), SOURCE_DATE_EPOCH=str(self.epoch))

    def chart(self) -> None:
        with gzip.GzipFile(self.dist / f"ropeteam-{self.version}.tgz", "wb", mtime=self.epoch) as file:
            _pack(CHART, "ropeteam", file, self.epoch)

    def sboms(self) -> None:
        for image in (OPERATOR, TRAINER):
            text = json.dumps(sbom(image, self), indent=1)
            (self.dist / f"{image.name}-{self.version}.cdx.json").write_text(text + "\n")

    def images(self) -> None:
        for image in (OPERATOR, TRAINER):
            build(image, self, self.dist / f"{image.name}-{self.version}.oci.tar")

    def sums(self) -> None:
        every = sorted(path for path in self.dist.iterdir() if self.version in path.name)
        lines = [f"{_sha256(path)}  {path.name}\n" for path in every]
        (self.dist / "SHA256SUMS").write_text("".join(lines))


def check(version: str, base: str, steps: Collection[str]) -> None:
    """Before anything is made. Raises CannotRelease."""
    if unknown := set(steps) - set(STEPS):
        raise CannotRelease(f"STEPS has {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    check_version(version)
    if {"sboms", "images"} & set(steps) and not re.search(r"@sha256:[0-9a-f]{64}$", base):
        raise CannotRelease(
            f"the base image {base or '(none)'} may be another tomorrow: name it by its digest,"
            " PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:..."
            " (skopeo inspect --format '{{.Digest}}' docker://docker.io/library/python:3.11-slim-bookworm)"
        )
    if "images" in steps and (os.geteuid() or not shutil.which("buildah")):
        raise CannotRelease(
            "images are built by buildah (apt-get install buildah), as root; or leave them to another"
            ' machine: STEPS="wheel chart sboms sums"'
        )


def check_version(version: str) -> None:
    """Every place that names this version names the same. Raises CannotRelease."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    versions = {
        "pyproject.toml": project and project[1],
        "version in Chart.yaml": about["version"],
        "appVersion in Chart.yaml": about["appVersion"],
    }
    if wrong := [f"{place} has {found}" for place, found in versions.items() if found != version]:
        raise CannotRelease(f"VERSION is {version or 'missing'}, but {', '.join(wrong)}: make them one")


def sbom(image: Image, release: Release) -> Object:
    """The packages of uv.lock that this image gets, with their hashes, and its base."""
    extra_flags = [argument for extra in image.extras for argument in ("--extra", extra)]
    preview = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")
    document: Object = json.loads(_run("uv", "export", "--quiet", "--frozen", *preview, *extra_flags))
    packages = [each for each in document["components"] if _is_installed(each)]
    references = {each["bom-ref"] for each in packages} | {document["metadata"]["component"]["bom-ref"]}
    name, _, digest = release.base.partition("@")
    document["components"] = [{"type": "container", "name": name, "version": digest}, *packages]
    document["dependencies"] = [
        each | {"dependsOn": [one for one in each.get("dependsOn", ()) if one in references]}
        for each in document["dependencies"]
        if each["ref"] in references
    ]
    document["metadata"]["timestamp"] = datetime.fromtimestamp(release.epoch, UTC).isoformat()
    # Random otherwise: the same content has the same name.
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document["components"])).urn
    return document


def _is_installed(component: Object) -> bool:
    """Not what the lock has for other machines and other Pythons only."""
    where = PYTHON | {"sys_platform": "linux", "platform_machine": platform.machine()}
    properties = {each["name"]: each["value"] for each in component.get("properties", ())}
    marker = properties.get("uv:package:marker")
    return marker is None or Marker(marker).evaluate(dict(where))


def build(image: Image, release: Release, archive: Path) -> None:
    """One image as an OCI archive. ROPETEAM_BUILDAH has more arguments for the build, for example a mounted
    certificate. Raises CannotRelease.
    """
    name = f"ghcr.io/ropeteam/{image.name}:{release.version}"
    settings = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    with tempfile.TemporaryDirectory(prefix="ropeteam-release-") as work:
        _run(
            "buildah", "bud", "--quiet", "--no-cache", "--timestamp", str(release.epoch), "--build-arg",
            f"PYTHON_IMAGE={release.base}", *os.environ.get("ROPETEAM_BUILDAH", "").split(),
            "-t", name, "-f", str(ROOT / image.dockerfile), str(ROOT), **settings,
        )  # fmt: skip
        _run("buildah", "push", "--quiet", name, f"oci:{work}/image:{release.version}", **settings)
        index = json.loads(Path(work, "image", "index.json").read_text())
        archive.with_suffix(".digest").write_text(f"{index['manifests'][0]['digest']}\n")
        with open(archive, "wb") as file:
            _pack(Path(work, "image"), "", file, release.epoch)


def _pack(folder: Path, name: str, file: Any, epoch: int) -> None:
    """A tar of `folder` that depends on nothing but its files."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, str(Path(name, path.relative_to(folder))), recursive=False, filter=plain)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(*command: str, **environment: str) -> str:
    """Output of the command; our own environment's programs first. Raises CannotRelease."""
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | path | environment, text=True, capture_output=True
        )
    except FileNotFoundError:
        raise CannotRelease(f"{command[0]} is missing: make install") from None
    if done.returncode:
        raise CannotRelease(f"{' '.join(command[:2])} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _run("git", "log", "-1", "--format=%ct"))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("--version", required=True)
    parser.add_argument("--base", default="")
    parser.add_argument("steps", nargs="*", metavar="STEP")
    options = parser.parse_args(arguments)
    steps = options.steps or STEPS
    check(options.version, options.base, steps)
    release = Release(options.version, options.base, _epoch())
    if not options.steps:
        shutil.rmtree(release.dist, ignore_errors=True)
    release.dist.mkdir(exist_ok=True)
    for step in [each for each in STEPS if each in steps]:
        print(f"{step} ...", flush=True)
        getattr(release, step)()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CannotRelease as problem:
        sys.exit(str(problem))
