"""A container engine as users have it: docker with a daemon, or podman. Its own words for all of them.

Limit: images come from buildah's storage, as archives; an engine's own build was tried by hand only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.kube import images
from lab.kube.images import buildah

ENGINES = ("docker", "podman")
NO_ENGINE = "needs docker with its daemon, or podman (Debian: apt-get install podman)"


def find() -> str:
    """Empty: there is none that answers."""
    answers = (name for name in ENGINES if shutil.which(name) and _run(name, "info").returncode == 0)
    return next(answers, "")


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name

    def take(self, image: str) -> None:
        """Out of buildah's storage, unless this engine has that very image, or shares the storage."""
        if self._id(image) != buildah("inspect", "--format", "{{.FromImageID}}", image).strip():
            with tempfile.TemporaryDirectory(prefix="ropeteam-engine-") as work:
                archive = Path(work, "image.tar")
                buildah("push", "--quiet", image, f"docker-archive:{archive}:{image}")
                self.must("load", "--quiet", "--input", str(archive))

    def fault(self) -> str:
        """In its words, why it starts no container at all: machines differ in what root may. Else empty."""
        images.base()
        self.take(images.PYTHON)
        done = _run(self.name, "run", "--rm", "--network", "none", images.PYTHON, "python3", "--version")
        return done.stderr.strip() if done.returncode else ""

    def must(self, *argv: str) -> str:
        """Output of the command. Raises AssertionError with its error."""
        done = _run(self.name, *argv)
        assert done.returncode == 0, f"{self.name} {' '.join(argv)}:\n{(done.stdout + done.stderr)[-6000:]}"
        return done.stdout

    def _id(self, image: str) -> str:
        output = _run(self.name, "image", "inspect", "--format", "{{.Id}}", image).stdout.strip()
        return output.removeprefix("sha256:")


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, text=True, capture_output=True)
