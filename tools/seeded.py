"""Do the tests see a bug? Each patch of tests/seeded/ goes into a copy of the tree; then the simulators look.

    python tools/seeded.py [PART ...]      all, or those with these parts in their names
    python tools/seeded.py drawn/          those drawn at random (tools/mutants.py)

The first row has no bug and must find none. Both simulators look at once, and the first find ends both. A bug
that neither sees in its time is given to the tests of the package that it is in; a test that hangs has seen
nothing until its own time limit fails it. The first line of a patch describes what it breaks. Exit status 1:
a bug escaped, or a patch no longer applies: then make the same wrong line in the code as it is now.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "seeded"
TREE = ("operator", "trainer-image", "lab", "tests", "tools", "pyproject.toml")
_SIM = ("tools/sim.py", "--no-shrink", "--first=0", "--seeds=1000", "--histories=50")
_SHIPPED = ("tools/sim.py", "--shipped", "--no-shrink", "--first=0", "--seeds=10000")
SIMULATORS = {"simulator": _SIM, "simulator of what is shipped": _SHIPPED}
"""Each is a command that ends with 1 when it has found something."""
TESTS = {
    "operator/ropeteam": ("core",),
    "ropeteam_trainer/coordinator": ("coordinator",),
    "ropeteam_trainer/agent": ("agent", "crash"),
    "ropeteam_trainer/contract": ("page", "contract", "core"),
    "ropeteam_trainer": ("crash", "trainer"),
}
"""By the package that a patch breaks; the first package that its text names. Tests run in this order: those
with the module's name, those that import the broken module, those that wait for nothing and mention the
broken function most."""
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
NEVER_RUN = ("cluster", "e2e", "test_pack")
"""Tests that take a cluster, or find that our packages are elsewhere than usual."""
SECONDS = 60
"""Of a processor for each simulator, whatever else the machine does; of the clock for tests, which mostly
wait."""


class Result(NamedTuple):
    caught: bool
    by: str
    seconds: float


def main(argv: list[str]) -> int:
    found = sorted(PATCHES.rglob("*.patch"))
    patches = [path for path in found if all(argument in str(path.relative_to(PATCHES)) for argument in argv)]
    with tempfile.TemporaryDirectory() as folder:
        clean = simulate(copy_tree(Path(folder) / "clean"))
    show("(none)", clean)
    results = [result_of(patch) for patch in patches]
    simulated = sum(result.caught and result.by.startswith(tuple(SIMULATORS)) for result in results)
    caught = sum(result.caught for result in results)
    print(f"of {len(results)} bugs the simulators alone caught {simulated}, all tests {caught}")
    all_caught = caught == len(results) and not clean.caught
    print("all caught" if all_caught else "NOT GOOD: a bug escaped, or the tree as it is has one")
    return 0 if all_caught else 1


def result_of(patch: Path) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder) / "tree")
        applied = subprocess.run(
            ["git", "apply", "-C0", str(patch)], cwd=tree, capture_output=True, text=True
        )
        result = Result(False, f"does not apply: {applied.stderr.strip()}", 0.0)
        if applied.returncode == 0:
            result = simulate(tree)
            if not result.caught:
                result = run_tests(tree, patch.read_text())
                if result.caught and fails_anyway(copy_tree(Path(folder) / "clean"), result):
                    result = Result(False, f"without the bug as well: {result.by}", result.seconds)
    show(f"{patch.stem}: {patch.read_text().splitlines()[0]}", result)
    return result


def copy_tree(target: Path) -> Path:
    target.mkdir()
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "seeded"))
        else:
            shutil.copy(source, target / name)
    return target


def simulate(tree: Path) -> Result:
    """By the simulator that is first, or by none."""
    return first_find(tree, {name: [sys.executable, *command] for name, command in SIMULATORS.items()})


def run_tests(tree: Path, patch: str) -> Result:
    tests = [str(path.relative_to(tree)) for path in tests_of(tree, patch)]
    return first_find(tree, {"tests": [*PYTEST, *tests]}, SECONDS)


def fails_anyway(clean: Path, result: Result) -> bool:
    found = re.search(r"(FAILED|ERROR) (.+?)( - |$)", result.by)  # what is in its brackets may have spaces
    return found is not None and first_find(clean, {"test": [*PYTEST, found[2]]}, SECONDS).caught


def tests_of(tree: Path, patch: str) -> list[Path]:
    found = re.search(r"^--- a/(.*/(\w+)/(\w+)\.py)$", patch, re.MULTILINE)
    assert found is not None, "a patch of one module begins with its name"
    path, package, module = found.groups()
    imports = re.compile(rf"^(from|import) .*\b{package}(\.| import ){module}\b", re.MULTILINE)
    name_parts = re.compile("|".join(broken_function((tree / path).read_text(), patch)))
    packages = next(TESTS[package] for package in TESTS if package in patch)

    def rank_of(test: Path) -> tuple[bool, int, bool, bool, int]:
        text, package = test.read_text(), test.parent.name
        place = packages.index(package) if package in packages else len(packages)
        waits = "async def test" in text
        mentions = len(name_parts.findall(text))
        return test.stem != f"test_{module}", place, not imports.search(text), waits, -mentions

    every = (tree / "tests").rglob("test_*.py")
    mine = [test for test in every if test.parent.name in packages or imports.search(test.read_text())]
    return sorted(
        (test for test in mine if test.stem not in NEVER_RUN and test.parent.name not in NEVER_RUN),
        key=rank_of,
    )


def broken_function(text: str, patch: str) -> list[str]:
    """The parts of its name. The line may have moved since: it only orders the tests."""
    line = re.search(r"^@@ .*\+(\d+)", patch, re.MULTILINE)
    above = text.splitlines()[: int(line[1]) + 1 if line else 0]
    names = [found[1] for each in above if (found := re.match(r"\s*(?:async )?def (\w+)", each))]
    return [part for part in names[-1].split("_") if part] if names else ["^$"]


def first_find(tree: Path, commands: dict[str, list[str]], most: float = float("inf")) -> Result:
    """All at once; the first that finds something ends the others."""
    began, spent = time.monotonic(), processor_seconds()
    running = {name: start(tree, command, name) for name, command in commands.items()}
    try:
        while running and time.monotonic() < began + most:
            time.sleep(0.1)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if found := find(tree, name, running.pop(name).returncode):
                    waited = time.monotonic() - began
                    seconds = waited if most <= SECONDS else processor_seconds() - spent
                    return Result(True, f"{name}: {found}", seconds)
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Result(False, f"{' and '.join(commands)}: nothing", SECONDS)


def processor_seconds() -> float:
    """Of all that was started here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(tree: Path, command: list[str], name: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(str(tree / folder) for folder in ("operator", "trainer-image"))
    with output(tree, name).open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=tree,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5)),
        )


def output(tree: Path, name: str) -> Path:
    return tree.parent / f"{name}.log"


def find(tree: Path, name: str, status: int) -> str:
    """Exit status 1 is a find (2: tests cannot even be collected). Another, but for good and for the end of
    its time, is trouble of ours."""
    lines = output(tree, name).read_text(errors="replace").strip().splitlines() or ["?"]
    if status not in (0, 1, 2, -signal.SIGXCPU):
        raise RuntimeError(f"{name} ended with {status}: {lines[-20:]}")
    finds = [line for line in lines if line.startswith(("Broken", "FAILED", "ERROR"))] or lines
    return finds[-1] if status > 0 else ""


def show(title: str, result: Result) -> None:
    outcome = "caught" if result.caught else "-"
    print(f"{outcome:<7}{result.seconds:5.1f} s  {title}\n{'':16}{result.by[:150]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
