"""What do 500 idle strangers at each port cost the recovery of a deleted pod?

    python -m benchmarks.strangers [TRIALS]      (5 by default; about twenty minutes)

Two jobs of two workers on a local cluster, one data parallel, one with a parameter server. In turns: alone;
with strangers at each port that we serve, from an address of their own, and from that of the pods; and at
torch's own ports, which have no secret (told without a bound: a NetworkPolicy is all that is before them).
When each port has had its 500 a pod is deleted, as people do it; from there it counts to the first step of
all workers. Its replacement's ports are beset as soon as they listen. What is not back in 60 s counts as 60.
The strangers are one process of lower priority (benchmarks/idle.py). It shares the cores with the job, as do
all pods: what strangers cost elsewhere, and in all pods together, is in these seconds. Its share is told.
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

from tests.e2e.conftest import job
from tests.e2e.harness import Cluster, wait_for

from benchmarks.gang_restart import events, steps, until
from benchmarks.idle import EACH
from benchmarks.results import Row, print_rows, row, write

SCRIPT = Path(__file__).parent / "train_beset.py"
WORKERS, WARM, PATIENCE, COMING, SLOWER = 2, 30, 60.0, 120.0, 1.5
KINDS = {
    "alone": (),
    "beset": ("ours", "127.0.0.2"),
    "beset from the pods' own address": ("ours", "127.0.0.1"),
    "torch's ports beset": ("torch", "127.0.0.2"),
}
"""What benchmarks/idle.py is told."""
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


class Crowd:
    """The strangers of one trial, and what they tell."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path, ports: dict[str, int]) -> None:
        self._process, self._file, self._ports = process, file, ports

    def told(self) -> Any:
        assert self._process.poll() is None, "they have lasted"
        return json.loads(self._file.read_text()) if self._file.exists() else {"ports": {}}

    def wait(self) -> None:
        """Until each port that is to listen does, and has had 500 of them."""
        deadline = time.monotonic() + COMING
        while lacking := self._lacking():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {EACH} strangers at {lacking}: {json.dumps(self.told(), indent=1)}")
            time.sleep(0.1)

    def _lacking(self) -> dict[str, int]:
        now = [port for port in self.told()["ports"].values() if port["listens"] and port["opened"] >= EACH]
        full = Counter(port["role"] for port in now)
        return dict(Counter(self._ports) - full)


@contextmanager
def besieged(cluster: Cluster, file: Path, kind: str, of: str) -> Iterator[Crowd | None]:
    if kind == "alone":
        yield None
        return
    whose, address = KINDS[kind]
    network = str(urlsplit(cluster.server).hostname).rsplit(".", 2)[0]
    words = (whose, address, str(cluster.process.pid), network, str(file))
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.idle", *words])
    try:
        crowd = Crowd(process, file, PORTS[of, whose])
        crowd.wait()
        yield crowd
    finally:
        process.terminate()
        process.wait()


def trial(cluster: Cluster, folder: Path, kind: str, of: str) -> tuple[dict[str, float], Any]:
    """Seconds by whose pod was deleted, and what the strangers told."""
    name, (strategy, victims) = folder.name, JOBS[of]
    (folder / "volume").mkdir(parents=True)
    saves = {"volume": {"hostPath": {"path": str(folder / "volume")}}, "everySteps": 20}
    command = ["python", str(SCRIPT), str(folder)]
    manifest = job(name, command, torch=True, checkpoint=saves)
    if strategy:
        manifest["spec"]["strategy"] = strategy
    cluster.create(manifest)
    try:
        wait_for("steps", lambda: stepping(folder, 0.0))
        with besieged(cluster, folder / "crowd.json", kind, of) as crowd:
            taken = {}
            for who, slot in victims.items():
                taken[who] = recovery(cluster, name, folder, slot)
                if crowd:
                    crowd.wait()  # the replacement is beset, too
            return taken, crowd.told() if crowd else None
    finally:
        cluster.delete(name)
        wait_for("its pods are gone", lambda: not cluster.pods(name, None))


def stepping(folder: Path, since: float) -> bool:
    return all(len(steps(folder, rank, since)) > WARM for rank in range(WORKERS))


def recovery(cluster: Cluster, name: str, folder: Path, slot: int) -> float:
    """Seconds from the deletion of this slot's pod until it has a process again and all workers have stepped
    since."""
    begin = time.time()
    until(lambda: stepping(folder, begin), PATIENCE)
    label = "ropeteam.dev/slot"
    pods = {pod["metadata"]["labels"].get(label): pod["metadata"]["name"] for pod in cluster.pods(name, None)}
    begin = time.time()
    cluster.delete_pod(pods[str(slot)])
    if not until(lambda: back(folder, slot, begin) is not None, PATIENCE):
        return PATIENCE
    return (back(folder, slot, begin) or 0.0) - begin


def back(folder: Path, rank: int, begin: float) -> float | None:
    """When the last worker made its first step after this rank's new process had started."""
    started = next((e["t"] for e in events(folder, rank) if e["kind"] == "start" and e["t"] > begin), None)
    if started is None:
        return None
    first = [next((e["t"] for e in steps(folder, each, started)), None) for each in range(WORKERS)]
    return None if None in first else max(each for each in first if each)


def crowd_rows(told: list[Any]) -> list[Row]:
    """That the strangers were there, and what they took themselves."""
    ports = [port for each in told for port in each["ports"].values() if port["listens"]]
    opened, most = ([float(port[what]) for port in ports] for what in ("opened", "most"))
    least = int(min(opened))
    return [
        Row(
            "strangers that came to a port, the fewest",
            least,
            "",
            len(ports),
            least,
            f">= {EACH}",
            least >= EACH,
            "",
        ),
        row("strangers that came to a port", opened, unit=""),
        row("open at the same time, of a port", most, unit=""),
        row("the strangers' own share of a core", [each["share"] for each in told], unit=""),
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
    told = []
    work = Path(tempfile.mkdtemp(prefix="strangers-"))
    cluster = Cluster(work / "home")
    try:
        for number in range(trials):
            for of in JOBS:
                for index, kind in enumerate(KINDS):
                    folder = work / f"{of.split()[0]}-{index}-{number}"
                    taken, crowd = trial(cluster, folder, kind, of)
                    told += [crowd] if crowd else []
                    for who, seconds in taken.items():
                        samples[title(of, who, kind)].append(seconds)
                        print(
                            f"{number + 1:3}/{trials} {title(of, who, kind):60} {seconds:.2f} s", flush=True
                        )
    finally:
        cluster.stop()
        shutil.rmtree(work, ignore_errors=True)
    table = rows(samples) + crowd_rows(told)
    write("strangers", table, samples, "seconds from a pod's deletion to the first step of all")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
