"""How long is training away on a real cluster? Job start, pod deleted, node off, each beside a bare pod.

    python -m benchmarks.cluster_recovery [TRIALS]      (5 by default; needs what `make e2e` needs)

"Pod start" is a bare pod of the same image, from its creation until it has imported torch, measured in turn
with the rest: no operator can be faster. Times are taken by the ranks themselves, from the fault to the first
step of all ranks at full size. The nodes are namespaces of one machine and share its cores.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.kube import images, programs
from lab.kube.cluster import KubeCluster
from lab.kube.site import Site
from lab.waiting import wait_until

from benchmarks.gang_restart import events, steps
from benchmarks.results import Row, print_rows, row, write

LOST_SECONDS = 5
NODES, RANKS = 4, 2


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    lab = KubeCluster(NODES, (images.operator(), images.trainer()))
    site = Site.ready(lab)
    samples: dict[str, list[float]] = {name: [] for name in ("pod start", *MEASURES)}
    for number in range(trials):
        for name, measure in (("pod start", pod_start), *MEASURES.items()):
            seconds = measure(site, f"bench-{number}")
            samples[name].append(seconds)
            print(f"{number + 1:3}/{trials} {name:16} {seconds:.2f} s", flush=True)
    lab.down()
    return show(samples)


def pod_start(site: Site, name: str) -> float:
    """A bare pod: `kubectl create` -> torch imported."""
    file = site.shared / f"{name}-bare"
    code = f"import torch, time; open('/shared/{file.name}', 'w').write(str(time.time()))"
    container = {
        "name": "bare",
        "image": images.TRAINER,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", code],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shared", "hostPath": {"path": str(site.shared)}}],
    }
    begin = time.time()
    site.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-bare"}, "spec": spec})
    wait_until("torch is imported", lambda: file.exists() and file.read_text(), 60)
    seconds = float(file.read_text()) - begin
    site.lab.kubectl("delete", "pod", f"{name}-bare", "--now")
    return seconds


def job_start(site: Site, name: str) -> float:
    """`kubectl apply` -> first step of all ranks."""
    begin = time.time()
    folder = start(site, name)
    seconds = first_steps(folder, since=0.0) - begin
    site.delete(name)
    return seconds


def pod_deleted(site: Site, name: str) -> float:
    folder = running(site, name)
    begin = time.time()
    site.lab.kubectl("delete", "pod", f"{name}-1-1", "--wait=false")
    wait_until("its replacement", lambda: f"{name}-1-2" in site.uids(name), 60)
    seconds = back(folder, begin)
    site.delete(name)
    return seconds


def node_off(site: Site, name: str) -> float:
    folder = running(site, name)
    coordinator = site.pods(name, "coordinator")[0]["spec"]["nodeName"]
    slot = next(slot for slot in range(RANKS) if f"node-{site.node_of(name, slot)}" != coordinator)
    node = site.lab.node(site.node_of(name, slot))
    begin = time.time()
    node.power_off()
    seconds = back(folder, begin)
    node.power_on(NODES)
    wait_until("the node is Ready", lambda: site.lab.is_ready(node), 90)
    site.delete(name)
    return seconds


MEASURES: dict[str, Callable[[Site, str], float]] = {
    "job start": job_start,
    "pod deleted": pod_deleted,
    "node off": node_off,
}


def start(site: Site, name: str) -> Path:
    command = ["torchrun", "--nproc-per-node", "1", "/shared/scripts/train_level2.py", f"/shared/{name}"]
    site.apply(site.job(name, command, checkpoint=site.checkpoints(name)))
    return site.shared / name


def running(site: Site, name: str) -> Path:
    """A job whose ranks step and have saved."""
    folder = start(site, name)
    first_steps(folder, since=0.0)
    wait_until("steps", lambda: all(len(steps(folder, rank)) > 40 for rank in range(RANKS)), 60)
    return folder


def back(folder: Path, begin: float) -> float:
    """Seconds from `begin` until processes of all ranks that started after it have made a step."""

    def stepped() -> list[float] | None:
        found = [first_step_of_a_new_process(folder, rank, begin) for rank in range(RANKS)]
        return [each for each in found if each] if all(found) else None

    return max(wait_until("all ranks step again", stepped, 120)) - begin


def first_step_of_a_new_process(folder: Path, rank: int, begin: float) -> float | None:
    """By the time of its start: processes of two pods may have the same number."""
    started = next((e["t"] for e in events(folder, rank) if e["kind"] == "start" and e["t"] > begin), None)
    return next((e["t"] for e in steps(folder, rank, started)), None) if started else None


def first_steps(folder: Path, since: float) -> float:
    """When the last of the ranks made its first step."""
    wait_until("a step of all ranks", lambda: all(steps(folder, rank, since) for rank in range(RANKS)), 120)
    return max(float(steps(folder, rank, since)[0]["t"]) for rank in range(RANKS))


def show(samples: dict[str, list[float]]) -> int:
    floor = statistics.median(samples["pod start"])
    goals = {"job start": floor + 2, "pod deleted": floor + 2, "node off": floor + LOST_SECONDS + 5}
    table = [row(f"{name}: seconds", seconds) for name, seconds in samples.items()]
    for name, goal in goals.items():
        value = statistics.median(samples[name])
        table.append(
            Row(f"{name}: beyond a pod's start", round(value - floor, 2), "s", len(samples[name]),
                round(max(samples[name]) - floor, 2), f"<= {goal - floor:g} (median)", value <= goal,
                "pod start")
        )  # fmt: skip
    write("cluster_recovery", table, samples, "seconds on a real cluster", kubernetes=programs.KUBERNETES)
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
