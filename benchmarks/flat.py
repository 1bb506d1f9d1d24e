"""Does recovery in the step take longer with more ranks? Two beside eight, under sync Exact, in turns.

    python -m benchmarks.flat [--rounds 3] [--kills 8] [--out FOLDER]

Jobs of two and of eight ranks on this machine (gloo, loopback), with the same batch in eight micro-batches. A
pause in each step is so long that eight ranks use less than 60 % of the processors (`cores`, printed), and
the model so small that what is measured is what ranks say to each other. Kills as in recovery.py. Of each:

    beyond a step         what the step of the kill takes the others beyond an undisturbed one
    kill to full world    until a new process of the killed rank has made a step
    shared                the same without an undisturbed step, for whose end a new rank waits

Limits: what a new rank computes for itself, it shares with seven others on the same processors.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import psutil
from lab.local.cluster import Cluster

from benchmarks import results
from benchmarks.contenders import Contender, ropeteam
from benchmarks.killlogs import compared
from benchmarks.recovery import count, run_job
from benchmarks.results import Row, print_rows, row, write

SIZES = (2, 8)
PAUSE, WIDTH, MICRO_BATCHES = 0.4, 64, 8
STRATEGY = {"sync": {"type": "Exact"}, "batch": {"microBatches": MICRO_BATCHES}}
MOST = 1.3


class Load:
    """Share of the processors that is used, measured in a thread until it is left."""

    def __enter__(self) -> Load:
        self.samples: list[float] = []
        self._over = threading.Event()
        psutil.cpu_percent()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._over.wait(1.0):
            self.samples.append(psutil.cpu_percent() / 100)


def contender(cluster: Cluster, ranks: int, kills: int) -> Contender:
    fields = {"strategy": STRATEGY, "workers": ranks}
    run = partial(ropeteam, cluster, fields, pause=PAUSE, width=WIDTH, every_steps=100_000)
    return Contender(run, kills, is_ours=True, ranks=ranks)


def measure(work: Path, rounds: int, kills: int) -> tuple[list[Row], dict[str, list[float]]]:
    cluster, chance = Cluster(work / "home"), random.Random(0)
    jobs = {ranks: contender(cluster, ranks, kills) for ranks in SIZES}
    loads: dict[int, list[float]] = {ranks: [] for ranks in SIZES}
    differ = all_of_them = 0
    try:
        undisturbed = run_job(jobs[SIZES[-1]], work / "undisturbed", 0, chance)
        for number in range(rounds):
            for ranks, job in jobs.items():
                with Load() as load:
                    logs = run_job(job, work / f"{ranks}-{number}", kills, chance)
                loads[ranks] += load.samples
                found, n = compared(logs, undisturbed)
                differ, all_of_them = differ + found, all_of_them + n
                whole = " ".join(f"{kill.whole:.2f}" for kill in job.seen[-kills:])
                print(f"{number + 1}/{rounds} {ranks} ranks: {whole}", flush=True)
    finally:
        cluster.stop()
    samples: dict[str, list[float]] = {}
    for ranks, job in jobs.items():
        samples |= {
            f"{ranks} ranks: undisturbed step": [kill.undisturbed for kill in job.seen],
            f"{ranks} ranks: beyond a step": [kill.step - kill.undisturbed for kill in job.seen],
            f"{ranks} ranks: kill to full world": [kill.whole for kill in job.seen],
            f"{ranks} ranks: shared": [kill.whole - kill.undisturbed for kill in job.seen],
        }
    table = [row(name, values) for name, values in samples.items()]
    table += [row(f"{ranks} ranks: cores", loads[ranks], unit="of all", beside="median") for ranks in SIZES]
    for what in ("kill to full world", "shared"):
        few, many = (statistics.median(samples[f"{ranks} ranks: {what}"]) for ranks in SIZES)
        ratio = round(many / few, 2)
        table.append(
            Row(
                f"{what}: eight beside two",
                ratio,
                "x",
                rounds * kills,
                ratio,
                f"<= {MOST}",
                ratio <= MOST,
                "",
            )
        )
    table.append(count("losses and digests that differ", [differ], f"of {all_of_them}", is_goal=True))
    return table, samples


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=8, help="of each job")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    began, work = time.monotonic(), Path(tempfile.mkdtemp(prefix="flat-"))
    try:
        table, samples = measure(work, options.rounds, options.kills)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s")
    write("flat", table, samples, "seconds")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
