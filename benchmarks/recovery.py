"""How long is training away when one of three ranks is killed? Recovery in the step (sync Exact) beside
restart by fork, torchrun and, if they are installed, torchft and Ray Train; interleaved in one run.

    python -m benchmarks.recovery [--rounds 20] [--kills 15] [--peer-kills 1] [--out FOLDER]

In each round each contender starts a job of three ranks on this machine (gloo, loopback, 0.05 s of pause in
each step, a checkpoint every 10 steps). Once all ranks step, one is killed with SIGKILL at a random moment,
each rank in turn; the next kill follows some steps after the recovery. Of each kill:

    undisturbed step      the killed rank's median step before
    step of the kill      from the end of the step before it to the next of these moments
    kill to next step     until all other ranks have ended a step that they had not made before
    kill to full world    until a new process of the killed rank has made a step

A kill after which these are not seen within 60 s counts as 60 s and ends the job. Ours run train_exact.py
to its end: each loss and the SHA-256 of the parameters are compared with those of a run without kills.
Limits: the peers' scripts are smaller, without a DataLoader worker, and their losses are not compared;
replicas of torchft have no checkpoint, and each peer is measured with few kills. A rank that dies when a
step's sums have been exchanged is needed in the next step only.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path

from lab.local.cluster import Cluster
from lab.waiting import NotYet, wait_until

from benchmarks import results
from benchmarks.contenders import EXACT, Contender, contenders, is_installed
from benchmarks.killlogs import Compared, Kill, RankLog, Victim, compared, median_step, outcome
from benchmarks.results import Row, print_rows, row, write

PATIENCE = 60.0
WARM_UP = 15
"""Steps of each rank before the first kill."""
STEPS_A_KILL, LAST_STEPS = 20, 30
"""As a rule more than are made between two kills; more than any kill takes."""


# ---- jobs and kills


def run_job(contender: Contender, folder: Path, kills: int, chance: random.Random) -> list[RankLog]:
    """A job of the contender, with so many kills. The complete logs of its ranks."""
    steps = WARM_UP + LAST_STEPS + STEPS_A_KILL * contender.kills
    logs = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(contender.ranks)]
    folder.mkdir()
    first, recovered = chance.randrange(contender.ranks), True
    with contender.run(folder, steps):
        for number in range(kills):
            count = chance.randint(6, 10) if number else WARM_UP
            contender.seen.append(kill_once(logs, (first + number) % contender.ranks, count, chance))
            recovered = contender.seen[-1].recovered
            ends_soon = logs[first].events[-1].step > steps - LAST_STEPS
            if not recovered or (contender.is_ours and ends_soon):
                break
        if contender.is_ours and recovered:
            wait_until("all ranks have ended", lambda: all(map(has_ended, logs)), max(180, 5 * steps))
    for log in logs:
        log.read()
        log.close()
    return logs


def kill_once(logs: list[RankLog], rank: int, count: int, chance: random.Random) -> Kill:
    """Kill a rank when all have made so many steps, and watch."""
    for log in logs:
        log.read()
    begins = [len(log.events) for log in logs]
    wait_until(f"all ranks make {count} steps", lambda: have_stepped(logs, begins, count), 2 * PATIENCE)
    undisturbed = median_step(logs[rank].steps(begins[rank]))
    time.sleep(chance.random() * undisturbed)
    victim = Victim(rank, logs[rank].events[-1].pid, time.time())
    os.kill(victim.pid, signal.SIGKILL)

    def seen() -> Kill | None:
        grown = [log.read() for log in logs]
        if not any(grown):
            return None
        recent = [log.events[begin:] for log, begin in zip(logs, begins, strict=True)]
        return outcome(victim, undisturbed, recent)

    try:
        return wait_until("all ranks step again", seen, PATIENCE)
    except NotYet:
        return Kill(undisturbed, PATIENCE, PATIENCE, PATIENCE, 0, recovered=False)


def have_stepped(logs: list[RankLog], begins: list[int], count: int) -> bool:
    for log in logs:
        log.read()
    return all(len(log.steps(begin)) >= count for log, begin in zip(logs, begins, strict=True))


def has_ended(log: RankLog) -> bool:
    log.read()
    return bool(log.events) and log.events[-1].kind == "end"


# ---- figures


def series(name: str, kills: list[Kill]) -> dict[str, list[float]]:
    """Samples of one contender."""
    return {
        f"{name}: undisturbed step": [kill.undisturbed for kill in kills],
        f"{name}: step of the kill": [kill.step for kill in kills],
        f"{name}: kill to next step": [kill.progress for kill in kills],
        f"{name}: kill to full world": [kill.whole for kill in kills],
    }


def p99(name: str, samples: list[float]) -> Row:
    value = sorted(samples)[max(0, int(len(samples) * 0.99 + 0.999) - 1)]
    return Row(f"{name}, p99", round(value, 3), "s", len(samples), round(max(samples), 3), "", None, "")


def count(name: str, each: list[int], unit: str, *, is_goal: bool) -> Row:
    """A sum that is best 0."""
    total = sum(each)
    return Row(
        name, total, unit, len(each), max(each), "0" if is_goal else "", total == 0 if is_goal else None, ""
    )


def counts(name: str, contender: Contender) -> Iterator[Row]:
    kills = contender.seen
    lost = [int(not kill.recovered) for kill in kills]
    yield count(f"{name}: not recovered in 60 s", lost, "kills", is_goal=contender.is_ours)
    yield count(
        f"{name}: steps made again", [kill.repeated for kill in kills], "steps", is_goal=name == EXACT
    )
    if contender.is_ours:
        differ, n = contender.compared
        what, beside = f"{name}: losses and digests that differ", "a run without kills"
        yield Row(what, differ, "", n, differ, "0", differ == 0, beside)


def rows(found: dict[str, Contender]) -> list[Row]:
    """The figures, and the goals beside them."""
    table: list[Row] = []
    for name, contender in found.items():
        for each, samples in series(name, contender.seen).items():
            table += [row(each, samples), p99(each, samples)]
        table += counts(name, contender)
    values = {each.id: each.value for each in table}
    most = {
        f"{EXACT}: step of the kill": round(values[f"{EXACT}: undisturbed step"] + 0.15, 3),
        f"{EXACT}: kill to full world": 0.2,
        f"{EXACT}: kill to full world, p99": 0.6,
    }
    table = [
        replace(each, goal=f"<= {most[each.id]:g}", holds=each.value <= most[each.id])
        if each.id in most else each
        for each in table
    ]  # fmt: skip
    peers = [f"{name}: kill to full world" for name, contender in found.items() if not contender.is_ours]
    best = min(peers, key=lambda name: values[name])
    ours = [kill.whole for kill in found[EXACT].seen]
    ratio, worst = (
        round(values[best] / each, 2) for each in (values[f"{EXACT}: kill to full world"], max(ours))
    )
    faster = f"{EXACT}: kill to full world, times faster than the best peer"
    return [*table, Row(faster, ratio, "x", len(ours), worst, ">= 15", ratio >= 15, best)]


def show(found: dict[str, Contender]) -> int:
    """Write results/, print the figures. Exit status 0: all goals are met."""
    found = {name: contender for name, contender in found.items() if contender.seen}
    table = rows(found)
    samples = {
        key: each for name, contender in found.items() for key, each in series(name, contender.seen).items()
    }
    versions = {name: version_of(name) for name in ("torchft", "ray")}
    write("recovery", table, samples, "seconds", **versions)
    return print_rows(table)


def version_of(package: str) -> str:
    """Of whatever distribution has it: torchft's are called torchft and torchft-nightly."""
    names = packages_distributions().get(package, []) if is_installed(package) else []
    return version(names[0]) if names else "not installed"


def measure(found: dict[str, Contender], work: Path, rounds: int) -> None:
    chance = random.Random(0)
    ours = {name: each for name, each in found.items() if each.is_ours}
    for index, contender in enumerate(ours.values()):
        contender.undisturbed = run_job(contender, work / f"undisturbed-{index}", 0, chance)
    for number in range(rounds):
        for index, (name, contender) in enumerate(found.items()):
            folder, earlier = work / f"r{number}-{index}", len(contender.seen)
            try:
                logs = run_job(contender, folder, contender.kills, chance)
            except (NotYet, ProcessLookupError) as error:  # has not started, or died by itself
                if contender.is_ours:
                    raise
                print(f"{name}: {error}", flush=True)
            if contender.is_ours:
                one, before = compared(logs, contender.undisturbed), contender.compared
                contender.compared = Compared(before.differ + one.differ, before.all + one.all)
            shutil.rmtree(folder, ignore_errors=True)
            whole = " ".join(f"{kill.whole:.2f}" for kill in contender.seen[earlier:])
            print(f"{number + 1:3}/{rounds} {name:20} {whole}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=15, help="of ours, in each round")
    parser.add_argument(
        "--peer-kills", type=int, default=1, choices=range(1, 5), help="of each other contender"
    )
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    work = Path(tempfile.mkdtemp(prefix="recovery-"))
    cluster = Cluster(work / "home")
    found = contenders(cluster, options.kills, options.peer_kills)
    try:
        measure(found, work, options.rounds)
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    return show(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
