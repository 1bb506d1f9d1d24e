"""How much can one operator look after? Many jobs and pods, beside batch/Jobs of the same size.

    python -m benchmarks.scale [local] [real] [one] [--jobs 1000]       (all three without a word)

local  jobs of 4 pods on our own API server
real   jobs of 10 pods on a real one, from creation to end; before and after them as many batch/Jobs
one    one job of 4,096 pods on a real one

A job's coordinator counts as one of its pods. KWOK's pods run nothing and run at once, so one stub answers
for all coordinators that the world has formed (worlds.py); the operator is the product, unchanged, without a
lease. Every process shares this machine's cores; realcluster.py lists what differs from a production
cluster. Needs the programs of `make e2e`, but neither root nor its nodes. `real` takes 15 minutes.
Reactions, requests and writes are read from the API server's audit log.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys

from lab.kube import programs

from benchmarks.results import Row, print_rows, row, write
from benchmarks.scale import local, real
from benchmarks.scale.real import Figures

LOCAL_PODS, REAL_PODS, ONE_PODS = 4, 10, 4096
BUCKET_PER_SECOND, BUCKET = 20, 20
"""Of ropeteam/controller/reconcile/progresslimit.py."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("parts", nargs="*", help="local, real, one; without any: all")
    parser.add_argument("--jobs", type=int, default=1000)
    given = parser.parse_args()
    try:
        sys.exit(asyncio.run(measure(given.parts or ["local", "real", "one"], given.jobs)))
    except asyncio.CancelledError:
        sys.exit("stopped by a signal; nothing was measured after the last figures above")


async def measure(parts: list[str], jobs: int) -> int:
    """Each part has a result of its own. The exit status: 1 if a goal is missed."""
    status = 0
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):  # what was started is stopped
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    for part in parts:
        load = os.getloadavg()[0]
        print(f"{part}: load average {load:.1f}", flush=True)
        rows, samples = await MEASURES[part](jobs)
        rows.append(fact(f"{part}: load average of the machine before", load, ""))
        thin = {name: thinned(values) for name, values in samples.items()}
        versions = {} if part == "local" else {"kubernetes": programs.KUBERNETES}
        write(f"scale_{part}", rows, thin, "seconds", **versions)
        status = max(status, print_rows(rows))
    return status


Measured = tuple[list[Row], dict[str, list[float]]]


async def measure_local(jobs: int) -> Measured:
    seen = await local.training_jobs(jobs, LOCAL_PODS - 1)
    size = f"{jobs} jobs of {LOCAL_PODS} pods"
    rows = [
        at_most(f"local: {size} Running", seen.seconds, "s", 15),
        fact("local: operator, peak memory", seen.peak_mib, "MiB"),
        fact("local: operator, CPU until all run", sum(seen.cpu_seconds.values()), "s"),
    ]
    return rows, {"local: a job is Running after": seen.running}


async def measure_one(_: int) -> Measured:
    seen = await real.training_jobs(1, ONE_PODS - 1, whole_life=False)
    rows = [
        at_most(f"one: job of {ONE_PODS} pods Running", seen.seconds, "s", 100),
        fact("one: operator, peak memory", seen.peak_mib, "MiB"),
        fact("one: operator, CPU until all run", seen.cpu_seconds["operator"], "s"),
        fact("one: operator's requests per pod", sum(seen.kinds.values()) / seen.pods, ""),
    ]
    return rows, {"one: a pod is Running after": seen.pods_running}


async def measure_real(jobs: int) -> Measured:
    before = await real.batch_jobs(jobs, REAL_PODS)
    seen = await real.training_jobs(jobs, REAL_PODS - 1)
    bare = [before, await real.batch_jobs(jobs, REAL_PODS)]
    rate = statistics.mean(each.pods_per_second for each in bare)
    cost = statistics.mean(sum(each.cpu_seconds.values()) for each in bare)
    size = f"{jobs} jobs of {REAL_PODS} pods"
    rows = [
        at_most(f"real: {size} Running", seen.seconds, "s", 240),
        at_least("real: pods Running per second", seen.pods_per_second, "1/s", 45),
        row(
            "real: pods of batch/Jobs Running per second", [each.pods_per_second for each in bare], unit="1/s"
        ),
        at_least("real: of batch/Jobs' rate", seen.pods_per_second / rate, "", 0.8, "batch/Jobs"),
        at_most("real: operator, peak memory", seen.peak_mib, "MiB", 250),
        *_of_a_life(seen),
        *(fact(f"real: CPU of {name} until all run", value, "s") for name, value in seen.cpu_seconds.items()),
        fact("real: CPU of all programs", sum(seen.cpu_seconds.values()), "s"),
        fact("real: CPU of all programs, batch/Jobs", cost, "s"),
    ]
    samples = {
        "real: a job is Running after": seen.running,
        "real: creation to first write": seen.first_writes,
        "real: pod deleted to first write": seen.reactions,
    }
    return rows, samples


def _of_a_life(seen: Figures) -> list[Row]:
    limit = 6 + 2.2 * REAL_PODS
    busiest = float(max(seen.requests))
    full = BUCKET_PER_SECOND + BUCKET / real.QUIET_SECONDS
    return [
        percentile("real: pod deleted to first write, p99", seen.reactions, 1.0),
        percentile("real: creation to first write, p99, while all are created", seen.first_writes, None),
        Row("real: API requests of a job's life", statistics.median(seen.requests), "", len(seen.requests),
            busiest, f"<= {limit:g} (worst)", busiest <= limit, ""),
        at_most("real: writes in 60 s while nothing happens", seen.quiet_writes, "", 0),
        at_most("real: writes a second while all jobs make progress", seen.progress_per_second, "1/s", full),
        fact("real: operator, share of a core while nothing happens", seen.quiet_cpu, ""),
    ]  # fmt: skip


def thinned(samples: list[float]) -> list[float]:
    """At most 200 of thousands, evenly over their order, and the worst."""
    ordered = sorted(samples)
    return [*ordered[:: -(-len(ordered) // 200)], ordered[-1]]


MEASURES = {"local": measure_local, "real": measure_real, "one": measure_one}


def at_most(name: str, value: float, unit: str, goal: float) -> Row:
    shown = round(value, 2)
    return Row(name, shown, unit, 1, shown, f"<= {goal:g}", value <= goal, "")


def at_least(name: str, value: float, unit: str, goal: float, beside: str = "") -> Row:
    shown = round(value, 2)
    return Row(name, shown, unit, 1, shown, f">= {goal:g}", value >= goal, beside)


def fact(name: str, value: float, unit: str) -> Row:
    return Row(name, round(value, 2), unit, 1, round(value, 2), "", None, "")


def percentile(name: str, samples: list[float], goal: float | None) -> Row:
    value = sorted(samples)[max(0, int(len(samples) * 0.99 + 0.999) - 1)]
    holds = None if goal is None else value <= goal
    goal_text = "" if goal is None else f"<= {goal:g}"
    return Row(name, round(value, 3), "s", len(samples), round(max(samples), 3), goal_text, holds, "")


if __name__ == "__main__":
    main()
