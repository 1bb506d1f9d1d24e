"""Does a job that recovers often grow? A rank of three is killed 200 times, and what all processes hold is
counted.

    python -m benchmarks.leaks [--kills 200] [--every 20] [--out FOLDER]        (200 take about ten minutes)

A job of three ranks under sync Exact on the local cluster. Rank 1 and rank 2 are killed with SIGKILL in
turns, each time as soon as new processes of both have made some steps; rank 0, the agents, their zygotes and
the coordinator live on through all of it. After every 20 kills all processes below `ropeteam up` are looked
at, seven times while the job steps, and each figure is the least of these looks. The first 20 kills are
warm-up.

A count of processes, threads, sockets, other file descriptors, entries of the job in /dev/shm or files in
the pods' folders that is higher at the end than after half of the kills is a leak: pools of threads grow to
their size first. Memory of rank 0, agents, zygotes and coordinator (anonymous pages) may grow by 20 kB per
kill, by the line that fits best. Beside it is how it grew before the first kill, in as many steps. The local
cluster has no such goal: it keeps the last 20,000 changes of objects.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.local.cluster import Cluster, files
from lab.processes import arguments_of, name_of
from lab.waiting import wait_until

from benchmarks import results
from benchmarks.contenders import RANKS, ropeteam
from benchmarks.killlogs import RankLog
from benchmarks.recovery import PATIENCE, WARM_UP, have_stepped, kill_once
from benchmarks.resources import Usage, least, parent_of, session_of, slope, usage
from benchmarks.results import Row, Samples, print_rows, write

EXACT = {"strategy": {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}}
ENDLESS = 1_000_000
LOOKS, BETWEEN = 7, 0.15
STEPS_A_KILL = 3
"""Of each rank, before the next kill."""
REST_LOOKS, REST_STEPS = 5, 60
"""Before the first kill."""
MEMORY_GOAL, SHARED_GOAL = 20.0, 0.05
"""kB, and batches in shared memory, per kill."""
FOLLOWED = ("rank 0", "data worker of rank 0", "agent ", "zygote ", "coordinator")
"""Begins of names of processes that live through all kills, and may not grow."""


@dataclass(frozen=True)
class Snapshot:
    kills: int
    step: int
    held: Usage
    memory_entries: int
    """Entries of the job in /dev/shm."""
    pod_files: int


@dataclass
class Seen:
    at_rest: list[Snapshot] = field(default_factory=list)
    """Before the first kill."""
    after_kills: list[Snapshot] = field(default_factory=list)
    lost: int = 0
    """Kills after which the job did not recover."""


COUNTS: dict[str, Callable[[Snapshot], int]] = {
    "processes": lambda each: len(each.held),
    "threads": lambda each: sum(held.threads for held in each.held.values()),
    "sockets": lambda each: sum(held.sockets for held in each.held.values()),
    "other file descriptors": lambda each: sum(held.files for held in each.held.values()),
    "entries in /dev/shm": lambda each: each.memory_entries,
    "files in the pods' folders": lambda each: each.pod_files,
}


# ---- the job


class Names:
    """Names of the processes of a cluster with one job."""

    FIXED = (
        (b"ropeteam_trainer.coordinator", "coordinator"),
        (b"ropeteam.controller", "operator"),
        (b"ropeteam.local", "local cluster"),
        (b"ropeteam.cli", "ropeteam up"),
    )

    def __init__(self, pods: Sequence[dict[str, Any]]) -> None:
        """pods: the workers."""
        ordered = sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
        self.uids = [str(pod["metadata"]["uid"]) for pod in ordered]

    def __call__(self, pid: int) -> str:
        """Raises OSError if the process has ended."""
        comm, arguments = name_of(pid), arguments_of(pid)
        for argument, name in self.FIXED:
            if argument in arguments:
                return name
        if comm.startswith("rank "):
            return comm
        if comm == "pt_data_worker":
            return f"data worker of {name_of(parent_of(pid))}"
        text = b" ".join(arguments).decode(errors="replace")
        slot = next((f" {n}" for n, uid in enumerate(self.uids) if uid in text or f"/{uid[:8]}/" in text), "")
        if "agent.pyz" in text:
            return f"agent{slot}"
        if "zygote.py" in text:
            return f"zygote{slot}" if session_of(pid) == pid else "store"
        return f"shim{slot}" if "shim.py" in text else f"other: {comm}"


class Watched:
    """The running job."""

    def __init__(self, cluster: Cluster, name: str, logs: list[RankLog]) -> None:
        self._cluster, self._logs, self._names = cluster, logs, Names(cluster.pods(name))

    def snapshot(self, kills: int) -> Snapshot:
        usages = []
        for _ in range(LOOKS):
            time.sleep(BETWEEN)
            usages.append(usage(self._cluster.process.pid, self._names))
        held = least(usages)
        for log in self._logs:
            log.read()
        found = Snapshot(kills, self._logs[0].events[-1].step, held, self._entries(held), self._pod_files())
        counts = ", ".join(f"{count(found)} {name}" for name, count in COUNTS.items())
        print(f"{kills:4} kills, step {found.step}: {counts}", flush=True)
        return found

    def _entries(self, held: Usage) -> int:
        """Number of those named after a pod, or by torch after a process (torch_PID_...)."""
        ours = (*self._names.uids, *(f"torch_{each.pid}_" for each in held.values()))
        return sum(any(text in str(path) for text in ours) for path in files(Path("/dev/shm")))

    def _pod_files(self) -> int:
        """Sockets, pages and logs of agents and ranks."""
        return sum(len(files(self._cluster.home / folder)) for folder in ("t", "pods"))


def make_steps(logs: list[RankLog], count: int) -> None:
    for log in logs:
        log.read()
    begins = [len(log.events) for log in logs]
    wait_until(f"all make {count} steps", lambda: have_stepped(logs, begins, count), 2 * PATIENCE + count)


def measure(cluster: Cluster, folder: Path, kills: int, every: int) -> Seen:
    logs = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(RANKS)]
    seen, chance = Seen(), random.Random(0)
    folder.mkdir()
    with ropeteam(cluster, EXACT, folder, ENDLESS):
        make_steps(logs, WARM_UP)
        watched = Watched(cluster, f"recovery-{folder.name}", logs)
        for _ in range(REST_LOOKS):
            make_steps(logs, REST_STEPS)
            seen.at_rest.append(watched.snapshot(0))
        for number in range(1, kills + 1):
            victim = 1 + number % (RANKS - 1)
            if not kill_once(logs, victim, STEPS_A_KILL, chance).recovered:
                seen.lost += 1
                break
            if number % every == 0:
                make_steps(logs, STEPS_A_KILL)
                seen.after_kills.append(watched.snapshot(number))
    for log in logs:
        log.close()
    return seen


# ---- figures


def lasting(snapshots: Sequence[Snapshot]) -> list[str]:
    """Processes that are the same in all of them."""
    found = set.intersection(*({(name, held.pid) for name, held in each.held.items()} for each in snapshots))
    return sorted(name for name, _ in found)


def grown(first: Usage, last: Usage, field_name: str) -> str:
    """Processes that hold more than they did, or are new."""
    more = {
        name: getattr(held, field_name) - (getattr(first[name], field_name) if name in first else 0)
        for name, held in last.items()
    }
    return ", ".join(f"{name} +{count}" for name, count in more.items() if count > 0)


def count_rows(snapshots: Sequence[Snapshot]) -> tuple[list[Row], Samples]:
    """A count that is higher in the last one than in the middle is a leak."""
    table: list[Row] = []
    samples: Samples = {}
    fields = {"threads": "threads", "sockets": "sockets", "other file descriptors": "files"}
    first, middle, last = snapshots[0], snapshots[(len(snapshots) - 1) // 2], snapshots[-1]
    for name, count in COUNTS.items():
        samples[name] = [float(count(each)) for each in snapshots]
        made = results.row(name, samples[name], unit="")
        texts = (f"{count(each)} after {each.kills} kills" for each in (first, middle, last))
        beside = ", ".join(dict.fromkeys(texts))
        if count(last) > count(first) and name in fields:
            beside += f": {grown(first.held, last.held, fields[name])}"
        table.append(replace(made, goal="no growth", holds=count(last) <= count(middle), beside=beside))
    return table, samples


def line_row(name: str, kills: list[float], values: list[float], unit: str, goal: float | None) -> Row:
    """With the growth per kill, by the line that fits best. goal: the most that it may be."""
    growth = slope(kills, values)
    made = replace(results.row(name, values, unit=unit), beside=f"{growth:+.3g} {unit} per kill")
    if goal is None:
        return made
    return replace(made, goal=f"<= {goal:g} per kill", holds=growth <= goal)


def growth_rows(seen: Seen) -> tuple[list[Row], Samples]:
    """Of the memory of each process that is there at each look, and of batches in shared memory."""
    snapshots = seen.after_kills
    kills = [float(each.kills) for each in snapshots]
    steps = (snapshots[-1].step - snapshots[0].step) / (kills[-1] - kills[0])
    same = lasting([*seen.at_rest, *snapshots])
    name = "batches in shared memory"
    samples = {name: [float(sum(held.shared for held in each.held.values())) for each in snapshots]}
    table = [line_row(name, kills, samples[name], "", SHARED_GOAL)]
    for process in sorted(set.intersection(*(set(each.held) for each in snapshots))):
        name, is_same = f"memory of {process}", process in same
        values = samples[name] = [float(each.held[process].kilobytes) for each in snapshots]
        goal = MEMORY_GOAL if is_same and process.startswith(FOLLOWED) else None
        made = line_row(name, kills, values, "kB", goal)
        if is_same:
            rest = [float(each.held[process].kilobytes) for each in seen.at_rest]
            at_rest = slope([float(each.step) for each in seen.at_rest], rest) * steps
            more = f"; {at_rest:+.3g} kB in as many steps ({steps:.1f}) before the first kill"
        else:
            more = "; another process at each look"
        table.append(replace(made, beside=made.beside + more))
    return table, samples


def show(seen: Seen, kills: int) -> int:
    """Write results/, print the figures. Exit status 0: nothing leaks."""
    recovered = Row("not recovered", seen.lost, "kills", kills, seen.lost, "0", seen.lost == 0, "")
    table = [recovered]
    samples: Samples = {}
    if len(seen.after_kills) > 1:
        for rows, values in (count_rows(seen.after_kills), growth_rows(seen)):
            table += rows
            samples |= values
    write("leaks", table, samples, "as of their rows; after each of the same number of kills")
    print("\n".join(f"{each.id}: {each.beside}" for each in table))
    return print_rows(table)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaks")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="kills between two looks; so many are warm-up")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    work = Path(tempfile.mkdtemp(prefix="leaks-"))
    cluster = Cluster(work / "home")
    try:
        seen = measure(cluster, work / "job", options.kills, options.every)
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    return show(seen, options.kills)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
