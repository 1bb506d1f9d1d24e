"""Do kills add up? Ten ranks of one job of six pods, one after the other; and leaders of the operator.

    python -m benchmarks.cluster_kills [KILLS]      (10 by default; needs what `make e2e` needs)

An unchanged DDP script with recovery.start: Fork, and the same under JobSet: Recreate, and InPlaceRestart
(six kills as kubelets are, then KILLS with their crash-loop back-off capped at a second). A kill counts from
SIGKILL to the first step of all six ranks in new processes; the last kills must cost what the first did (a
back-off doubles each time). Requests: all by which the API server changed something meanwhile, from
whomever, kubelets too, but for heartbeats of nodes, leases and events. The same model and batch under sync
Exact, with six pods and with three: there the killed rank alone is new. After a leader is killed another
must act within the lease duration, after one is terminated (SIGTERM) at once.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import yaml
from lab.kube import images, programs
from lab.kube.cluster import KubeCluster
from lab.kube.site import RELEASE, SYSTEM, Site
from lab.waiting import wait_until

from benchmarks import jobset
from benchmarks.cluster_recovery import NODES
from benchmarks.killlogs import RankLog
from benchmarks.recovery import have_stepped
from benchmarks.results import Row, Samples, print_rows, row, write

PODS = 6
WRITING = {"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
HEARTBEATS = {"leases", "nodes", "events"}
LEADERS = 5
PATIENCE = 180
LONGEST_BACK_OFF = 480
UNCAPPED = 6
SIZES = {PODS: "six", 3: "three"}
SCRIPT, EXACT_SCRIPT = "/shared/scripts/train_ddp.py", "/shared/scripts/train_exact.py"
STRATEGY = {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    jobset.found()
    lab = KubeCluster(NODES, (images.operator(), images.trainer()))
    site = Site.ready(lab)
    exact = {f"sync Exact, {text} pods": under_exact(site, pods, kills) for pods, text in SIZES.items()}
    leaders = {f"leader {how.__name__}": [leader(site, how) for _ in range(LEADERS)] for how in ENDS}
    site.lab.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{RELEASE}", "--timeout=60s")
    of_kills = {"rank killed, six pods": ours(site, kills), **of_jobset(site, kills)}
    lab.down()
    samples = {name: series["seconds"] for name, series in of_kills.items()} | exact | leaders
    counts = {name: series["writes"] for name, series in of_kills.items()}
    return show(samples, counts)


def ours(site: Site, kills: int) -> Samples:
    name = "kills"
    command = ["torchrun", "--nproc-per-node", "1", SCRIPT, f"/shared/{name}"]
    site.apply(site.job(name, command, workers=PODS, recovery={"start": "Fork", "maxFailures": 100}))
    taken = recoveries(site, name, partial(site.rank, name), kills)
    restarts = sum(c["restartCount"] for pod in site.pods(name) for c in pod["status"]["containerStatuses"])
    assert (len(site.pods(name)), restarts) == (PODS, 0), "pods were left alone"
    site.delete(name)
    return taken


def of_jobset(site: Site, kills: int) -> dict[str, Samples]:
    lab, samples = site.lab, {}
    with jobset.JobSet(lab.control.kubeconfig, lab.kubectl, lab.folder, site.shared) as peer:
        samples["the same, JobSet"] = under_jobset(site, peer, "Recreate", kills)
        samples["the same, JobSet in place"] = under_jobset(site, peer, jobset.IN_PLACE, UNCAPPED)
        cap_back_off(lab)
        samples["the same, JobSet in place, capped"] = under_jobset(site, peer, jobset.IN_PLACE, kills)
    return samples


def under_jobset(site: Site, peer: jobset.JobSet, strategy: str, kills: int) -> Samples:
    name = f"peer-{strategy.lower()}"
    peer.create(name, ["python", SCRIPT, f"/shared/{name}"], PODS, strategy)
    taken = recoveries(site, name, partial(peer.rank, name), kills)
    restarts = peer.restarts(name)
    print(f"{name}: {restarts} restarts", flush=True)
    assert restarts >= kills
    peer.delete(name)
    return taken


def cap_back_off(lab: KubeCluster) -> None:
    """Kubelets wait no more than a second before a container starts again (KEP-4603)."""
    for node in lab.nodes:
        node.stop("kubelet")
        file = node.folder / "kubelet.yaml"
        settings = yaml.safe_load(file.read_text())
        settings["crashLoopBackOff"] = {"maxContainerRestartPeriod": "1s"}
        file.write_text(yaml.safe_dump(settings))
        node.start("kubelet")


def under_exact(site: Site, pods: int, kills: int) -> list[float]:
    """Seconds from each kill until the new rank has made a step."""
    name = f"exact-{pods}"
    command, ranks = ["python", EXACT_SCRIPT, f"/shared/{name}", "1000000"], Ranks(site.shared / name, pods)
    spec = {"checkpoint": site.checkpoints(name, 1000), "recovery": {"maxFailures": 100}}
    site.apply(site.job(name, command, workers=pods, strategy=STRATEGY, **spec))
    taken = []
    for number in range(kills):
        ranks.settle()
        rank = number % pods
        begin = ranks.kill(site.rank(name, rank))
        taken.append(wait_until("a step", partial(ranks.new_step, rank), PATIENCE) - begin)
        print(f"{name} {number + 1:2}: {taken[-1]:.2f} s", flush=True)
    wait_until("all incidents", lambda: len(site.status(name)["incidents"]) >= min(kills, 10), PATIENCE)
    assert {each["stepsLost"] for each in site.status(name)["incidents"]} == {0}
    assert len(site.pods(name)) == pods
    assert sum(c["restartCount"] for p in site.pods(name) for c in p["status"]["containerStatuses"]) == 0
    site.delete(name)
    return taken


def recoveries(site: Site, name: str, process: Callable[[int], int], kills: int) -> Samples:
    """Two series: seconds from each kill of a rank's `process` until all ranks have stepped again, and writes
    to the API server until each of them has made 30 steps.
    """
    ranks, taken = Ranks(site.shared / name, PODS), []
    ranks.settle()
    counts = [writes(site)]
    for number in range(kills):
        begin = ranks.kill(process(number % PODS))
        taken.append(max(wait_until("all ranks step again", ranks.new_steps, LONGEST_BACK_OFF)) - begin)
        ranks.settle()
        counts.append(writes(site))
        print(f"{name} {number + 1:2}: {taken[-1]:.2f} s, {counts[-1] - counts[-2]} writes", flush=True)
    return {"seconds": taken, "writes": [float(after - before) for before, after in pairwise(counts)]}


class Ranks:
    """Logs of a job's ranks, read as they grow, since the newest kill."""

    def __init__(self, folder: Path, pods: int) -> None:
        self._logs = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(pods)]
        self._begins = [0] * pods

    def settle(self) -> None:
        """Until each rank has made 30 more steps."""
        self._mark()
        wait_until("steps", partial(have_stepped, self._logs, self._begins, 30), PATIENCE)

    def kill(self, victim: int) -> float:
        """SIGKILL to this process, and when."""
        self._mark()
        begin = time.time()
        os.kill(victim, signal.SIGKILL)
        return begin

    def new_step(self, rank: int) -> float | None:
        """When a process of this rank that is newer than the kill made its first step. None: not yet."""
        log = self._logs[rank]
        log.read()
        events = log.events[self._begins[rank] :]
        started = next((number for number, event in enumerate(events) if event.kind == "start"), len(events))
        return next((event.t for event in events[started:] if event.kind == "step"), None)

    def new_steps(self) -> list[float] | None:
        """When a newer process of each rank made its first step. None: not yet of all."""
        found = [self.new_step(rank) for rank in range(len(self._logs))]
        return [each for each in found if each] if all(found) else None

    def _mark(self) -> None:
        for log in self._logs:
            log.read()
        self._begins = [len(log.events) for log in self._logs]


def writes(site: Site) -> int:
    """Requests so far by which the API server has changed something."""
    text = site.lab.kubectl("get", "--raw", "/metrics")
    found = (line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    return sum(int(float(line.rpartition(" ")[2])) for line in found if is_a_write(line))


def is_a_write(line: str) -> bool:
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    # What a check of permissions or a request for a token posts is not stored.
    is_stored = "reviews" not in labels["resource"] and labels["subresource"] != "token"
    is_counted = labels["verb"] in WRITING and labels["resource"] not in HEARTBEATS
    return is_stored and is_counted and labels["code"].startswith("2")


def leader(site: Site, end: Callable[[Site, str], None]) -> float:
    """Seconds until another operator holds the lease."""
    site.lab.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{RELEASE}", "--timeout=60s")
    time.sleep(5)
    old = holder(site)
    begin = time.time()
    end(site, old.rpartition("_")[0])
    wait_until("another leader", lambda: holder(site) not in ("", old), PATIENCE)
    print(f"{end.__name__}: {time.time() - begin:.2f} s", flush=True)
    return time.time() - begin


def holder(site: Site) -> str:
    return str((site.get("lease", RELEASE, SYSTEM) or {}).get("spec", {}).get("holderIdentity", ""))


def killed(site: Site, pod: str) -> None:
    os.kill(site.operator(pod), signal.SIGKILL)


def terminated(site: Site, pod: str) -> None:
    site.lab.kubectl("-n", SYSTEM, "delete", "pod", pod, "--wait=false")


ENDS = (killed, terminated)


def show(samples: Samples, counts: Samples) -> int:
    """`counts`: of writes to the API server, by contender."""
    table = [row(f"{name}: seconds", seconds) for name, seconds in samples.items()]
    table += [row(f"{name}: requests that write", each, unit="") for name, each in counts.items()]
    kills = samples["rank killed, six pods"]
    first, last = (statistics.median(part) for part in (kills[: len(kills) // 2], kills[len(kills) // 2 :]))
    growth = last / first
    table.append(
        Row("the last kills beside the first", round(growth, 2), "x", len(kills),
            round(max(kills) / first, 2), "<= 1.5", growth <= 1.5, "median of the first half")
    )  # fmt: skip
    for peer in ("JobSet", "JobSet in place, capped"):
        theirs = samples[f"the same, {peer}"]
        ratio, worst = statistics.median(theirs) / statistics.median(kills), min(theirs) / max(kills)
        table.append(
            Row(f"rank killed: ours beside {peer}", round(ratio, 1), "x", len(kills), round(worst, 1), ">= 4",
                ratio >= 4, peer)
        )  # fmt: skip
    exact = samples["sync Exact, three pods"]
    value = statistics.median(exact)
    table.append(
        Row("sync Exact: the new rank steps", round(value, 3), "s", len(exact), round(max(exact), 3),
            "<= 0.35", value <= 0.35, "the others finish the step, and train on")
    )  # fmt: skip
    for name, goal in (("leader killed", 20.0), ("leader terminated", 2.0)):
        value, worst = statistics.median(samples[name]), max(samples[name])
        table.append(
            Row(f"{name}: another acts", round(value, 2), "s", len(samples[name]), round(worst, 2),
                f"<= {goal:g} (worst)", worst <= goal, "lease 15/10/2")
        )  # fmt: skip
    series = samples | {f"writes: {name}": each for name, each in counts.items()}
    write(
        "cluster_kills",
        table,
        series,
        "seconds, and writes, on a real cluster",
        kubernetes=programs.KUBERNETES,
    )
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
