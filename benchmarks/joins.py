"""How long do the others wait for a new rank, with a large model? catchUp Pause beside Follow, in one run.

    python -m benchmarks.joins [--megabytes 300] [--kills 4] [--out FOLDER]

For each way a job of three ranks on this machine (gloo and TCP, loopback; AdamW, so the state is three times
the parameters), of which one is killed with SIGKILL, each in turn. Of each kill:

    kill to full world    until a new process of the killed rank has made a step
    wait of the others    longest time between two steps of another rank while the new one joins, without the
                          median step before

Each loss and the SHA-256 of the parameters are compared with those of a run without kills.
Limits: all ranks share the processors, so whatever a new rank does slows the others too; the state is copied
within one machine, over no network.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from lab.local.cluster import Cluster

from benchmarks import results
from benchmarks.contenders import Contender, ropeteam
from benchmarks.killlogs import RankLog, compared
from benchmarks.recovery import count, run_job
from benchmarks.results import Row, print_rows, row, write

WAYS = ("Pause", "Follow")
LAYERS, BYTES_OF_STATE = 4, 12
"""Layers of the model; bytes for each parameter, with both averages of AdamW."""


def contender(cluster: Cluster, way: str, width: int, kills: int) -> Contender:
    exact = {"sync": {"type": "Exact", "catchUp": way}, "batch": {"microBatches": 6}}
    strategy = {"strategy": exact}
    return Contender(
        partial(ropeteam, cluster, strategy, width=width, every_steps=100_000), kills, is_ours=True
    )


def waits(logs: Sequence[RankLog], undisturbed: float) -> list[float]:
    """For each new process, the longest time between two steps of another rank while it joined, without an
    undisturbed step."""
    found = []
    for log in logs:
        starts = [event for event in log.events if event.kind == "start"]
        for start in starts[1:]:
            joined = next(step.t for step in log.steps() if step.pid == start.pid and step.t > start.t)
            gaps = [
                later.t - earlier.t
                for other in logs
                if other is not log
                for earlier, later in pairwise(other.steps())
                if start.t < earlier.t < joined
            ]
            found.append(max(gaps) - undisturbed)
    return found


def measure(work: Path, megabytes: int, kills: int) -> tuple[list[Row], dict[str, list[float]]]:
    cluster, chance = Cluster(work / "home"), random.Random(0)
    width = int((megabytes * 1e6 / BYTES_OF_STATE / LAYERS) ** 0.5)
    table: list[Row] = []
    samples: dict[str, list[float]] = {}
    try:
        jobs = {way: contender(cluster, way, width, kills) for way in WAYS}
        undisturbed = run_job(jobs["Pause"], work / "undisturbed", 0, chance)
        for way, one in jobs.items():
            logs = run_job(one, work / way.lower(), kills, chance)
            step = sum(kill.undisturbed for kill in one.seen) / len(one.seen)
            each = {
                f"{way}: undisturbed step": [kill.undisturbed for kill in one.seen],
                f"{way}: kill to full world": [kill.whole for kill in one.seen],
                f"{way}: wait of the others": waits(logs, step),
            }
            for name, values in each.items():
                table.append(row(name, values))
            differ, n = compared(logs, undisturbed)
            table.append(count(f"{way}: losses and digests that differ", [differ], f"of {n}", is_goal=True))
            samples |= each
    finally:
        cluster.stop()
    return table, samples


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins")
    parser.add_argument("--megabytes", type=int, default=300, help="of the state")
    parser.add_argument("--kills", type=int, default=4, help="for each way")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    work = Path(tempfile.mkdtemp(prefix="joins-"))
    try:
        table, samples = measure(work, options.megabytes, options.kills)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write("joins", table, samples, "seconds", megabytes=str(options.megabytes))
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
