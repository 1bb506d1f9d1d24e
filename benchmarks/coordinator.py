"""How many agents does one coordinator on one core hold?

    python -m benchmarks.coordinator [AGENTS ...]                      (16 to 4096 by default; two minutes)
    python -m benchmarks.coordinator 4096 --hold 600 --busy 2          (no figures but of leases)

The shipped process, pinned to one core; the agents are fakes on real sockets (crowd.py), in CLIENTS processes
on the other cores, that apply orders at once and renew their lease as real ones do. For each number of
agents:
    registered   from the first connection until the last agent has its first orders
    planned      from the first connection until the last agent has its part of the first plan
    idle         processor time of the coordinator per second in which all only renew their lease, and the
                 operator sends PUT /desired every 5 s
    recovered    from the death of one rank until every agent has its part of the next plan
    committed    from the first shard of a checkpoint until status names it
    memory       the highest resident memory
    lost         leases that ran out although every agent lived
`registering`, `recovering` and `committing` are processor time of the coordinator, which does not depend on
how fast the agents are.
Limits: fakes start ranks and end them in no time, so `recovered` is the coordinator's part of a recovery. On
a machine with two cores all agents share one, and seconds are theirs as much as the coordinator's.
"""

from __future__ import annotations

import argparse
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
from typing import Any

from lab.coordinator import link as wires
from lab.coordinator.link import TOKEN, Operator
from lab.coordinator.reports import agent
from lab.waiting import within

from benchmarks import crowd
from benchmarks.results import Row, print_rows, row, write
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CoordinatorConfig, Timeouts
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotDesired
from ropeteam_trainer.contract.fence import renew_seconds

SIZES = (16, 64, 256, 1024, 2048, 4096)
CLIENTS = 2
IDLE_SECONDS, PATIENCE, REPORT_SECONDS = 10.0, 60.0, 5.0
GOALS = {"registered": 5.0, "idle": 0.15, "recovered": 1.0, "memory": 200.0, "lost": 0.0}
"""At the largest number."""
UNITS = {"idle": "cores", "memory": "MiB", "lost": "leases"}
LEASE_SECONDS = renew_seconds(Timeouts().lost)
Seen = tuple[dict[str, float], dict[str, tuple[int, float]]]


@dataclass
class Stage:
    """A coordinator and its agents."""

    size: int
    process: subprocess.Popen[bytes]
    desired: Desired
    pipes: list[Connection]
    operator: Operator

    async def report(self) -> JobReport:
        answer = self.operator.request("PUT /desired", codec.encode(self.desired))
        status, body = await within("the desired state is taken", answer)
        assert status == 200, body
        return codec.decode(JobReport, body)

    def command(self, command: str, last: bool = False) -> list[Seen]:
        """Command all agents, or those of the last process; returns what each process has seen."""
        pipes = self.pipes[-1:] if last else self.pipes
        for pipe in pipes:
            pipe.send(command)
        return [pipe.recv() for pipe in pipes]

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    async def until(self, holds: Callable[[JobReport], Any]) -> float:
        """Seconds until the operator sees it."""
        began = time.monotonic()
        while not holds(await self.report()):
            assert time.monotonic() < began + PATIENCE
            await asyncio.sleep(0.2)
        return time.monotonic() - began

    async def until_all(self, mark: str, since: str) -> float:
        """Seconds from the command `since` until the last agent has reached this mark."""
        began = time.monotonic()
        while True:
            answers = self.command("look")
            counts = [seen.get(mark, (0, 0.0)) for _, seen in answers]
            if sum(count for count, _ in counts) >= self.size:
                first = min(commands[since] for commands, _ in answers if since in commands)
                return max(at for _, at in counts) - first
            assert time.monotonic() < began + PATIENCE, f"{mark}: {counts}"
            await asyncio.sleep(0.05)


def start(folder: Path, size: int) -> tuple[subprocess.Popen[bytes], int, int]:
    """The coordinator, and its two ports."""
    settings = CoordinatorConfig("big", "default", agent(0).job_uid, 1, size, 1)
    (folder / "token").write_text(TOKEN.hex())
    log = folder / "log"
    profile = ["-m", "cProfile", "-o", os.environ["PROFILE"]] if "PROFILE" in os.environ else []
    process = subprocess.Popen(
        [
            *(sys.executable, *profile, "-m", "ropeteam_trainer.coordinator"),
            *("--agent-port", "0", "--http-port", "0"),
        ],
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
    os.sched_setaffinity(process.pid, {cores()[0]})
    while not (found := re.search(r"agents=(\d+) http=(\d+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return process, int(found[1]), int(found[2])


def cores() -> list[int]:
    """The coordinator's, then all others (its own, if there are none)."""
    first, *others = sorted(os.sched_getaffinity(0))
    return [first, *(others or [first])]


async def play(stage: Stage) -> dict[str, float]:
    found, used = {}, stage.cpu()
    found["registered"] = await stage.until_all("registered", "connect")
    found["planned"] = await stage.until_all("1.0.1", "connect")
    found["registering"] = stage.cpu() - used
    stage.command("steps")
    await stage.until(lambda report: "runs with" in report.why)
    await asyncio.sleep(2)
    found["idle"] = await idle(stage, IDLE_SECONDS)
    used = stage.cpu()
    stage.command("saves")
    found["committed"] = await stage.until(lambda report: report.lineage)
    found["committing"] = stage.cpu() - used
    await asyncio.sleep(1)
    used = stage.cpu()
    stage.command("dies", last=True)
    found["recovered"] = await stage.until_all("1.0.2", "dies")
    found["recovering"] = stage.cpu() - used
    found["memory"] = stage.memory()
    found["lost"] = lost(await stage.report())
    return found


def lost(report: JobReport) -> int:
    return sum(each.cause.value == "AgentLost" for each in report.incidents)


async def idle(stage: Stage, seconds: float) -> float:
    """Cores used while nothing happens."""
    began, used = time.monotonic(), stage.cpu()
    while time.monotonic() < began + seconds:
        await stage.report()
        await asyncio.sleep(REPORT_SECONDS)
    return (stage.cpu() - used) / (time.monotonic() - began)


async def hold(stage: Stage, seconds: float, busy: int) -> dict[str, float]:
    """Does everybody keep its lease beside `busy` loops on the same core?"""
    await stage.until_all("1.0.1", "connect")
    stage.command("steps")
    await stage.until(lambda report: "runs with" in report.why)
    loops = [multiprocessing.Process(target=_burn, args=(cores()[0],), daemon=True) for _ in range(busy)]
    for loop in loops:
        loop.start()
    used = await idle(stage, seconds)
    report = await stage.report()
    for loop in loops:
        loop.terminate()
    registered = sum(slot.registered for slot in report.slots.values())
    disconnected = sum(seen.get("cut off", (0, 0.0))[0] for _, seen in stage.command("look"))
    return {"idle": used, "registered": registered, "cut off": disconnected, "lost": lost(report)}


def _burn(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def measure(size: int, script: Callable[[Stage], Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        process, port, http = start(Path(folder), size)
        slots = {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in range(size)}
        operator = Operator(http)
        stage = Stage(size, process, Desired(1, 1, 1, slots, allowance=10), [], operator)
        asyncio.run(stage.report())
        share = -(-size // CLIENTS)
        for first in range(0, size, share):
            ours, theirs = multiprocessing.Pipe()
            own = range(first, min(first + share, size))
            settings = (theirs, own, port, LEASE_SECONDS, set(cores()[1:]))
            multiprocessing.Process(target=crowd.live, args=settings, daemon=True).start()
            stage.pipes.append(ours)
        try:
            found: dict[str, float] = asyncio.run(script(stage))
        except BaseException:
            print((Path(folder) / "log").read_text()[-3000:])
            raise
        finally:
            for pipe in stage.pipes:
                pipe.send("end")
            process.terminate()
            process.wait(60)
        return found


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--hold", type=float, default=0.0)
    parser.add_argument("--busy", type=int, default=0)
    flags = parser.parse_args()
    sizes: tuple[int, ...] = tuple(flags.sizes)
    wires.PATIENCE = PATIENCE
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(sizes) + 1024,) * 2)
    if flags.hold:
        for size in sizes:
            print(size, measure(size, lambda stage: hold(stage, flags.hold, flags.busy)))
        return 0
    table: list[Row] = []
    curve: dict[str, list[float]] = {}
    for size in sizes:
        found = measure(size, play)
        table += rows(size, found, max(sizes))
        for name in ("registering", "idle", "recovering", "committing"):
            curve.setdefault(f"{name}, per agent", []).append(1000 * found[name] / size)
        print_rows(table[-len(found) :])
    write("coordinator", table, curve, "milliseconds of the coordinator's core")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
