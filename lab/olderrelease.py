"""The releases that upgrades are tested from: code, chart and definition, out of this history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STATUS_OF_NOW = "podSpecHash"
"""A field that operators of this release write into each status, and none of an earlier one."""


@dataclass(frozen=True)
class OlderRelease:
    """A commit, and the version of the contract of its coordinators."""

    commit: str
    contract: int

    def __str__(self) -> str:
        return self.commit[:7]

    def is_known(self) -> bool:
        """A clone may be shallow."""
        return self._git("cat-file", "-e", f"{self.commit}^{{commit}}").returncode == 0

    def unpack(self, folder: Path) -> Path:
        """The tree of that release, in `folder`."""
        archive = self._git("archive", self.commit)
        archive.check_returncode()
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python < 3.11.4 has none
            tar.extractall(folder)
        return folder

    def _git(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(("git", "-C", str(ROOT), *command), capture_output=True)


RELEASES = (
    OlderRelease("c436723d9933a1cb6185f2d31c387330e3ec63f9", contract=1),
    OlderRelease("2b13a940f6e7c7ec9041c924e44b261a56617836", contract=3),
)
"""The last of contract version 1, and the last before the fields of status were renamed."""

needed = pytest.mark.skipif(
    not all(release.is_known() for release in RELEASES),
    reason=f"this clone has not all of {', '.join(map(str, RELEASES))}: git fetch --unshallow",
)
each = pytest.mark.parametrize("older", RELEASES, ids=str)
latest = pytest.mark.parametrize("older", RELEASES[-1:], ids=str)
"""For what is promised of the release before this one alone."""
