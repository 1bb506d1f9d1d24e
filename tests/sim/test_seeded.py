"""The seeded bugs still apply to the code as it is; `make seeded` shows that each is caught."""

from __future__ import annotations

import builtins
import keyword
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "seeded").rglob("*.patch"))


def test_no_seeded_patch_is_missing() -> None:
    drawn = [path for path in PATCHES if path.parent.name == "drawn"]
    assert [int(path.name[:2]) for path in drawn] == list(range(24))
    assert [int(path.name[:2]) for path in PATCHES if path not in drawn] == list(range(1, 60))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_each_seeded_patch_still_applies(patch: Path) -> None:
    command = ["git", "apply", "-C0", "--check", str(patch)]  # lines beside the wrong one may be others now
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"make this patch again: {done.stderr}"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_it_uses_no_name_that_its_file_has_no_more(patch: Path) -> None:
    """Else the bug is a NameError or a TypeError, which any test catches."""
    text = patch.read_text()
    (name,) = re.findall(r"^\+\+\+ b/(.*)$", text, re.MULTILINE)
    added = re.sub(r'"[^"]*"|#.*', "", "\n".join(re.findall(r"^\+(?!\+\+)(.*)$", text, re.MULTILINE)))
    known = {*re.findall(r"\w+", (ROOT / name).read_text()), *keyword.kwlist, *dir(builtins)}
    assert {*re.findall(r"[A-Za-z_]\w*", added)} - known == set()
