"""How much of its speed does a job keep when a rank of three is killed every 15 seconds, for ten minutes?

    python -m benchmarks.chaos [--rounds 4] [--seconds 150] [--every 15] [--pause 0.12] [--out FOLDER]

                                                     (4 rounds of 150 s take half an hour)

In each round a job of three ranks trains without faults for so long, and then again, while a random rank is
killed with SIGKILL in the middle of every 15 seconds. Steps are padded by a pause. A rate is that of
progress: the highest step that any rank has made, from the moment when all have made 15 steps; what is made
again counts once. Sync Exact trains to the same step both times, so each loss and the SHA-256 of the weights
are compared; torchrun with the settings that suit it best (recovery.py), and its own undisturbed run, take
half as long.

A kill has fired if a process was there that took the signal. A job has recovered from it if a new process of
that rank has made a step until the end.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lab.local.cluster import Cluster
from lab.waiting import wait_until

from benchmarks import results
from benchmarks.contenders import EXACT, RANKS, Running, ropeteam, torchrun
from benchmarks.killlogs import Compared, RankLog, compared, median_step
from benchmarks.recovery import PATIENCE, WARM_UP, has_ended, have_stepped
from benchmarks.results import Row, Samples, print_rows, write

GOAL = 0.97
TORCHRUN = "torchrun, tuned"
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Fault:
    t: float
    rank: int
    pid: int
    fired: bool


@dataclass(frozen=True)
class Run:
    logs: list[RankLog]
    begin: float
    """Time from which on progress counts."""
    end: float
    faults: list[Fault]

    @property
    def rate(self) -> float:
        """Steps per second."""
        made = progress(self.logs, self.end) - progress(self.logs, self.begin)
        return made / (self.end - self.begin)


@dataclass
class Contender:
    start: Callable[[Path, int], Running]
    """Starts its job, with a folder for the logs and the number of steps."""
    seconds: float
    ends: bool
    """Whether the script ends after those steps, and logs losses."""
    calm: list[Run] = field(default_factory=list)
    disturbed: list[Run] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)


# ---- judgement of logs


def progress(logs: Sequence[RankLog], until: float) -> int:
    """The highest step that a rank had made at this time."""
    return max((event.step for log in logs for event in log.steps() if event.t <= until), default=0)


def repeated(logs: Iterable[RankLog]) -> int:
    """Steps that a rank has made again; of the rank with most of them."""

    def of(log: RankLog) -> int:
        highest = count = 0
        for event in log.steps():
            count += event.step <= highest
            highest = max(highest, event.step)
        return count

    return max(map(of, logs))


def recovered(fault: Fault, logs: Sequence[RankLog]) -> bool:
    return any(event.pid != fault.pid and event.t > fault.t for event in logs[fault.rank].steps())


# ---- runs


def run(contender: Contender, folder: Path, steps: int, every: float, chance: random.Random) -> Run:
    """A job of the contender. every: seconds between two kills; 0: none."""
    folder.mkdir()
    logs = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(RANKS)]
    with contender.start(folder, steps):
        wait_until("all ranks step", lambda: have_stepped(logs, [0] * RANKS, WARM_UP), 2 * PATIENCE)
        begin = time.time()
        over_at = 0.0 if contender.ends else begin + contender.seconds
        last_kill = contender.seconds - every / 2 if every else 0.0
        faults = disturb(logs, every, begin, last_kill, chance) if every else []
        wait_until(
            "the job ends",
            lambda: time.time() > over_at and (not contender.ends or all(map(has_ended, logs))),
            3 * contender.seconds + 2 * PATIENCE,
        )
    for log in logs:
        log.read()
        log.close()
    end = (
        max(event.t for log in logs for event in log.steps()) if contender.ends else begin + contender.seconds
    )
    return Run(logs, begin, end, faults)


def disturb(
    logs: Sequence[RankLog], every: float, begin: float, last: float, chance: random.Random
) -> list[Fault]:
    """Kill a random rank in the middle of each interval, until so many seconds after begin."""
    faults, due = [], every / 2
    while due <= last:
        time.sleep(max(0.0, begin + due - time.time()) + 0.2 * chance.random())
        rank = chance.randrange(RANKS)
        logs[rank].read()
        pid, fired = logs[rank].events[-1].pid, True
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            fired = False
        faults.append(Fault(time.time(), rank, pid, fired))
        due += every
    return faults


def measure(found: dict[str, Contender], work: Path, rounds: int, every: float) -> None:
    chance = random.Random(0)
    for number in range(rounds):
        for index, (name, contender) in enumerate(found.items()):
            steps = steps_of(contender, work / f"c{number}-{index}", chance) if contender.ends else ENDLESS
            calm = run(contender, work / f"u{number}-{index}", steps, 0.0, chance)
            disturbed = run(contender, work / f"k{number}-{index}", steps, every, chance)
            contender.calm.append(calm)
            contender.disturbed.append(disturbed)
            if contender.ends:
                contender.compared.append(compared(disturbed.logs, calm.logs))
            ratio, kills = disturbed.rate / calm.rate, len(disturbed.faults)
            print(
                f"{number + 1}/{rounds} {name:16} {ratio:.3f} of {calm.rate:.2f} 1/s, {kills} kills",
                flush=True,
            )


def steps_of(contender: Contender, folder: Path, chance: random.Random) -> int:
    """Steps that take the contender's seconds, without kills."""
    short = run(contender, folder, 3 * WARM_UP, 0.0, chance)
    return WARM_UP + round(contender.seconds * short.rate)


# ---- figures


def rows(found: dict[str, Contender]) -> tuple[list[Row], Samples]:
    table: list[Row] = []
    samples: Samples = {}
    for name, each in found.items():
        ours = name == EXACT
        ratios = [kills.rate / calm.rate for kills, calm in zip(each.disturbed, each.calm, strict=True)]
        step = [median_step(calm.logs[0].steps()) for calm in each.calm]
        samples |= {f"{name}: steps made / undisturbed": ratios, f"{name}: undisturbed step": step}
        middle = round(statistics.median(ratios), 4)
        table += [
            Row(f"{name}: steps made / undisturbed", middle, "x", len(ratios), round(min(ratios), 4),
                f">= {GOAL:g}" if ours else "", middle >= GOAL if ours else None, "its own undisturbed run"),
            results.row(f"{name}: undisturbed step", step),
            *counts(name, each),
        ]  # fmt: skip
    return table, samples


def counts(name: str, each: Contender) -> list[Row]:
    ours = name == EXACT
    fired = [fault for one in each.disturbed for fault in one.faults if fault.fired]
    missed = sum(len(one.faults) for one in each.disturbed) - len(fired)
    lost = sum(
        not recovered(fault, one.logs) for one in each.disturbed for fault in one.faults if fault.fired
    )
    again = [repeated(one.logs) for one in each.disturbed]
    goal = "0" if ours else ""
    table = [
        Row(f"{name}: kills that found no process", missed, "kills", missed + len(fired), missed, goal,
            missed == 0 if ours else None, f"{len(fired)} have fired"),
        Row(f"{name}: not recovered", lost, "kills", len(fired), lost, goal, lost == 0 if ours else None, ""),
        Row(f"{name}: steps made again", sum(again), "steps", len(fired), max(again), goal,
            sum(again) == 0 if ours else None, ""),
    ]  # fmt: skip
    if each.compared:
        differ, n = (sum(values) for values in zip(*each.compared, strict=True))
        what, beside = f"{name}: losses and digests that differ", "the undisturbed run of the same round"
        table.append(Row(what, differ, "", n, differ, "0", differ == 0, beside))
    return table


def show(found: dict[str, Contender]) -> int:
    """Write results/, print the figures. Exit status 0: all goals are met."""
    table, samples = rows(found)
    write("chaos", table, samples, "as of their rows; a sample per round")
    print("\n".join(f"{each.id}: {each.beside}" for each in table if each.beside))
    return print_rows(table)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=150, help="of a run; of torchrun's half of it")
    parser.add_argument("--every", type=float, default=15, help="seconds between two kills")
    parser.add_argument("--pause", type=float, default=0.12, help="seconds of each step")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    work = Path(tempfile.mkdtemp(prefix="chaos-"))
    cluster = Cluster(work / "home")
    exact = {"strategy": {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}}
    tuned = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PAUSE": str(options.pause)}
    found = {
        EXACT: Contender(partial(ropeteam, cluster, exact, pause=options.pause), options.seconds, ends=True),
        TORCHRUN: Contender(
            partial(torchrun, ["--monitor-interval=0.01"], tuned), options.seconds / 2, ends=False
        ),
    }
    try:
        measure(found, work, options.rounds, options.every)
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    return show(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
