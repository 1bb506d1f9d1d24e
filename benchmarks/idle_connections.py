"""Recovery of a deleted pod beside 500 idle connections at each port.

    python -m benchmarks.idle_connections [TRIALS]      (5 by default; about twenty minutes)

Two jobs of two workers on a local cluster, one data parallel, one with a parameter server. In turns: alone;
with idle clients at each port that we serve, from an address of their own, and from that of the pods; and at
torch's own ports, which have no secret (without a goal: only a NetworkPolicy protects them). When each port
has had its 500 connections a pod is deleted, as people do it; the time counts to the first step of all
workers. The ports of its replacement get their clients as soon as they listen. A job that has not recovered
in 60 s counts as 60. The clients are one process of lower priority (benchmarks/idle_clients.py). It shares
the cores with the job, as do all pods: the seconds contain its cost, and its share of a core is a row.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lab.local.cluster import Cluster
from lab.local.jobs import job
from lab.waiting import NotYet, wait_until

from benchmarks.gang_restart import events, steps
from benchmarks.idle_clients import EACH
from benchmarks.results import Row, print_rows, row, write

SCRIPT = Path(__file__).parent / "train_strategy.py"
WORKERS, WARM, PATIENCE, COMING, SLOWER = 2, 30, 60.0, 120.0, 1.5
KINDS = {
    "alone": (),
    "clients at our ports": ("ours", "127.0.0.2"),
    "clients at our ports, from the pods' address": ("ours", "127.0.0.1"),
    "clients at torch's ports": ("torch", "127.0.0.2"),
}
"""Arguments of benchmarks/idle_clients.py."""
SERVED = {"sync": {"type": "ParameterServer", "parameterServer": {"servers": 1}}}
JOBS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "data parallel": ({}, {"worker": 1}),
    "served": (SERVED, {"worker": 1, "server": WORKERS}),
}
"""spec.strategy, and whose pods are deleted, one after the other: name and slot."""
_OURS = {"29401": 1, "29402": 1, "29403": WORKERS, "operator": 1}
PORTS = {
    ("data parallel", "ours"): _OURS,
    ("data parallel", "torch"): {"store": 1, "gloo": WORKERS},
    ("served", "ours"): _OURS | {"29403": WORKERS + 1, "29404": 1},
    ("served", "torch"): {"store": 1},
}
"""How many there are at least."""


class Clients:
    """The clients of one trial, and their counters."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path, ports: dict[str, int]) -> None:
        self._process, self._file, self._ports = process, file, ports

    def counters(self) -> Any:
        assert self._process.poll() is None, "the clients have ended"
        return json.loads(self._file.read_text()) if self._file.exists() else {"ports": {}}

    def wait(self) -> None:
        """Until each port listens that is to listen, and has had 500 connections."""
        deadline = time.monotonic() + COMING
        while missing := self._missing():
            if time.monotonic() > deadline:
                counters = json.dumps(self.counters(), indent=1)
                raise AssertionError(f"no {EACH} connections at {missing}: {counters}")
            time.sleep(0.1)

    def _missing(self) -> dict[str, int]:
        ports = self.counters()["ports"].values()
        full = Counter(each["role"] for each in ports if each["listens"] and each["opened"] >= EACH)
        return dict(Counter(self._ports) - full)


@contextmanager
def clients_of(cluster: Cluster, file: Path, kind: str, of: str) -> Iterator[Clients | None]:
    if kind == "alone":
        yield None
        return
    whose, address = KINDS[kind]
    network = str(urlsplit(cluster.server).hostname).rsplit(".", 2)[0]
    arguments = (whose, address, str(cluster.process.pid), network, str(file))
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.idle_clients", *arguments])
    try:
        clients = Clients(process, file, PORTS[of, whose])
        clients.wait()
        yield clients
    finally:
        process.terminate()
        process.wait()


def trial(cluster: Cluster, folder: Path, kind: str, of: str) -> tuple[dict[str, float], Any]:
    """Seconds by the pod that was deleted, and the counters of the clients."""
    name, (strategy, victims) = folder.name, JOBS[of]
    (folder / "volume").mkdir(parents=True)
    saves = {"volume": {"hostPath": {"path": str(folder / "volume")}}, "everySteps": 20}
    command = ["python", str(SCRIPT), str(folder)]
    manifest = job(name, command, torch=True, checkpoint=saves)
    if strategy:
        manifest["spec"]["strategy"] = strategy
    cluster.create(manifest)
    try:
        wait_until("steps", lambda: stepping(folder, 0.0))
        with clients_of(cluster, folder / "clients.json", kind, of) as clients:
            taken = {}
            for who, slot in victims.items():
                taken[who] = recovery(cluster, name, folder, slot)
                if clients:
                    clients.wait()  # those of the replacement, too
            return taken, clients.counters() if clients else None
    finally:
        cluster.delete(name)
        wait_until("its pods are gone", lambda: not cluster.pods(name, None))


def stepping(folder: Path, since: float) -> bool:
    return all(len(steps(folder, rank, since)) > WARM for rank in range(WORKERS))


def recovery(cluster: Cluster, name: str, folder: Path, slot: int) -> float:
    """Seconds from the deletion of this slot's pod until it has a process again and all workers have stepped
    since."""
    begin = time.time()
    wait_until("all ranks step", lambda: stepping(folder, begin))
    label = "ropeteam.dev/slot"
    pods = {pod["metadata"]["labels"].get(label): pod["metadata"]["name"] for pod in cluster.pods(name, None)}
    begin = time.time()
    cluster.delete_pod(pods[str(slot)])
    try:
        return wait_until("all ranks step again", lambda: back(folder, slot, begin), PATIENCE) - begin
    except NotYet:
        return PATIENCE


def back(folder: Path, rank: int, begin: float) -> float | None:
    """When the last worker made its first step after this rank's new process had started."""
    started = next((e["t"] for e in events(folder, rank) if e["kind"] == "start" and e["t"] > begin), None)
    if started is None:
        return None
    first = [next((e["t"] for e in steps(folder, each, started)), None) for each in range(WORKERS)]
    return None if None in first else max(each for each in first if each)


def client_rows(counters: list[Any]) -> list[Row]:
    """That the clients were there, and their own cost."""
    ports = [port for each in counters for port in each["ports"].values() if port["listens"]]
    opened, most = ([float(port[what]) for port in ports] for what in ("opened", "most"))
    least = int(min(opened))
    return [
        Row(
            "connections of a port, the fewest",
            least,
            "",
            len(ports),
            least,
            f">= {EACH}",
            least >= EACH,
            "",
        ),
        row("connections of a port", opened, unit=""),
        row("open at the same time, of a port", most, unit=""),
        row("the clients' own share of a core", [each["share"] for each in counters], unit=""),
    ]


def rows(samples: dict[str, list[float]]) -> list[Row]:
    table = [row(name, seconds) for name, seconds in samples.items()]
    for of, (_, victims) in JOBS.items():
        for who in victims:
            alone = statistics.median(samples[title(of, who, "alone")])
            for kind, (whose, _) in list(KINDS.items())[1:]:
                seconds = samples[title(of, who, kind)]
                times = round(statistics.median(seconds) / alone, 2)
                goal, holds = (f"<= {SLOWER} (median)", times <= SLOWER) if whose == "ours" else ("", None)
                worst = round(max(seconds) / alone, 2)
                name = f"{title(of, who, kind)}: times as long"
                table.append(Row(name, times, "x", len(seconds), worst, goal, holds, "alone"))
    return table


def title(of: str, who: str, kind: str) -> str:
    return f"{of}, {who}'s pod, {kind}"


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    samples: dict[str, list[float]] = {
        title(of, who, kind): [] for of, (_, victims) in JOBS.items() for who in victims for kind in KINDS
    }
    counters: list[Any] = []
    work = Path(tempfile.mkdtemp(prefix="idle-"))
    cluster = Cluster(work / "home")
    try:
        for number in range(trials):
            for of in JOBS:
                for index, kind in enumerate(KINDS):
                    folder = work / f"{of.split()[0]}-{index}-{number}"
                    taken, counted = trial(cluster, folder, kind, of)
                    counters += [counted] if counted else []
                    for who, seconds in taken.items():
                        samples[title(of, who, kind)].append(seconds)
                        print(
                            f"{number + 1:3}/{trials} {title(of, who, kind):60} {seconds:.2f} s", flush=True
                        )
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    table = rows(samples) + client_rows(counters)
    write("idle_connections", table, samples, "seconds from a pod's deletion to the first step of all")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
