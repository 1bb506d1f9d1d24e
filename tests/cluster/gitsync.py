"""git-sync's image under the name that docs/guides/code.md gives it, built from its source.

Its registry is not to be had everywhere, and Go's module proxy has no release of it. Source: where
tests/programs finds those of other projects. Limit: of its image only what a checkout needs.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from lab.kube.images import buildah, has
from tests.programs.places import source
from tests.programs.rows import Project

_PACKAGES = "git,ca-certificates"


def build(image: str) -> None:
    """Into buildah's storage. Raises tests.programs.places.Missing."""
    version = image.rpartition(":")[2]
    sources = source(Project("git-sync", "kubernetes/git-sync", version))
    if has(image):
        return
    with tempfile.TemporaryDirectory(prefix="ropeteam-git-sync-") as work:
        program, root = Path(work, "git-sync"), Path(work, "root")
        command = ["go", "build", "-mod=vendor", "-buildvcs=false", "-trimpath", "-o", str(program), "."]
        environment = os.environ | {"CGO_ENABLED": "0", "GOCACHE": f"{work}/cache"}
        subprocess.run(command, cwd=sources, env=environment, check=True)
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        container = buildah("from", "scratch").strip()
        buildah("copy", "--quiet", container, str(root), "/")
        buildah("copy", "--quiet", container, str(program), "/git-sync")
        settings = ("--entrypoint", '["/git-sync"]', "--user", "65533:65533", "--env", "HOME=/tmp")
        buildah("config", *settings, container)
        buildah("commit", "--quiet", "--rm", container, image)
