"""How many agents does one coordinator on one core hold?

    python -m benchmarks.coordinator [AGENTS ...]        (16 64 256 1024 4096 by default; ten minutes)

The shipped process, pinned to core 0; the agents are fakes on real sockets, in CLIENTS processes on the other
cores, that obey at once and renew their lease as real ones do. For each number of agents:
    registered   from the first connection until the operator is told that all are there
    idle         processor time of the coordinator per second in which all only renew their lease
    recovered    from the death of one rank until every agent has its part of the next plan
    committed    from the last shard of a checkpoint until status names it
    memory       the highest resident memory
    lost         leases that ran out although every agent lived
Limits: fakes start ranks and end them in no time, so `recovered` is the coordinator's part of a recovery. On
a machine with two cores the agents share one, and seconds are theirs as much as the coordinator's: processor
time is what compares.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from tests.coordinator import link as wires
from tests.coordinator.film import SIGKILL, agent, obeyed
from tests.coordinator.link import TOKEN, Link, put_desired

from benchmarks.report import Row, row, tell, write
from ropeteam_trainer.contract import VERSION, codec
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotDesired
from ropeteam_trainer.contract.messages import LEASE, RankPhase, Shard
from ropeteam_trainer.contract.world import ShardFile

SIZES = (16, 64, 256, 1024, 4096)
CLIENTS = 2
IDLE_SECONDS, PATIENCE = 20.0, 300.0
GOALS = {"registered": 5.0, "idle": 0.15, "recovered": 1.0, "memory": 200.0, "lost": 0.0}
"""At the largest number."""
UNITS = {"idle": "cores", "memory": "MiB", "lost": "leases"}
LEASES_PER_SECOND = 5 / CoordinatorConfig.__dataclass_fields__["timeouts"].default.lost


class Fake:
    """An agent without processes."""

    def __init__(self, slot: int, port: int) -> None:
        self.slot, self._port = slot, port
        self.report = agent(slot, contract=VERSION)
        self.number = 0

    async def live(self) -> None:
        self.link = await Link().connect(self._port)
        self.tell()
        renewing = asyncio.create_task(self._renew())
        try:
            while await self.link.take():
                orders = self.link.orders
                if orders and not orders.same and orders.number != self.report.orders_seen:
                    self.report = replace(obeyed(self.report, orders, 2), orders_seen=orders.number)
                    self.tell()
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(1 / LEASES_PER_SECOND)
            self.number += 1
            self.link.write(self.link.sealer.seal(LEASE))

    def tell(self) -> None:
        self.number += 1
        self.link.send(replace(self.report, number=self.number))

    def steps(self) -> None:
        self.report = replace(
            self.report,
            ranks=tuple(
                replace(r, phase=RankPhase.RUNNING, step=10, steps_here=10) for r in self.report.ranks
            ),
        )
        self.tell()

    def saves(self) -> None:
        plan = self.report.plan
        assert plan is not None
        files = tuple(ShardFile(f"__{self.slot}_{n}.distcp", 10**9, "f" * 64) for n in range(4))
        self.report = replace(self.report, shards=(Shard(self.slot, plan.epoch, 10, files),))
        self.tell()

    def dies(self) -> None:
        ranks = tuple(replace(r, phase=RankPhase.EXITED, exit=SIGKILL) for r in self.report.ranks)
        self.report = replace(self.report, ranks=ranks, stopped=True)
        self.tell()


def clients(pipe: Connection, slots: range, port: int) -> None:
    """One process of agents: takes words from the benchmark, answers with the epoch of each plan."""
    others = os.sched_getaffinity(0) - {0}
    os.sched_setaffinity(0, others or {0})
    asyncio.run(_clients(pipe, slots, port))


async def _clients(pipe: Connection, slots: range, port: int) -> None:
    fakes = [Fake(slot, port) for slot in slots]
    tasks = [asyncio.create_task(fake.live()) for fake in fakes]
    while True:
        await asyncio.sleep(0.01)
        if not pipe.poll():
            continue
        word = pipe.recv()
        if word == "end":
            break
        if word in ("steps", "saves"):
            for fake in fakes:
                getattr(fake, word)()
        if word == "dies":
            fakes[-1].dies()
        pipe.send([str(fake.report.plan.epoch) for fake in fakes if fake.report.plan])
    for task in tasks:
        task.cancel()


@dataclass
class Stage:
    """A coordinator and its agents."""

    process: subprocess.Popen[bytes]
    http: int
    desired: Desired
    pipes: list[Connection]

    async def report(self) -> JobReport:
        return await asyncio.wait_for(put_desired(self.http, self.desired), PATIENCE)

    def ask(self, word: str) -> list[str]:
        for pipe in self.pipes:
            pipe.send(word)
        return [epoch for pipe in self.pipes for epoch in pipe.recv()]

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    async def until(self, holds: Callable[[JobReport], bool]) -> float:
        """Seconds until the operator would see it."""
        began = time.monotonic()
        while not holds(await self.report()):
            assert time.monotonic() < began + PATIENCE
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    def until_epoch(self, epoch: str, size: int) -> float:
        began = time.monotonic()
        while self.ask("look").count(epoch) < size:
            assert time.monotonic() < began + PATIENCE
            time.sleep(0.01)
        return time.monotonic() - began


def start(folder: Path, size: int) -> tuple[subprocess.Popen[bytes], int, int]:
    """The coordinator, and its two ports."""
    settings = CoordinatorConfig("big", "default", agent(0).job_uid, 1, size, 1)
    (folder / "token").write_text(TOKEN.hex())
    log = folder / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "ropeteam_trainer.coordinator", "--agent-port", "0", "--http-port", "0"],
        env={
            **os.environ,
            "ROPETEAM_CONFIG": codec.encode(settings).decode(),
            "ROPETEAM_TOKEN_FILE": str(folder / "token"),
            "ROPETEAM_POD_IP": "127.0.0.1",
            "ROPETEAM_STATE_DIR": str(folder),
        },
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    os.sched_setaffinity(process.pid, {0})
    while not (found := re.search(r"agents=(\d+) http=(\d+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return process, int(found[1]), int(found[2])


async def play(stage: Stage, size: int) -> dict[str, float]:
    found = {}
    began, used = time.monotonic(), stage.cpu()
    await stage.until(lambda report: sum(slot.registered for slot in report.slots.values()) == size)
    found["registered"], found["registering"] = time.monotonic() - began, stage.cpu() - used
    stage.until_epoch("1.0.1", size)
    stage.ask("steps")
    await stage.until(lambda report: "runs with" in report.why)
    await asyncio.sleep(2)
    began, used = time.monotonic(), stage.cpu()
    await asyncio.sleep(IDLE_SECONDS)
    found["idle"] = (stage.cpu() - used) / (time.monotonic() - began)
    used = stage.cpu()
    stage.ask("saves")
    found["committed"] = await stage.until(lambda report: bool(report.lineage))
    found["committing"] = stage.cpu() - used
    used = stage.cpu()
    stage.ask("dies")
    found["recovered"] = stage.until_epoch("1.0.2", size)
    found["recovering"] = stage.cpu() - used
    found["memory"] = stage.memory()
    found["lost"] = sum(each.cause.value == "AgentLost" for each in (await stage.report()).incidents)
    return found


def measure(size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        process, port, http = start(Path(folder), size)
        words = {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in range(size)}
        stage = Stage(process, http, Desired(1, 1, 1, words, allowance=10), [])
        asyncio.run(stage.report())
        share = -(-size // CLIENTS)
        for first in range(0, size, share):
            ours, theirs = multiprocessing.Pipe()
            slots = range(first, min(first + share, size))
            multiprocessing.Process(target=clients, args=(theirs, slots, port), daemon=True).start()
            stage.pipes.append(ours)
        try:
            return asyncio.run(play(stage, size))
        finally:
            for pipe in stage.pipes:
                pipe.send("end")
            process.terminate()
            process.wait(30)


def rows(size: int, found: dict[str, float], largest: int) -> list[Row]:
    table = []
    for name, value in found.items():
        beside = "processor time of the coordinator" if name.endswith("ing") else ""
        one = row(f"coordinator.{name}.{size}", [value], unit=UNITS.get(name, "s"), beside=beside)
        if size == largest and name in GOALS:
            one = replace(one, goal=f"<= {GOALS[name]:g}", holds=value <= GOALS[name])
        table.append(one)
    return table


def main() -> int:
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    wires.PATIENCE = PATIENCE
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(sizes) + 1024,) * 2)
    table: list[Row] = []
    curve: dict[str, list[float]] = {}
    for size in sizes:
        found = measure(size)
        table += rows(size, found, max(sizes))
        for name in ("registering", "idle", "recovering", "committing"):
            curve.setdefault(f"{name}, per agent", []).append(1000 * found[name] / size)
        tell(table[-len(found) :])
    write("coordinator", table, curve, "milliseconds of the coordinator's core")
    return tell(table)


if __name__ == "__main__":
    sys.exit(main())
