"""Container images without a container engine: built by buildah, loaded once, shared by all nodes.

    pause       the sandbox's process: 20 lines of C
    base        Debian with Python, by debootstrap: what `FROM docker.io/library/python:...` gets here
    operator, trainer       the project's own Dockerfiles, unchanged
    local       the stage `local` of the operator's Dockerfile, with a kubectl of this machine
    rooted      the trainer's, but that it runs as root, as most images with torch do
    older       the operator's and the trainer's, but with the code of each earlier release (olderrelease.py)
They lie in one OCI layout in the cache; `loaded` is a containerd root with all of them in it, which nodes
clone. Limits: needs root, buildah and debootstrap; a base that is in the cache is never renewed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.kube.daemons import START_SECONDS, Daemons
from lab.kube.node import PAUSE
from lab.kube.oci import Layout
from lab.kube.programs import ensure
from lab.olderrelease import RELEASES, OlderRelease
from lab.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "docker.io/library/python:3.11-slim-bookworm"
OPERATOR, TRAINER = "ghcr.io/ropeteam/ropeteam:0.1.0", "ghcr.io/ropeteam/trainer:0.1.0"
"""As the chart and the guides name them: nodes that have them need no registry."""
LOCAL = "ghcr.io/ropeteam/local:0.1.0"
ROOTED = "ghcr.io/ropeteam/trainer-root:0.1.0"
_PAUSE_SOURCE = """\
#include <signal.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
int main(void) { signal(SIGINT, end); signal(SIGTERM, end); for (;;) pause(); }
"""
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_CERTIFICATES = "/etc/ssl/certs"
CERTIFICATES = (
    "--network", "host",
    "-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro",
    "--build-arg", f"PIP_CERT={_CERTIFICATES}/ca-certificates.crt",
)  # fmt: skip
"""This machine's, lent to a build and left out of the image: its way to the registries may have its own."""


@dataclass(frozen=True)
class Image:
    name: str
    inputs: tuple[str, ...]
    """Files and folders, relative to the repository, that decide what is in it."""
    build: Callable[[Image], None]
    """Leaves the image in buildah's storage under `name`."""

    @property
    def digest(self) -> str:
        total = hashlib.sha256(self.name.encode())
        for path in self._files():
            total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
        return total.hexdigest()[:12]

    def _files(self) -> Iterable[Path]:
        for text in self.inputs:
            path = ROOT / text
            every = sorted(path.rglob("*")) if path.is_dir() else [path]
            yield from (each for each in every if each.is_file() and "__pycache__" not in each.parts)


def cache() -> Path:
    given = os.environ.get("ROPETEAM_CLUSTER_IMAGES")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "ropeteam" / "cluster-images"


def layout() -> Layout:
    return Layout(cache() / "layout")


def built(image: Image) -> str:
    """Makes sure that the image, as its inputs are now, is in the layout. What it is called there."""
    known = cache() / f"{image.name.rpartition('/')[2].partition(':')[0]}.digest"
    if not known.exists() or known.read_text() != image.digest or not layout().blobs_of(image.name):
        cache().mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        image.build(image)
        target = f"oci:{layout().folder}:{image.name}"
        buildah("push", "--quiet", "--disable-compression", image.name, target)
        layout().prune()
        known.write_text(image.digest)
        print(f"image {image.name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return f"{image.name}@{image.digest}"


def loaded(images: Iterable[Image], tools: Path) -> Path:
    """A containerd root that holds `images` (and pause), unpacked. What an older one has is not loaded
    again.
    """
    wanted = (_pause_image(), *images)
    key = hashlib.sha256("".join(map(built, wanted)).encode()).hexdigest()[:12]
    root, fresh = cache() / f"root-{key}", cache() / "root.new"
    if not root.exists():
        shutil.rmtree(fresh, ignore_errors=True)
        for old in cache().glob("root-*"):
            old.rename(fresh)
        with tempfile.TemporaryDirectory(prefix="ropeteam-images-", dir=cache()) as work:
            _load([image.name for image in wanted], fresh, Path(work), tools)
        fresh.rename(root)
    return root


def _load(names: list[str], root: Path, work: Path, tools: Path) -> None:
    socket, daemons = work / "containerd.sock", Daemons(work)
    settings = (
        f'version = 3\nroot = "{root}"\nstate = "{work}/state"\n'
        "disabled_plugins = ['io.containerd.cri.v1.runtime', 'io.containerd.grpc.v1.cri']\n"
        f'[grpc]\n  address = "{socket}"\n'
    )
    (work / "containerd.toml").write_text(settings)
    daemons.start("containerd", (tools / "containerd", "-c", work / "containerd.toml"))
    blobs = root / "io.containerd.content.v1.content" / "blobs" / "sha256"
    try:
        wait_until("containerd listens", socket.exists, START_SECONDS)
        ctr = (tools / "ctr", "-a", socket, "-n", "k8s.io")
        for name in names:
            # What no image needs may be deleted at any moment: now, not between this look and the import.
            subprocess.run((*ctr, "content", "prune", "references"), check=True, stdout=subprocess.DEVNULL)
            known = {f"sha256:{path.name}" for path in blobs.iterdir()} if blobs.exists() else set()
            archive = work / "image.tar"
            layout().export(name, known, archive)
            subprocess.run(
                (*ctr, "images", "import", "--local", archive), check=True, stdout=subprocess.DEVNULL
            )
    finally:
        daemons.stop("containerd")


def buildah(*argv: str, **environment: str) -> str:
    """Output of buildah, with storage that needs no engine and no user namespaces."""
    settings = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        ["buildah", *argv], env=os.environ | settings | environment, text=True, capture_output=True
    )
    if done.returncode:
        raise RuntimeError(f"buildah {' '.join(argv[:3])}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def has(name: str) -> bool:
    argv = ["buildah", "inspect", "--type", "image", name]
    return (
        subprocess.run(argv, capture_output=True, env=os.environ | {"STORAGE_DRIVER": "overlay"}).returncode
        == 0
    )


# ---- how each is built


def _pause_image() -> Image:
    return Image(PAUSE, ("lab/kube/images.py",), _build_pause)


def _build_pause(image: Image) -> None:
    with tempfile.TemporaryDirectory() as work:
        source, program = Path(work, "pause.c"), Path(work, "pause")
        source.write_text(_PAUSE_SOURCE)
        subprocess.run(["gcc", "-static", "-Os", "-o", program, source], check=True)
        container = buildah("from", "scratch").strip()
        buildah("copy", container, str(program), "/pause")
        buildah("config", "--entrypoint", '["/pause"]', container)
        buildah("commit", "--quiet", "--rm", container, image.name)


def base() -> None:
    """Debian's Python under the name that the Dockerfiles start from."""
    if has(PYTHON):
        return
    with tempfile.TemporaryDirectory(prefix="ropeteam-base-") as work:
        argv = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", work]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        python = Path(work, "usr/local/bin")
        for name in ("python", "python3"):
            (python / name).symlink_to("/usr/bin/python3")
        container = buildah("from", "scratch").strip()
        buildah("copy", "--quiet", container, work, "/")
        buildah("config", "--cmd", "python3", container)
        buildah("commit", "--quiet", "--rm", container, PYTHON)


def _kubectl() -> None:
    """Our kubectl under the name that the Dockerfile takes it from."""
    (name,) = re.findall(r"^ARG KUBECTL_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if not has(name):
        container = buildah("from", "scratch").strip()
        buildah("copy", "--quiet", container, str(ensure(["kubectl"]) / "kubectl"), "/bin/kubectl")
        buildah("commit", "--quiet", "--rm", container, name)


def _from_dockerfile(dockerfile: str, *arguments: str) -> Callable[[Image], None]:
    def build(image: Image) -> None:
        base()
        buildah(
            "bud", "--quiet", "--pull-never", "--layers", *CERTIFICATES,
            *arguments, "-t", image.name, "-f", str(ROOT / dockerfile), str(ROOT),
        )  # fmt: skip

    return build


def operator() -> Image:
    inputs = ("Dockerfile", ".dockerignore", "pyproject.toml", "requirements", "operator", "trainer-image")
    return Image(OPERATOR, inputs, _from_dockerfile("Dockerfile"))


def local() -> Image:
    """In buildah's storage alone: no node runs it."""
    inputs = (*operator().inputs, "examples")
    return Image(LOCAL, inputs, _build_local)


def _build_local(image: Image) -> None:
    _kubectl()
    _from_dockerfile("Dockerfile", "--target", "local")(image)


def trainer() -> Image:
    inputs = ("trainer-image", ".dockerignore", "requirements")
    return Image(TRAINER, inputs, _from_dockerfile("trainer-image/Dockerfile"))


def rooted() -> Image:
    """After the trainer's: made of that."""
    return Image(ROOTED, (*trainer().inputs, "lab/kube/images.py"), _build_rooted)


def _build_rooted(image: Image) -> None:
    container = _from(trainer())
    buildah("config", "--user", "0:0", container)
    buildah("commit", "--quiet", "--rm", container, image.name)


def _from(image: Image) -> str:
    """A container of it. It is in the layout, which buildah does not begin from."""
    if not has(image.name):
        image.build(image)
    return buildah("from", "--pull-never", image.name).strip()


def older_operator(release: OlderRelease) -> str:
    return f"ghcr.io/ropeteam/ropeteam-{release}:0.1.0"


def older_trainer(release: OlderRelease) -> str:
    return f"ghcr.io/ropeteam/trainer-{release}:0.1.0"


def older_ones() -> Iterator[Image]:
    """Of the releases to which the history reaches. Packages are today's: an upgrade changes our code."""
    packages, library = "/opt/ropeteam/lib/python3.11/site-packages", "trainer-image/ropeteam_trainer"
    of_operator = {"operator/ropeteam": f"{packages}/ropeteam", library: f"{packages}/ropeteam_trainer"}
    of_trainer = {library: "/opt/ropeteam/code/ropeteam_trainer"}
    inputs = ("requirements", "lab/olderrelease.py", "lab/kube/images.py")
    for release in filter(OlderRelease.is_known, RELEASES):
        build = _with_older_code(release, operator(), of_operator)
        yield Image(older_operator(release), inputs, build)
        build = _with_older_code(release, trainer(), of_trainer)
        yield Image(older_trainer(release), inputs, build)


def _with_older_code(release: OlderRelease, base: Image, folders: dict[str, str]) -> Callable[[Image], None]:
    def build(image: Image) -> None:
        container = _from(base)
        with tempfile.TemporaryDirectory(prefix="ropeteam-older-") as work:
            tree = release.unpack(Path(work))
            buildah("run", "--user", "0", container, "--", "rm", "-rf", *folders.values())
            for source, target in folders.items():
                buildah("copy", "--quiet", container, str(tree / source), target)
        buildah("commit", "--quiet", "--rm", container, image.name)

    return build


def all_of_them() -> tuple[Image, ...]:
    """That tests run."""
    return operator(), trainer(), rooted(), *older_ones()
