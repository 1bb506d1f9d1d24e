"""Jobs that benchmarks kill ranks of: ours, and the same training under torchrun, torchft and Ray Train.

Each is a context in which the job runs; its ranks log into the folder. A peer is measured if Python finds it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from lab.local.cluster import Cluster
from lab.local.jobs import SCRIPTS, job
from lab.processes import die_with_parent
from lab.waiting import wait_until

from benchmarks.gang_restart import sweep
from benchmarks.killlogs import Compared, Kill, RankLog

RANKS = 3
EXACT = "Exact"
TUNED_LIGHTHOUSE = {"heartbeat_timeout_ms": 500, "quorum_tick_ms": 20, "join_timeout_ms": 1000}
LIGHTHOUSE = """
import json, sys, threading
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="[::]:0", min_replicas=1, **json.loads(sys.argv[1]))
print(server.address(), flush=True)
threading.Event().wait()
"""
Running = AbstractContextManager[None]


@dataclass
class Contender:
    """`run(folder, steps)` runs its job, whose ranks log into the folder."""

    run: Callable[[Path, int], Running]
    kills: int
    is_ours: bool = False
    """So its script ends, and logs losses."""
    ranks: int = RANKS
    undisturbed: list[RankLog] = field(default_factory=list)
    seen: list[Kill] = field(default_factory=list)
    compared: Compared = Compared(0, 0)


def contenders(cluster: Cluster, kills: int, peer_kills: int) -> dict[str, Contender]:
    exact = {"strategy": {"sync": {"type": "Exact"}, "batch": {"microBatches": 6}}}
    unshared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    found = {
        EXACT: Contender(partial(ropeteam, cluster, exact), kills, is_ours=True),
        "restart by fork": Contender(partial(ropeteam, cluster, {}), kills, is_ours=True),
        "torchrun": Contender(partial(torchrun, [], {}), peer_kills),
        "torchrun, tuned": Contender(partial(torchrun, ["--monitor-interval=0.01"], unshared), peer_kills),
    }
    if is_installed("torchft"):
        found["torchft"] = Contender(partial(torchft, {}), peer_kills)
        found["torchft, tuned"] = Contender(partial(torchft, TUNED_LIGHTHOUSE), peer_kills)
    if is_installed("ray"):
        found["Ray Train"] = Contender(ray_train, peer_kills)
    for package in ("torchft", "ray"):
        if not is_installed(package):
            print(f"{package} is not installed, so it is not measured", flush=True)
    return found


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@contextmanager
def ropeteam(
    cluster: Cluster,
    fields: dict[str, Any],
    folder: Path,
    steps: int,
    pause: float = 0.05,
    width: int = 512,
    every_steps: int = 10,
) -> Iterator[None]:
    command = ["python", str(SCRIPTS / "train_exact.py"), str(folder), str(steps), str(pause), str(width)]
    name = f"recovery-{folder.name}"
    storage = folder / "checkpoints"
    storage.mkdir()
    made = job(
        name, command, torch=True,
        checkpoint={"volume": {"hostPath": {"path": str(storage)}}, "everySteps": every_steps},
        recovery={"start": "Fork", "maxFailures": 1000}, **{"workers": RANKS, **fields},
    )  # fmt: skip
    cluster.create(made)
    try:
        yield
    finally:
        cluster.delete(name)
        wait_until("all pods are gone", lambda: not cluster.pods(name, None))


@contextmanager
def torchrun(options: list[str], environment: dict[str, str], folder: Path, _: int) -> Iterator[None]:
    program = str(Path(sys.executable).with_name("torchrun"))
    fixed = ["--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=100"]
    command = [program, *fixed, *options, str(SCRIPTS / "train_ddp.py"), str(folder)]
    running = started(command, environment)
    try:
        yield
    finally:
        running.kill()
        running.wait()
        sweep(folder)


@contextmanager
def torchft(settings: dict[str, int], folder: Path, _: int) -> Iterator[None]:
    """A lighthouse, and replicas of one rank, each started again as soon as it has ended."""
    lighthouse = started([sys.executable, "-c", LIGHTHOUSE, json.dumps(settings)], {}, subprocess.PIPE)
    assert lighthouse.stdout is not None
    address = lighthouse.stdout.readline().decode().strip()
    command = [sys.executable, str(SCRIPTS / "train_torchft.py"), str(folder)]
    ended = threading.Event()

    def run_replica(rank: int) -> None:
        while not ended.is_set():
            started(command, {"RANK": str(rank), "TORCHFT_LIGHTHOUSE": address}).wait()

    threads = [threading.Thread(target=run_replica, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        while any(thread.is_alive() for thread in threads):
            sweep(folder)  # again: a replica may have been started since
            threads[-1].join(0.1)
        lighthouse.kill()
        lighthouse.communicate()


@contextmanager
def ray_train(folder: Path, _: int) -> Iterator[None]:
    """A Ray of its own, whose processes would outlive it."""
    running = started([sys.executable, str(SCRIPTS / "train_ray.py"), str(folder)], {})
    try:
        yield
    finally:
        below = psutil.Process(running.pid).children(recursive=True)
        running.kill()
        for process in below:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        running.wait()


def started(
    command: list[str], environment: dict[str, str], output: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        command, env=env, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=die_with_parent,
    )  # fmt: skip
