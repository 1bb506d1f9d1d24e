"""The seeded bugs still apply to the code as it is; `make seeded` shows that each is caught."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "seeded").glob("*.patch"))


def test_there_are_ten() -> None:
    assert len(PATCHES) >= 10


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_it_still_applies(patch: Path) -> None:
    done = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"make this patch again: {done.stderr}"
