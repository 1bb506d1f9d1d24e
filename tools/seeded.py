"""Do the tests see a bug? Each patch of tests/seeded/ goes into a copy of the tree; then the simulators look.

    python tools/seeded.py [word ...]      all, or those with these words in their names
    python tools/seeded.py drawn/          those that chance has chosen (tools/mutants.py)

The first row has no bug and must find none. A bug that no simulator sees in its time is given to the tests of
the room that it is in. The first line of a patch says what it breaks. Exit status 1: a bug escaped, or a
patch no longer applies: then make the same wrong line in the code as it is now.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "seeded"
TREE = ("operator", "trainer-image", "tests", "tools", "pyproject.toml")
_SIM = ("tools/sim.py", "--no-shrink", "--first=0", "--seeds=1000", "--histories=50")
_SHIPPED = ("tools/sim.py", "--shipped", "--no-shrink", "--first=0", "--seeds=10000")
SIMULATORS = {"simulator": _SIM, "simulator of what is shipped": _SHIPPED}
"""Each is a command that ends with 1 when it has found something."""
TESTS = {
    "operator/ropeteam": ("tests/core",),
    "ropeteam_trainer/coordinator": ("tests/coordinator/test_promises.py", "tests/coordinator"),
    "ropeteam_trainer/agent": ("tests/agent/test_promises.py", "tests/crash", "tests/agent"),
    "ropeteam_trainer/contract": ("tests/page", "tests/contract", "tests/core"),
    "ropeteam_trainer": (
        "tests/trainer/test_plan.py",
        "tests/trainer/test_files.py",
        "tests/crash",
        "tests/trainer",
    ),
}
"""By the room that a patch breaks; the first room that its text names. Before them come the tests that bear
the name of the broken module, or import it."""
SECONDS = 60.0
"""For each simulator, and for the tests."""


class Verdict(NamedTuple):
    caught: bool
    by: str
    seconds: float


def main(words: list[str]) -> int:
    found = sorted(PATCHES.rglob("*.patch"))
    patches = [path for path in found if all(word in str(path.relative_to(PATCHES)) for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        clean = simulate(copy_tree(Path(folder) / "clean"))
    show("(none)", clean)
    verdicts = [judge(patch) for patch in patches]
    simulated = sum(verdict.caught and verdict.by.startswith(tuple(SIMULATORS)) for verdict in verdicts)
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"of {len(verdicts)} bugs the simulators alone caught {simulated}, all tests {caught}")
    good = caught == len(verdicts) and not clean.caught
    print("all caught" if good else "NOT GOOD: a bug escaped, or the tree as it is has one")
    return 0 if good else 1


def judge(patch: Path) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder) / "tree")
        applied = subprocess.run(
            ["git", "apply", "-C0", str(patch)], cwd=tree, capture_output=True, text=True
        )
        verdict = Verdict(False, f"does not apply: {applied.stderr.strip()}", 0.0)
        if applied.returncode == 0:
            verdict = simulate(tree)
            if not verdict.caught:
                verdict = run_tests(tree, patch.read_text())
    show(f"{patch.stem}: {patch.read_text().splitlines()[0]}", verdict)
    return verdict


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
    verdict = Verdict(False, "", 0.0)
    for name, command in SIMULATORS.items():
        verdict = run(tree, [sys.executable, *command], name)
        if verdict.caught:
            break
    return verdict


def run_tests(tree: Path, patch: str) -> Verdict:
    tests = [*tests_that_import(tree, patch), *next(TESTS[room] for room in TESTS if room in patch)]
    there = [name for name in tests if (tree / name).exists()]
    return run(tree, [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *there], "tests")


def tests_that_import(tree: Path, patch: str) -> list[str]:
    found = re.search(r"^--- a/.*/(\w+)/(\w+)\.py$", patch, re.MULTILINE)
    assert found is not None, "a patch of one module begins with its name"
    room, module = found.groups()
    imports = re.compile(rf"^(from|import) .*\b{room}(\.| import ){module}\b", re.MULTILINE)
    every = sorted(
        (tree / "tests").rglob("test_*.py"), key=lambda path: (path.stem != f"test_{module}", path)
    )
    paths = [path for path in every if path.stem == f"test_{module}" or imports.search(path.read_text())]
    return [str(path.relative_to(tree)) for path in paths if path.parent.name not in ("cluster", "e2e")]


def run(tree: Path, command: list[str], what: str) -> Verdict:
    """Exit status 1 is a find (2: tests cannot even be collected); another but 0 is trouble of ours."""
    paths = os.pathsep.join(str(tree / name) for name in ("operator", "trainer-image"))
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            timeout=SECONDS,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"{what}: nothing within {SECONDS:.0f} s", SECONDS)
    seconds = time.monotonic() - began
    told = [line for line in done.stdout.splitlines() if line.startswith(("Broken", "FAILED", "ERROR"))]
    lines = told or done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"{what} ended with {done.returncode}: {done.stderr[-2000:]}")
    return Verdict(done.returncode != 0, f"{what}: {lines[-1]}", seconds)


def show(title: str, verdict: Verdict) -> None:
    word = "caught" if verdict.caught else "-"
    print(f"{word:<7}{verdict.seconds:5.1f} s  {title}\n{'':16}{verdict.by[:150]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
