"""Do the tests see a bug? Each patch of tests/seeded/ goes into a copy of the tree; then the simulator looks.

    python tools/seeded.py [word ...]      all, or those with these words in their names

The first row has no bug and must find none. A bug that the simulator does not see in its time is given to
the tests of the pure rooms. The first line of a patch says what it breaks. Exit status 1: a bug escaped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "seeded"
TREE = ("operator", "trainer-image", "tests", "tools", "pyproject.toml")
PURE_TESTS = {
    "operator/ropeteam": ("tests/core",),
    "ropeteam_trainer/coordinator": ("tests/coordinator", "--ignore=tests/coordinator/test_bad_day.py"),
    "ropeteam_trainer/agent": tuple(
        f"tests/agent/test_{name}.py" for name in ("promises", "worlds", "watching")
    ),
    "ropeteam_trainer": ("tests/trainer/test_plan.py", "tests/trainer/test_restore.py"),
}
"""By the room that a patch breaks; the first that its text names."""
SIMULATOR_SECONDS, TEST_SECONDS = 25.0, 35.0


class Verdict(NamedTuple):
    caught: bool
    by: str
    seconds: float


def main(words: list[str]) -> int:
    patches = [path for path in sorted(PATCHES.glob("*.patch")) if all(word in path.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        clean = simulate(copy_tree(Path(folder) / "clean"))
    show("(none)", clean)
    good = not clean.caught
    for patch in patches:
        with tempfile.TemporaryDirectory() as folder:
            tree = copy_tree(Path(folder) / "tree")
            subprocess.run(["git", "apply", str(patch)], cwd=tree, check=True)
            verdict = simulate(tree)
            if not verdict.caught:
                verdict = run_pure_tests(tree, patch.read_text())
        show(patch.read_text().splitlines()[0], verdict)
        good = good and verdict.caught
    print("all caught" if good else "NOT GOOD: a bug escaped, or the tree as it is has one")
    return 0 if good else 1


def copy_tree(target: Path) -> Path:
    target.mkdir()
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "seeded"))
        else:
            shutil.copy(source, target / name)
    return target


def simulate(tree: Path) -> Verdict:
    command = [sys.executable, "tools/sim.py", "--no-shrink", "--first=0", "--seeds=1000", "--histories=50"]
    return run(tree, command, SIMULATOR_SECONDS, "simulator")


def run_pure_tests(tree: Path, patch: str) -> Verdict:
    tests = next(tests for room, tests in PURE_TESTS.items() if room in patch)
    return run(
        tree,
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        TEST_SECONDS,
        "tests",
    )


def run(tree: Path, command: list[str], limit: float, what: str) -> Verdict:
    """Exit status 1 is a find; anything else that is not 0 is trouble of our own."""
    paths = os.pathsep.join(str(tree / name) for name in ("operator", "trainer-image"))
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            timeout=limit,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"{what}: nothing within {limit:.0f} s", limit)
    seconds = time.monotonic() - began
    told = [line for line in done.stdout.splitlines() if line.startswith(("Broken", "FAILED", "ERROR"))]
    lines = told or done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{what} ended with {done.returncode}: {done.stderr[-2000:]}")
    return Verdict(done.returncode == 1, f"{what}: {lines[-1]}", seconds)


def show(title: str, verdict: Verdict) -> None:
    word = "caught" if verdict.caught else "-"
    print(f"{word:<7}{verdict.seconds:5.1f} s  {title}\n{'':16}{verdict.by[:150]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
