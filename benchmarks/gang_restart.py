"""How long is training away when a rank is killed? Ours beside torchrun, interleaved in one run.

    python -m benchmarks.gang_restart [TRIALS]        (20 by default; about a quarter of an hour)

Each trial starts a contender afresh, waits until both ranks step, SIGKILLs one rank (0 and 1 in turn) and
takes two times from the kill: until new processes of all ranks run the script, and until all of them have
made a step. A trial without a step of all new ranks within 60 s is a failure, and counts as 60 s. 2 ranks,
gloo, loopback, the same script for everybody. With DEVICE=cuda both ranks train on the first GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.local.cluster import Cluster
from lab.processes import environments
from lab.waiting import NotYet, wait_until

from benchmarks.results import Row, print_rows, row, write

SCRIPT = Path(__file__).parents[1] / "lab" / "scripts" / "train_ddp.py"
PATIENCE = 60.0
RANKS = 2


@dataclass(frozen=True)
class Trial:
    started: float
    """Kill -> all new ranks run the script, seconds."""
    stepped: float
    """Kill -> all new ranks have made a step."""


Contender = Callable[[Path], Any]


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"rank-{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def steps(folder: Path, rank: int, since: float = 0.0) -> list[dict[str, Any]]:
    return [event for event in events(folder, rank) if event["kind"] == "step" and event["t"] > since]


FAILED = Trial(PATIENCE, PATIENCE)


def measure(folder: Path, victim: int) -> Trial:
    """Kill `victim` once both ranks step, and watch."""
    wait_until("all ranks step", lambda: all(len(steps(folder, rank)) >= 15 for rank in range(RANKS)), 120)
    old = {rank: events(folder, rank)[-1]["pid"] for rank in range(RANKS)}
    killed = time.time()
    os.kill(old[victim], signal.SIGKILL)

    def first(rank: int, kind: str) -> float | None:
        return next(
            (e["t"] for e in events(folder, rank) if e["pid"] != old[rank] and e["kind"] == kind), None
        )

    try:
        wait_until(
            "all ranks step again", lambda: all(first(rank, "step") for rank in range(RANKS)), PATIENCE
        )
    except NotYet:
        return FAILED
    latest = {kind: max(first(rank, kind) or 0.0 for rank in range(RANKS)) for kind in ("start", "step")}
    return Trial(latest["start"] - killed, latest["step"] - killed)


def torchrun(agents: int, *, share_store: bool) -> Contender:
    """torchrun as people run it: c10d rendezvous, restarts allowed."""

    @contextmanager
    def contender(folder: Path) -> Iterator[None]:
        env = dict(
            os.environ, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="0" if share_store else "1"
        )
        port = str(29500 + os.getpid() % 500 + int(time.time()) % 97)
        command = [
            "torchrun", f"--nnodes={agents}", f"--nproc-per-node={RANKS // agents}", "--max-restarts=20",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}",
            str(SCRIPT), str(folder),
        ]  # fmt: skip
        command[0] = str(Path(sys.executable).with_name("torchrun"))
        running = [
            subprocess.Popen(
                command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            for _ in range(agents)
        ]
        try:
            yield
        finally:
            for process in running:
                process.kill()
                process.wait()
            sweep(folder)

    return contender


def sweep(folder: Path) -> None:
    """Kill whatever still runs the script on this folder."""
    for pid, _ in environments():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in arguments and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)


def ropeteam(cluster: Cluster, start: str) -> Contender:
    """That script as a TrainingJob of two pods with one rank each."""

    @contextmanager
    def contender(folder: Path) -> Iterator[None]:
        name = f"bench-{start.lower()}-{folder.name.replace('_', '-')}"[:40].rstrip("-").lower()
        cluster.create(
            {
                "apiVersion": "ropeteam.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name},
                "spec": {
                    "workers": RANKS,
                    "image": "local",
                    "command": ["torchrun", "--nproc-per-node", "1", str(SCRIPT), str(folder)],
                    "recovery": {"start": start, "maxFailures": 100},
                },
            }
        )
        try:
            yield
        finally:
            cluster.delete(name)
            wait_until("all pods are gone", lambda: not cluster.pods(name, None))

    return contender


def rows(samples: dict[str, list[Trial]]) -> list[Row]:
    """The figures, and the goals beside them."""
    whole = {name: [t.stepped for t in trials] for name, trials in samples.items()}
    table = [row(f"{name}: kill to first step of all ranks", seconds) for name, seconds in whole.items()]
    peers = {
        name: statistics.median(seconds) for name, seconds in whole.items() if name.startswith("torchrun")
    }
    best = min(peers, key=lambda name: peers[name])
    started = [t.started for t in samples["ropeteam exec"]]
    table.append(
        Row("exec: kill to new ranks started", round(statistics.median(started), 3), "s", len(started),
            round(max(started), 3), "<= 0.3 (median)", statistics.median(started) <= 0.3, "")
    )  # fmt: skip
    for name, goal in (("ropeteam exec", 1.2), ("ropeteam fork", 4.0)):
        ratio = peers[best] / statistics.median(whole[name])
        worst = peers[best] / max(whole[name])
        table.append(
            Row(f"{name}: times faster", round(ratio, 2), "x", len(whole[name]), round(worst, 2),
                f">= {goal}", ratio >= goal, f"{best}, the best torchrun")
        )  # fmt: skip
    for name, trials in samples.items():
        count = trials.count(FAILED)
        wanted, holds = ("0", count == 0) if name.startswith("ropeteam") else ("", None)
        table.append(
            Row(f"{name}: not recovered in 60 s", count, "trials", len(trials), count, wanted, holds, "")
        )
    return table


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    work = Path(tempfile.mkdtemp(prefix="gang-restart-"))
    cluster = Cluster(work / "home")
    contenders: dict[str, Contender] = {
        "torchrun 1x2": torchrun(1, share_store=True),
        "torchrun 1x2, store not shared": torchrun(1, share_store=False),
        "torchrun 2x1": torchrun(2, share_store=True),
        "torchrun 2x1, store not shared": torchrun(2, share_store=False),
        "ropeteam exec": ropeteam(cluster, "Exec"),
        "ropeteam fork": ropeteam(cluster, "Fork"),
    }
    samples: dict[str, list[Trial]] = {name: [] for name in contenders}
    try:
        for number in range(trials):
            for index, (name, contender) in enumerate(contenders.items()):
                folder = work / f"t{number}-{index}"
                folder.mkdir()
                with contender(folder):
                    trial = measure(folder, number % RANKS)
                samples[name].append(trial)
                seen = "not recovered" if trial == FAILED else trial
                print(f"{number + 1:3}/{trials} {name:32} {seen}", flush=True)
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    return show(samples)


def show(samples: dict[str, list[Trial]]) -> int:
    """Write results/, print the figures. Exit status 0: all goals are met."""
    table = rows(samples)
    seconds = {name: [trial.stepped for trial in trials] for name, trials in samples.items()}
    name = "gang_restart_gpu" if os.environ.get("DEVICE") == "cuda" else "gang_restart"
    write(name, table, seconds, "seconds from kill to first step of all ranks")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
