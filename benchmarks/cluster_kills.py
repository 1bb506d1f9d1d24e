"""Do kills add up? Ten ranks of one job of six pods, one after the other; and leaders of the operator.

    python -m benchmarks.cluster_kills [KILLS]      (10 by default; needs what `make e2e` needs)

An unchanged DDP script with recovery.start: Fork, and the same under JobSet: Recreate, and InPlaceRestart
(six kills as kubelets are, then KILLS with their crash-loop back-off capped at a second). A kill counts from
SIGKILL to the first step of all six ranks in new processes; the last kills must cost what the first did (a
back-off doubles each time). Requests: all writes that the API server took meanwhile, from whomever, kubelets
too; heartbeats of nodes, leases and events aside. The same model and batch under sync Exact, with six pods
and with three: there the killed rank alone is new. After a leader is killed another must act within the
lease duration, after one is terminated (SIGTERM) at once.
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
from benchmarks.cluster_recovery import NODES, first_step_of_a_new_process
from benchmarks.gang_restart import steps
from benchmarks.results import Row, Samples, print_rows, row, write

PODS = 6
LEADERS = 5
PATIENCE = 180
LONGEST_BACK_OFF = 480
UNCAPPED = 6
SCRIPT, EXACT_SCRIPT = "/shared/scripts/train_ddp.py", "/shared/scripts/train_exact.py"
STRATEGY = {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    jobset.found()
    lab = KubeCluster(NODES, (images.operator(), images.trainer()))
    site = Site.ready(lab)
    of_kills = {"rank killed, six pods": ours(site, kills), **of_jobset(site, kills)}
    samples = {name: series["seconds"] for name, series in of_kills.items()}
    counts = {name: series["writes"] for name, series in of_kills.items()}
    for pods, text in ((PODS, "six"), (3, "three")):
        samples[f"sync Exact, {text} pods"] = under_exact(site, pods, kills)
    for how in (killed, terminated):
        samples[f"leader {how.__name__.replace('_', ' ')}"] = [leader(site, how) for _ in range(LEADERS)]
    lab.down()
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
    assert peer.restarts(name) >= kills
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
    command, folder = ["python", EXACT_SCRIPT, f"/shared/{name}", "1000000"], site.shared / name
    spec = {"checkpoint": site.checkpoints(name, 1000), "recovery": {"maxFailures": 100}}
    site.apply(site.job(name, command, workers=pods, strategy=STRATEGY, **spec))
    taken, since = [], 0.0
    for number in range(kills):
        wait_until("steps", partial(all_have_stepped, folder, since, pods), PATIENCE)
        rank = number % pods
        victim, begin = site.rank(name, rank), time.time()
        os.kill(victim, signal.SIGKILL)
        since = wait_until("a step", partial(first_step_of_a_new_process, folder, rank, begin), PATIENCE)
        taken.append(since - begin)
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
    folder, taken, since = site.shared / name, [], 0.0
    wait_until("steps", partial(all_have_stepped, folder, since), PATIENCE)
    counts = [writes(site)]
    for number in range(kills):
        victim = process(number % PODS)
        begin = time.time()
        os.kill(victim, signal.SIGKILL)
        since = max(wait_until("all ranks step again", partial(new_steps, folder, begin), LONGEST_BACK_OFF))
        taken.append(since - begin)
        wait_until("steps", partial(all_have_stepped, folder, since), PATIENCE)
        counts.append(writes(site))
        print(f"{name} {number + 1:2}: {taken[-1]:.2f} s, {counts[-1] - counts[-2]} writes", flush=True)
    return {"seconds": taken, "writes": [float(after - before) for before, after in pairwise(counts)]}


def writes(site: Site) -> int:
    """Changes that the API server has taken so far."""
    text = site.lab.kubectl("get", "--raw", "/metrics")
    found = (line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    return sum(int(float(line.rpartition(" ")[2])) for line in found if is_a_write(line))


def is_a_write(line: str) -> bool:
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    verbs, heartbeats = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}, {"leases", "nodes", "events"}
    # What a check of permissions posts changes nothing.
    return (
        labels["verb"] in verbs
        and labels["resource"] not in heartbeats
        and "reviews" not in labels["resource"]
    )


def all_have_stepped(folder: Path, since: float, pods: int = PODS) -> bool:
    return all(len(steps(folder, rank, since)) > 30 for rank in range(pods))


def new_steps(folder: Path, begin: float) -> list[float] | None:
    found = [first_step_of_a_new_process(folder, rank, begin) for rank in range(PODS)]
    return [each for each in found if each] if all(found) else None


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
