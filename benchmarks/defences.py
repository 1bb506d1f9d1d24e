"""Cost of security measures: this commit beside the one before them, in turns, on local clusters.

    python -m benchmarks.defences [TRIALS] [CROWDS] [COMMIT]     (10, 3, c436723)

Signatures, dropped capabilities, verified checkpoints, bounded reading: each costs something, and users
should not feel it. Of both commits the whole code runs, as this repository has it: TRIALS times `kubectl
create` to the first step of both ranks, and SIGKILL of a rank to the next step of both, of a job that saves,
started by exec and by fork; CROWDS times `benchmarks.scale local` of a thousand jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.local.cluster import Cluster
from lab.waiting import wait_until

from benchmarks.gang_restart import RANKS, events, measure, steps, sweep
from benchmarks.results import Row, print_rows, row, write

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "c436723"
MOST = 1.05
START, EXEC, FORK, CROWD = "job start", "rank killed, exec", "rank killed, fork", "1,000 jobs Running"


def main() -> int:
    argv = dict(enumerate(sys.argv))
    trials, crowds, commit = int(argv.get(1, 10)), int(argv.get(2, 3)), argv.get(3, BEFORE)
    samples: dict[str, list[float]] = {
        f"{what}, {when}": [] for what in (START, EXEC, FORK, CROWD) for when in ("before", "now")
    }
    with tempfile.TemporaryDirectory(prefix="defences-") as folder:
        trees = {"before": taken(commit, Path(folder) / "before"), "now": taken("HEAD", Path(folder) / "now")}
        for number in range(trials + 1):
            for when, tree in trees.items():
                seen = trial(tree, number)
                if number:  # the first one fills caches
                    for what, seconds in seen.items():
                        note(samples, f"{what}, {when}", seconds)
        for _ in range(crowds):
            for when, tree in trees.items():
                note(samples, f"{CROWD}, {when}", crowd(tree))
    return show(samples, commit)


def note(samples: dict[str, list[float]], name: str, seconds: float) -> None:
    samples[name].append(seconds)
    print(f"{len(samples[name]):3} {name:28} {seconds:.2f} s", flush=True)


def taken(commit: str, folder: Path) -> Path:
    """The files of a commit. Raises CalledProcessError if the clone is too shallow to have it."""
    folder.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=packed)
    return folder


def code_of(tree: Path) -> str:
    """A PYTHONPATH that comes before what is installed."""
    return os.pathsep.join(map(str, (tree / "operator", tree / "trainer-image", tree)))


@contextmanager
def running(tree: Path) -> Iterator[Cluster]:
    """Alone: the earlier one does not see that another cluster has the addresses that it takes."""
    usual = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = code_of(tree)
    try:
        cluster = Cluster(tree / "home")
    finally:
        os.environ["PYTHONPATH"] = usual
    try:
        yield cluster
    finally:
        cluster.stop()


def trial(tree: Path, number: int) -> dict[str, float]:
    """Seconds of a start and of restarts."""
    with running(tree) as cluster:
        start, by_exec = killed(cluster, tree / f"exec-{number}", "Exec")
        _, by_fork = killed(cluster, tree / f"fork-{number}", "Fork")
    return {START: start, EXEC: by_exec, FORK: by_fork}


def killed(cluster: Cluster, folder: Path, how: str) -> tuple[float, float]:
    """Seconds of the start and of the restart of one job."""
    name = folder.name
    folder.mkdir()
    begin = time.time()
    cluster.create(job(folder, how))
    wait_until(
        lambda: f"all ranks step; status: {cluster.status(name)}",
        lambda: all(steps(folder, rank) for rank in range(RANKS)),
        120,
    )
    first = max(float(steps(folder, rank)[0]["t"]) for rank in range(RANKS)) - begin
    restart = measure(folder, 1).stepped
    assert len({each["pid"] for each in events(folder, 1)}) == 2, "one rank was killed, once"
    cluster.delete(name)
    wait_until("all pods are gone", lambda: not cluster.pods(name, None))
    sweep(folder)
    shutil.rmtree(folder)
    return first, restart


def job(folder: Path, how: str) -> dict[str, Any]:
    script = ROOT / "lab" / "scripts" / "train_level2.py"
    spec = {
        "workers": RANKS,
        "image": "local",
        "command": ["torchrun", "--nproc-per-node", "1", str(script), str(folder)],
        "checkpoint": {"volume": {"hostPath": {"path": str(folder)}}, "everySteps": 10},
        "recovery": {"start": how},
    }
    kind = {"apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob"}
    return {**kind, "metadata": {"name": folder.name}, "spec": spec}


def crowd(tree: Path) -> float:
    """Until a thousand jobs run."""
    environment = {**os.environ, "PYTHONPATH": code_of(tree)}
    command = [sys.executable, "-m", "benchmarks.scale", "local"]
    results = tree / "benchmarks" / "results"
    written = [results / "scale_local.json", results / "scale.json"]  # the latter by earlier commits
    for file in written:
        file.unlink(missing_ok=True)
    subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL
    )  # 1 if a goal is missed, too
    (found,) = [json.loads(file.read_text()) for file in written if file.exists()]
    rows: list[dict[str, Any]] = found["rows"] if isinstance(found, dict) else found
    return next(float(each["value"]) for each in rows if each["id"] == "local: 1000 jobs of 4 pods Running")


def show(samples: dict[str, list[float]], commit: str) -> int:
    samples = {name: seconds for name, seconds in samples.items() if seconds}
    table = [row(name, seconds) for name, seconds in samples.items()]
    for what in (START, EXEC, FORK, CROWD):
        if f"{what}, now" in samples:
            before, now = samples[f"{what}, before"], samples[f"{what}, now"]
            ratio = statistics.median(now) / statistics.median(before)
            worst = max(now) / max(before)
            table.append(
                Row(f"{what}: now / before", round(ratio, 3), "x", len(now), round(worst, 3), f"<= {MOST}",
                    ratio <= MOST, commit)
            )  # fmt: skip
    write("defences", table, samples, "seconds")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
