"""The release that upgrades are tested from: code, chart and definition, out of this repository's history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "c436723d9933a1cb6185f2d31c387330e3ec63f9"
"""The last of contract version 1."""


def is_known() -> bool:
    """A clone may be shallow."""
    command = ("git", "-C", str(ROOT), "cat-file", "-e", f"{COMMIT}^{{commit}}")
    return subprocess.run(command, capture_output=True).returncode == 0


needed = pytest.mark.skipif(
    not is_known(), reason=f"this clone has no commit {COMMIT[:7]}: git fetch --unshallow"
)


def unpack(folder: Path) -> Path:
    """The tree of that release, in `folder`."""
    command = ("git", "-C", str(ROOT), "archive", COMMIT)
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python < 3.11.4 has none
        tar.extractall(folder)
    return folder
