"""Do the tests still catch the bugs that we planted?

    python tools/seeded.py [NAME ...]    apply each tests/seeded/*.patch (or those named) in turn, to a copy

A patch begins with lines for people and one `Test: <arguments for pytest>`; the tests named there must fail
with it, within 60 seconds (without it they pass: `make test`). Exit status 1: a bug was not caught, or a
patch no longer fits. The work tree is never touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60
COPIED = ("operator", "trainer-image", "tests", "tools", "crds", "examples")
FAILED = 1
"""Pytest's exit status for "tests ran, and some failed". Any other is a broken test, not a caught bug."""


def main(names: list[str]) -> int:
    patches = [
        path for path in sorted((ROOT / "tests/seeded").glob("*.patch")) if not names or path.stem in names
    ]
    verdicts = {patch.stem: judge(patch) for patch in patches}
    caught = sum(verdict.startswith("caught") for verdict in verdicts.values())
    print(f"{caught} of {len(verdicts)} planted bugs are caught")
    return 0 if verdicts and caught == len(verdicts) else 1


def judge(patch: Path) -> str:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="seeded-") as folder:
        verdict = try_on(patch, Path(folder))
    verdict = f"{verdict} ({time.monotonic() - begin:.0f} s)"
    print(f"{patch.stem:40} {verdict}", flush=True)
    return verdict


def try_on(patch: Path, copy: Path) -> str:
    wanted = re.search(r"^Test: (.+)$", patch.read_text(), re.MULTILINE)
    if not wanted:
        return "MALFORMED: no line `Test: <arguments for pytest>`"
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    applied = subprocess.run(
        ["git", "apply", str(patch)], cwd=copy, capture_output=True, text=True, check=False
    )
    if applied.returncode:
        return f"DOES NOT FIT: {applied.stderr.strip()}"
    try:
        tests = run_tests(wanted[1].split(), copy)
    except subprocess.TimeoutExpired:
        return f"NOT CAUGHT within {SECONDS} s"
    if tests.returncode != FAILED:
        return f"NOT CAUGHT: pytest ended with {tests.returncode}\n{tests.stdout[-2000:]}"
    return "caught"


def run_tests(arguments: list[str], copy: Path) -> subprocess.CompletedProcess[str]:
    """In the copy, with the copy's packages before the installed ones."""
    path = os.pathsep.join(str(copy / folder) for folder in ("operator", "trainer-image"))
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
