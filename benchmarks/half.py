"""Half of the ranks are lost for good, one by one: the others continue (sync Exact), beside checkpoints and
restarts (torchrun).

    python -m benchmarks.half [--rounds 3] [--every 15] [--ranks 8] [--out FOLDER]      (3 take half an hour)

As in ReCoVer's experiment (arXiv 2605.11215: 256 of 512 GPUs, 2.23 times the throughput of restarts), each
step is a fixed number of micro-batches, here 16, and is shared by those that are left; 4 of 8 ranks go, one
every 15 seconds. All train to the same step, and the total time counts from the moment when all ranks have
made 15. A micro-batch is padded by a pause, as if each rank had a processor of its own.

Ours: a pod for each rank. The operator is stopped (SIGSTOP), so it replaces no pod. A rank is killed with
SIGKILL, and its agent as soon as the others have made a step, so nobody can start the rank again. Each loss
is compared with that of one process that trains alone, and the micro-batches that ranks compute are counted.
The peer: a rank is killed, torchrun ends, and is started with one rank less; it resumes from its newest
checkpoint. Several intervals of checkpoints are tried, and the best one counts. A fault that comes while the
peer is not yet back waits until it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.local.cluster import Cluster
from lab.local.jobs import job
from lab.waiting import wait_until

from benchmarks import results
from benchmarks.chaos import progress
from benchmarks.contenders import EXACT, started
from benchmarks.gang_restart import sweep
from benchmarks.killlogs import RankLog
from benchmarks.recovery import PATIENCE, WARM_UP, have_stepped
from benchmarks.results import Row, Samples, print_rows, write

SCRIPT = str(Path(__file__).parent / "train_half.py")
LEAVES, PAUSE = 16, 0.02
INTERVALS = (5, 20, 80)
"""Steps between two checkpoints of the peer."""
GOAL = 2.5
NAME = "half"


@dataclass
class Outcome:
    seconds: float = 0.0
    """From the first moment to the last step."""
    pauses: list[float] = field(default_factory=list)
    """Of each fault, from the kill to a step that nobody had made before."""
    lost: list[int] = field(default_factory=list)
    """Ranks that took the signal."""


@dataclass(frozen=True)
class Plan:
    ranks: int
    every: float
    """Seconds between two faults."""

    @property
    def faults(self) -> int:
        return self.ranks // 2

    @property
    def steps(self) -> int:
        """Steps for which an undisturbed change from half to half takes about an interval longer than the
        faults: half as much again as the pauses."""
        lengths = (-(-LEAVES // (self.ranks - lost)) * PAUSE * 1.5 for lost in range(self.faults + 1))
        return WARM_UP + round(sum(self.every / each for each in lengths))


# ---- runs


class Logs:
    def __init__(self, folder: Path, ranks: int) -> None:
        self.of = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(ranks)]

    def read(self) -> None:
        for log in self.of:
            log.read()

    def wait_for_steps(self, ranks: int, count: int) -> None:
        """Until the lowest ranks have made so many."""
        logs = self.of[:ranks]
        self.read()
        begins = [len(log.events) for log in logs]
        wait_until(
            f"{ranks} ranks make {count} steps", lambda: have_stepped(logs, begins, count), 4 * PATIENCE
        )

    def highest(self) -> int:
        self.read()
        return progress(self.of, time.time())

    def wait_for(self, step: int) -> None:
        """Until a rank has made this step."""
        wait_until(f"step {step}", lambda: self.highest() >= step, 20 * PATIENCE)

    def kill(self, rank: int) -> bool:
        """Whether there was a process that took the signal."""
        self.read()
        try:
            os.kill(self.of[rank].events[-1].pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def first(self, step: int) -> float:
        """Time at which a rank had first made this step, or a later one."""
        return min(event.t for log in self.of for event in log.steps() if event.step >= step)

    def close(self) -> None:
        for log in self.of:
            log.close()


def lose(logs: Logs, rank: int, due: float, outcome: Outcome) -> tuple[int, float]:
    """Kill a rank at this time. The highest step at that moment, and the moment."""
    time.sleep(max(0.0, due - time.time()))
    highest, killed = logs.highest(), time.time()
    if logs.kill(rank):
        outcome.lost.append(rank)
    return highest, killed


@contextmanager
def pods(cluster: Cluster, folder: Path, plan: Plan) -> Iterator[Callable[[], list[int]]]:
    """The job, with a pod for each rank. Gives a function that returns the agents' pids, by rank."""
    storage = folder / "checkpoints"
    storage.mkdir(parents=True)
    name = f"{NAME}-{folder.name}"
    command = ["python", SCRIPT, str(folder), str(plan.steps), str(LEAVES), str(PAUSE)]
    made = job(
        name, command, workers=plan.ranks, torch=True, recovery={"start": "Fork", "maxFailures": 1000},
        checkpoint={"volume": {"hostPath": {"path": str(storage)}}, "everySteps": 10},
        strategy={"sync": {"type": "Exact"}, "batch": {"microBatches": LEAVES}},
    )  # fmt: skip
    cluster.create(made)

    def agents() -> list[int]:
        found = sorted(cluster.pods(name), key=lambda pod: str(pod["metadata"]["name"]))
        return [cluster.agent_pid(str(pod["metadata"]["uid"])) for pod in found]

    try:
        yield agents
    finally:
        cluster.delete(name)
        wait_until("all pods are gone", lambda: not cluster.pods(name, None))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def ours(cluster: Cluster, folder: Path, plan: Plan) -> Outcome:
    logs, outcome = Logs(folder, plan.ranks), Outcome()
    with pods(cluster, folder, plan) as agents:
        logs.wait_for_steps(plan.ranks, WARM_UP)
        of_rank, begin = agents(), time.time()
        with stopped(cluster.operator_pid()):
            for number in range(1, plan.faults + 1):
                rank = plan.ranks - number
                highest, killed = lose(logs, rank, begin + number * plan.every, outcome)
                logs.wait_for(highest + 1)
                os.kill(of_rank[rank], signal.SIGKILL)
                outcome.pauses.append(logs.first(highest + 1) - killed)
            logs.wait_for(plan.steps)
    outcome.seconds = logs.first(plan.steps) - begin
    logs.close()
    return outcome


def peer(folder: Path, plan: Plan, interval: int) -> Outcome:
    """torchrun, with a checkpoint every so many steps."""
    folder.mkdir()
    logs, outcome = Logs(folder, plan.ranks), Outcome()
    begin = 0.0
    with ExitStack() as stack:
        stack.callback(sweep, folder)
        running = torchrun(folder, plan, plan.ranks, interval)
        for number in range(1, plan.faults + 1):
            rank = plan.ranks - number
            logs.wait_for_steps(rank + 1, 1 if begin else WARM_UP)
            begin = begin or time.time()
            highest, killed = lose(logs, rank, begin + number * plan.every, outcome)
            end(running, folder)
            running = torchrun(folder, plan, rank, interval)
            logs.wait_for(highest + 1)
            outcome.pauses.append(logs.first(highest + 1) - killed)
        logs.wait_for(plan.steps)
        end(running, folder)
    outcome.seconds = logs.first(plan.steps) - begin
    logs.close()
    return outcome


def torchrun(folder: Path, plan: Plan, ranks: int, interval: int) -> subprocess.Popen[bytes]:
    program = str(Path(sys.executable).with_name("torchrun"))
    options = ["--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0", "--monitor-interval=0.01"]
    script = [SCRIPT, str(folder), str(plan.steps), str(LEAVES), str(PAUSE), str(interval)]
    return started([program, *options, *script], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def end(running: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for torchrun, which ends by itself when a rank has."""
    try:
        running.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    sweep(folder)


def alone(folder: Path, plan: Plan) -> RankLog:
    """Losses of one process, without pauses."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    command = [sys.executable, SCRIPT, str(folder), str(plan.steps), str(LEAVES), "0"]
    subprocess.run(command, check=True, env=environment | {"OMP_NUM_THREADS": "1"})
    log = RankLog(folder / "rank-0.jsonl")
    log.read()
    log.close()
    return log


# ---- micro-batches


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of a run that ranks computed, in the steps that they ended."""

    again: int
    """Number of those that a lost rank may have computed, too."""
    most_again: int
    """Number of those that lost ranks had in their last steps."""
    other_steps: int
    """Steps of another number, without a lost rank that had sent its own."""


def micro_batches(computed: Sequence[Mapping[int, int]]) -> MicroBatches:
    """computed: of each rank, how many it computed in each step that it ended."""
    last = max(step for one in computed for step in one)
    again = most = other = 0
    for step in range(1, last + 1):
        total = sum(one.get(step, 0) for one in computed)
        shares = sum(one[step - 1] for one in computed if step - 1 in one and step not in one)
        again += max(0, total - (LEAVES - shares)) if shares else 0
        most += shares
        other += total not in {LEAVES, LEAVES - shares}
    return MicroBatches(again, most, other)


def computed_in(folder: Path, ranks: int) -> list[dict[int, int]]:
    found = []
    for rank in range(ranks):
        lines = (folder / f"computed-{rank}.jsonl").read_text().splitlines()
        found.append({event["step"]: event["computed"] for event in map(json.loads, lines)})
    return found


def differing(folder: Path, ranks: int, reference: RankLog) -> tuple[int, int]:
    """Losses that are not those of one process, and their number."""
    expected = {event.step: event.loss for event in reference.steps()}
    logs = Logs(folder, ranks)
    logs.read()
    logs.close()
    made = [event for log in logs.of for event in log.steps()]
    return sum(event.loss != expected.get(event.step) for event in made), len(made)


# ---- figures


@dataclass
class Measured:
    ours: list[Outcome] = field(default_factory=list)
    peers: dict[int, list[Outcome]] = field(default_factory=dict)
    """By interval of checkpoints."""
    differ: int = 0
    losses: int = 0
    counted: list[MicroBatches] = field(default_factory=list)


def rows(found: Measured, plan: Plan) -> tuple[list[Row], Samples]:
    totals = {interval: [one.seconds for one in each] for interval, each in found.peers.items()}
    best = min(totals, key=lambda interval: statistics.median(totals[interval]))
    own = [one.seconds for one in found.ours]
    ratios = [peer / mine for peer, mine in zip(totals[best], own, strict=True)]
    name = f"torchrun, a checkpoint every {best} steps"
    samples: Samples = {f"{EXACT}: all steps": own}
    samples |= {f"torchrun, a checkpoint every {each} steps": values for each, values in totals.items()}
    samples |= {
        f"{EXACT}: kill to next step": [pause for one in found.ours for pause in one.pauses],
        f"{name}: kill to next step": [pause for one in found.peers[best] for pause in one.pauses],
        "times faster than the best checkpoints and restarts": ratios,
    }
    table = [results.row(each, values) for each, values in samples.items()]
    faults = f"{plan.faults} of {plan.ranks} ranks are lost, one every {plan.every:g} s; {plan.steps} steps"
    middle = round(statistics.median(ratios), 3)
    table[-1] = Row(
        table[-1].id, middle, "x", len(ratios), round(min(ratios), 3), f">= {GOAL:g}", middle >= GOAL,
        f"{name}; {faults}",
    )  # fmt: skip
    return table + counts(found, plan), samples


def counts(found: Measured, plan: Plan) -> list[Row]:
    runs = [*found.ours, *(one for each in found.peers.values() for one in each)]
    missed = sum(plan.faults - len(one.lost) for one in runs)
    again, most, other = (
        sum(getattr(one, name) for one in found.counted) for name in ("again", "most_again", "other_steps")
    )
    n = plan.steps * len(found.counted)
    return [
        Row("kills that found no process", missed, "kills", plan.faults * len(runs), missed, "0",
            missed == 0, ""),
        Row(f"{EXACT}: losses that differ", found.differ, "", found.losses, found.differ, "0",
            found.differ == 0, "one process"),
        Row(f"{EXACT}: steps of another number of micro-batches", other, "steps", n, other, "0",
            other == 0, f"{LEAVES} in each"),
        Row(f"{EXACT}: micro-batches computed again", again, "", n, again, f"<= {most}", again <= most,
            "those that lost ranks had"),
    ]  # fmt: skip


def measure(cluster: Cluster, work: Path, plan: Plan, rounds: int) -> Measured:
    found = Measured(peers={interval: [] for interval in INTERVALS})
    reference = alone(work / "alone", plan)
    for number in range(rounds):
        folder = work / f"{number}"
        found.ours.append(ours(cluster, folder, plan))
        found.counted.append(micro_batches(computed_in(folder, plan.ranks)))
        differ, losses = differing(folder, plan.ranks, reference)
        found.differ, found.losses = found.differ + differ, found.losses + losses
        for interval in INTERVALS:
            found.peers[interval].append(peer(work / f"{number}-{interval}", plan, interval))
        texts = (f"every {interval} {each[-1].seconds:.1f}" for interval, each in found.peers.items())
        print(f"{number + 1}/{rounds} {found.ours[-1].seconds:.1f} s, {', '.join(texts)}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.half")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=float, default=15, help="seconds between two faults")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    plan = Plan(options.ranks, options.every)
    work = Path(tempfile.mkdtemp(prefix="half-"))
    cluster = Cluster(work / "home")
    try:
        found = measure(cluster, work, plan, options.rounds)
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    table, samples = rows(found, plan)
    write("half", table, samples, "seconds; the last series times")
    print("\n".join(f"{each.id}: {each.beside}" for each in table if each.beside))
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
