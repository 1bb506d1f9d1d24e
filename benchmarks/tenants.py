"""Does one tenant feel what others do? An honest job beside hostile ones, on a real API server.

    python -m benchmarks.tenants [TRIALS] [SHARE]      (5, 1.0; needs what `make e2e` needs)

Beforehand, in other namespaces: 10,000 pods of a scheduler that nobody runs, 5,000 ConfigMaps, 2,000 Services
with our labels, 200 hostile jobs (benchmarks/hostile.py). Then in turns: nothing more, things that do not
concern us, and as many hostile ones beside false coordinators; each made, changed and deleted while the
honest job starts, loses a rank and loses a pod. SHARE: of what is there beforehand.
The nodes and all of the load are on one machine and share its cores: compare with "harmless".
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

import psutil
from lab.kube import falsecoordinator, images, programs
from lab.kube.cluster import KubeCluster
from lab.kube.site import SYSTEM, Site
from lab.waiting import wait_until

from benchmarks import hostile
from benchmarks.cluster_recovery import NODES, RANKS, back, first_steps, running, start
from benchmarks.results import Row, print_rows, row, write
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient

KINDS = ("alone", "harmless", "hostile")
MEASURES = ("job start", "rank killed", "pod deleted", "longest silence of /healthz", "operator's memory")
GRACE, SLOWER = 2.0, 1.5
"""Seconds that a start may take longer than beside harmless things; and how much a recovery may."""
GROWTH, MIB = 1.2, 32
SETTLE = 25.0
"""Seconds until the load's own pods have started, which takes processors from everything on one machine."""


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    share = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    lab = KubeCluster(NODES, (images.operator(), images.trainer()))
    site = Site.ready(lab)
    began = time.monotonic()
    asyncio.run(_beforehand(lab.control.kubeconfig, share))
    print(f"all is there after {time.monotonic() - began:.0f} s", flush=True)
    window(site, "alone", "honest")  # fills caches
    samples: dict[str, list[float]] = {f"{what}, {kind}": [] for what in MEASURES for kind in KINDS}
    for number in range(trials):
        for kind in KINDS:
            for what, value in window(site, kind, f"honest-{kind}-{number}").items():
                samples[f"{what}, {kind}"].append(value)
                print(f"{number + 1:3}/{trials} {what + ', ' + kind:38} {value:.2f}", flush=True)
    faults = restarts(site) + tracebacks(site)
    lab.down()
    return show(samples, faults)


async def _beforehand(kubeconfig: Path, share: float) -> None:
    async with ApiClient(partial(access.load, kubeconfig)) as client:
        await hostile.beforehand(client, share)


def window(site: Site, kind: str, name: str) -> dict[str, float]:
    """One turn: every measure, beside this kind of load."""
    with _load(site, kind), Probe(site) as probe:
        time.sleep(0 if kind == "alone" else SETTLE)
        begin = time.time()
        started = first_steps(start(site, name), since=0.0) - begin
        site.delete(name)
        folder = running(site, name)
        wait_until("ranks can be forked", partial(_warm, site, name), 120)
        begin = time.time()
        site.kill_rank(name, 1)
        killed = back(folder, begin)
        wait_until("it runs", lambda: site.condition(name, "Running").get("status") == "True", 60)
        begin = time.time()
        site.lab.kubectl("delete", "pod", f"{name}-1-1", "--wait=false")
        wait_until("its replacement", lambda: f"{name}-1-2" in site.uids(name), 60)
        deleted = back(folder, begin)
        memory = psutil.Process(site.operator(site.leader())).memory_info().rss / (1 << 20)
        site.delete(name)
    return dict(zip(MEASURES, (started, killed, deleted, probe.longest, memory), strict=True))


@contextmanager
def _load(site: Site, kind: str) -> Iterator[None]:
    if kind == "alone":
        yield
        return
    arguments = (kind, str(site.lab.control.kubeconfig))
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.hostile", *arguments])
    false = falsecoordinator.ANSWERS if kind == "hostile" else ()
    try:
        for how in false:
            wait_until(f"a request to the {how} coordinator", partial(_requests, site, how))
        before = sum(_requests(site, how) for how in false)
        yield
        assert process.poll() is None, "the load has ended"
        assert not false or sum(_requests(site, how) for how in false) > before, "no request meanwhile"
    finally:
        process.terminate()
        process.wait()
        site.lab.kubectl("delete", "namespace", hostile.CHURN, "--wait", "--ignore-not-found")


def _warm(site: Site, name: str) -> bool:
    """Whether agents restart ranks from a process that has imported torch: later on a busy machine."""
    logs = (
        site.lab.kubectl("logs", f"{name}-{slot}-1", "-c", "trainer", check=False) for slot in range(RANKS)
    )
    return all("ranks can be forked" in log for log in logs)


def _requests(site: Site, how: str) -> int:
    """Number of the operator's requests to this false coordinator."""
    log = site.lab.kubectl("-n", hostile.CHURN, "logs", f"false-{how}-false", check=False)
    return log.count("asked")


class Probe:
    """Polls the leader's /healthz ten times a second. `longest`: seconds from one good answer to the next."""

    def __init__(self, site: Site) -> None:
        pod = site.get("pod", site.leader(), SYSTEM) or {}
        self._url = f"http://{pod['status']['podIP']}:8080/healthz"
        self._ended, self.longest = Event(), 0.0
        self._thread = Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(0.1):
            with suppress(OSError), urllib.request.urlopen(self._url, timeout=5) as answer:
                answer.read()
                now = time.monotonic()
                last, self.longest = now, max(self.longest, now - last)
        self.longest = max(self.longest, time.monotonic() - last)


def restarts(site: Site) -> list[str]:
    """Operators that were started again."""
    return [
        f"{pod['metadata']['name']} was started again"
        for pod in site.operators()
        if any(each["restartCount"] for each in pod["status"]["containerStatuses"])
    ]


def tracebacks(site: Site) -> list[str]:
    """Lines of operators that no handled error writes."""
    names = [pod["metadata"]["name"] for pod in site.operators()]
    lines = [line for name in names for line in site.lab.kubectl("-n", SYSTEM, "logs", name).splitlines()]
    return [line for line in lines if "Traceback" in line or "never retrieved" in line]


def show(samples: dict[str, list[float]], faults: list[str]) -> int:
    table = [row(f"{name}", values, unit="") for name, values in samples.items()]
    middle = {name: statistics.median(values) for name, values in samples.items()}

    def goal(what: str, most: float, unit: str, beside: str) -> Row:
        values = samples[f"{what}, hostile"]
        value = max(values) if what == MEASURES[-2] else statistics.median(values)
        return Row(f"{what}: hostile", round(value, 2), unit, len(values), round(max(values), 2),
                   f"<= {most:.2f}", value <= most, beside)  # fmt: skip

    start, killed, deleted, silence, memory = MEASURES
    table += [
        goal(start, middle[f"{start}, harmless"] + GRACE, "s", "harmless + 2 s"),
        goal(killed, SLOWER * middle[f"{killed}, harmless"], "s", f"{SLOWER} x harmless"),
        goal(deleted, SLOWER * middle[f"{deleted}, harmless"], "s", f"{SLOWER} x harmless"),
        goal(silence, max(1.0, *samples[f"{silence}, harmless"]), "s", "1 s, or beside harmless ones"),
        goal(memory, max(GROWTH * middle[f"{memory}, alone"], middle[f"{memory}, alone"] + MIB), "MiB",
             "alone + 20 % or 32 MiB"),
        Row("operators started again, and tracebacks", len(faults), "", 1, len(faults), "0", not faults, ""),
    ]  # fmt: skip
    print(*faults, sep="\n")
    write("tenants", table, samples, "seconds, and MiB", kubernetes=programs.KUBERNETES)
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
