"""How long do ranks under sync Exact wait when a pod dies with its agent, or when the coordinator dies?

    python -m benchmarks.lost_pods [--kills 10] [--out FOLDER]

A job of three pods of one rank each on this machine; all processes of a pod are killed with SIGKILL, each pod
in turn. Then the coordinator is killed, half as often. Of each:

    pod killed: wait of the others       longest time between two steps of another rank until the full world
                                         trains again, without the median step before
    pod killed: full world               until a new process of the pod's rank has made a step
    pod killed: full world after agent   the same from the moment in which the new pod's agent can fork ranks
    coordinator killed: wait             longest time between two steps of any rank until another one has been
                                         there for SETTLING seconds, without the median step before
    nothing killed: wait                 the same within SETTLING seconds, without a fault

Each loss is compared with that of a run without faults. Limits: pods are groups of processes here, so a new
one starts at once, and a closed connection shows a death, which a node that is off does not do (`make e2e`).
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
from lab.local.cluster import Cluster
from lab.waiting import wait_until

from benchmarks import results
from benchmarks.chaos import repeated
from benchmarks.contenders import RANKS, Contender, ropeteam
from benchmarks.killlogs import RankLog, median_step
from benchmarks.recovery import PATIENCE, WARM_UP, count, have_stepped, run_job
from benchmarks.results import Row, Samples, print_rows, row, write

STRATEGY = {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}
NAME = "recovery-pods"
"""Of the job: contenders.py makes it of the folder's."""
SETTLING = 5.0
ENDLESS = 100_000
LOST = 5.0
"""timeouts.lostSeconds as a job has it that says nothing."""


class Job:
    """The running job, and what its ranks have logged so far."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self.logs = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(RANKS)]

    def settle(self) -> float:
        """Until all ranks have made some more steps. The median step of these."""
        for log in self.logs:
            log.read()
        begins = [len(log.events) for log in self.logs]
        wait_until("all ranks step", partial(have_stepped, self.logs, begins, WARM_UP), 2 * PATIENCE)
        return median_step(self.logs[0].steps(begins[0]))

    def kill_pod(self, rank: int) -> tuple[float, float, float]:
        """Seconds: wait of the others, until the full world, and that since the new agent could fork."""
        step, pods = self.settle(), self._pods()
        agent = psutil.Process(self._cluster.agent_pid(pods[rank]["metadata"]["uid"]))
        processes, killed = [agent, *agent.children(recursive=True)], time.time()
        assert self.logs[rank].events[-1].pid in {each.pid for each in processes}
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # it has died with its agent
                process.kill()
        ready = self._agent_is_ready(rank, pods[rank]["metadata"]["name"])
        whole = wait_until("a new process steps", partial(self._first_step, rank, killed), PATIENCE)
        others = [log for number, log in enumerate(self.logs) if number != rank]
        wait_until("a step of the others", partial(self._have_stepped_since, whole), PATIENCE)
        wait = longest(others, killed, whole) - step
        return wait, whole - killed, whole - ready

    def kill_coordinator(self) -> float:
        coordinator = wait_until("a coordinator", self._coordinator, PATIENCE)
        step, killed = self.settle(), time.time()
        os.kill(coordinator, signal.SIGKILL)
        wait_until("another coordinator", lambda: self._coordinator() not in (None, coordinator), PATIENCE)
        return self._wait_since(killed) - step

    def disturb_nothing(self) -> float:
        step = self.settle()
        return self._wait_since(time.time()) - step

    def _wait_since(self, begin: float) -> float:
        """Longest step from this moment until SETTLING seconds from now."""
        time.sleep(SETTLING)
        end = time.time()
        self.settle()
        return longest(self.logs, begin, end)

    def _have_stepped_since(self, t: float) -> bool:
        for log in self.logs:
            log.read()
        return all(log.events[-1].t >= t for log in self.logs)

    def _coordinator(self) -> int | None:
        try:
            return self._cluster.coordinator_pid(NAME)
        except AssertionError:  # the one that was killed has no successor yet
            return None

    def _pods(self) -> dict[int, dict[str, dict[str, str]]]:
        return {int(pod["metadata"]["labels"]["ropeteam.dev/slot"]): pod for pod in self._cluster.pods(NAME)}

    def _agent_is_ready(self, slot: int, old: str) -> float:
        """When the slot's new pod could fork ranks, some hundredths of a second late."""

        def can_fork() -> bool:
            pod = self._pods().get(slot)
            if pod is None or pod["metadata"]["name"] == old:
                return False
            return "ranks can be forked" in self._cluster.logs(pod["metadata"]["name"])

        wait_until(f"a new agent of slot {slot}", can_fork, PATIENCE)
        return time.time()

    def _first_step(self, rank: int, since: float) -> float | None:
        for log in self.logs:
            log.read()
        events = [event for event in self.logs[rank].events if event.t > since]
        started = next((event for event in events if event.kind == "start"), None)
        return next((e.t for e in events if started and e.kind == "step" and e.t > started.t), None)


def longest(logs: Sequence[RankLog], begin: float, end: float) -> float:
    """The longest time between two steps of a rank, of which part lies between these moments."""
    gaps = (
        after.t - before.t
        for log in logs
        for before, after in pairwise(log.steps())
        if before.t < end and after.t > begin
    )
    return max(gaps)


def differing(logs: Sequence[RankLog], undisturbed: Sequence[RankLog]) -> Iterator[bool]:
    """Whether the loss is another, for each step; that of one which only these have made is."""
    expected = {event.step: event.loss for event in undisturbed[0].steps()}
    for log in logs:
        yield from (event.loss != expected.get(event.step) for event in log.steps())


def measure(work: Path, kills: int) -> tuple[list[Row], Samples]:
    cluster = Cluster(work / "home")
    run = partial(ropeteam, cluster, {"strategy": STRATEGY}, every_steps=100_000)
    try:
        # More steps than are made meanwhile: some 80 for each pod, and 250 for each coordinator.
        steps = Contender(run, 18 * kills, is_ours=True)
        undisturbed = run_job(steps, work / "undisturbed", 0, random.Random(0))
        folder = work / "pods"
        folder.mkdir()
        with run(folder, ENDLESS):
            job = Job(cluster, folder)
            of_pods = [shown("pod", job.kill_pod(number % RANKS)) for number in range(kills)]
            of_coordinator = [job.kill_coordinator() for _ in range(max(1, kills // 2))]
            of_nothing = [job.disturb_nothing() for _ in range(max(1, kills // 2))]
        differ = list(differing(job.logs, undisturbed))
    finally:
        cluster.stop()
    names = ("wait of the others", "full world", "full world after agent")
    samples = {f"pod killed: {name}": [each[index] for each in of_pods] for index, name in enumerate(names)}
    samples |= {"coordinator killed: wait": of_coordinator, "nothing killed: wait": of_nothing}
    again = count("steps made again", [repeated(job.logs)], "", is_goal=True)
    return [*figures(samples), different(differ), again], samples


def shown(what: str, seconds: tuple[float, ...]) -> tuple[float, ...]:
    print(f"{what}: {' '.join(f'{each:.2f}' for each in seconds)} s", flush=True)
    return seconds


def figures(samples: Samples) -> Iterator[Row]:
    most = {"pod killed: wait of the others": LOST + 0.2, "pod killed: full world after agent": 0.5}
    for name, values in samples.items():
        each = row(name, values)
        if goal := most.get(name):
            each = replace(each, goal=f"<= {goal:g}", holds=each.value <= goal)
        yield each


def different(found: list[bool]) -> Row:
    return Row("losses that differ", sum(found), "", len(found), sum(found), "0", not any(found), "no faults")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_pods")
    parser.add_argument("--kills", type=int, default=10, help="of pods; half as many of the coordinator")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    results.RESULTS = options.out
    work = Path(tempfile.mkdtemp(prefix="lost-pods-"))
    try:
        table, samples = measure(work, options.kills)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write("lost_pods", table, samples, "seconds")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
