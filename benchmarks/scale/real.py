"""Many jobs on a real API server, from their creation to their end; and batch/Jobs of the same size."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.scale import audit, loads
from benchmarks.scale.operatorprocess import OperatorProcess, operator
from benchmarks.scale.realcluster import RealCluster, real_cluster
from benchmarks.scale.watcher import Watched, watching
from benchmarks.scale.worlds import Worlds, coordinators
from ropeteam.controller.client.apiclient import ObjectRef

QUIET_SECONDS = 60
_SETTLE_SECONDS = 15
_TRIALS = 100
_BETWEEN_SECONDS = 0.2


@dataclass
class Figures:
    """Of one load. Seconds since its creation began."""

    jobs: int
    pods: int
    seconds: float = 0.0
    """Until all jobs were Running."""
    pods_seconds: float = 0.0
    """Until all pods were."""
    pods_running: list[float] = field(default_factory=list)
    """When each pod was."""
    running: list[float] = field(default_factory=list)
    """When each job was Running."""
    peak_mib: float = 0.0
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """Until all were Running, by program."""
    quiet_cpu: float = 0.0
    """Share of a core that the operator uses while nothing happens."""
    first_writes: list[float] = field(default_factory=list)
    """From a job's creation to the operator's first write for it."""
    reactions: list[float] = field(default_factory=list)
    """From a pod's deletion to the operator's first write for its job, when all ran."""
    quiet_writes: int = 0
    progress_per_second: float = 0.0
    requests: list[int] = field(default_factory=list)
    """Of each job that was followed to its end."""
    kinds: Counter[str] = field(default_factory=Counter)
    """The operator's requests until all jobs were Running."""

    @property
    def pods_per_second(self) -> float:
        return self.pods / self.pods_seconds


async def training_jobs(count: int, workers: int, whole_life: bool = True) -> Figures:
    """`whole_life`: also what happens after all of them run."""
    figures = Figures(count, count * (workers + 1))
    async with (
        real_cluster() as cluster,
        coordinators(cluster.addresses) as worlds,
        watching(cluster.client, worlds) as watched,
        operator(cluster.operator_kubeconfig, cluster.folder / "home") as process,
    ):
        await _start(figures, cluster, watched, process, workers)
        if whole_life:
            await _live(figures, cluster, watched, worlds, process)
        figures.peak_mib = process.peak_mib()
    return figures


async def _start(
    figures: Figures, cluster: RealCluster, watched: Watched, process: OperatorProcess, workers: int
) -> None:
    idle = {**cluster.cpu_seconds(), "operator": process.cpu_seconds()}
    began = time.monotonic()
    await loads.create_training_jobs(cluster.client, figures.jobs, workers)
    print(f"{figures.jobs} jobs created after {time.monotonic() - began:.1f} s", flush=True)
    await watched.until(lambda: watched.all_run(figures.jobs, figures.pods), "all run")
    note_starts(figures, watched, began)
    used = {**cluster.cpu_seconds(), "operator": process.cpu_seconds()}
    figures.cpu_seconds = {name: round(used[name] - idle[name], 1) for name in used}
    calls = audit.calls(cluster.audit_log)
    figures.kinds = audit.kinds(calls)
    figures.first_writes = audit.reactions(calls, "create", "trainingjobs")
    print(
        f"all run after {figures.seconds:.1f} s; the operator's peak: {process.peak_mib():.0f} MiB",
        flush=True,
    )


def note_starts(figures: Figures, watched: Watched, began: float) -> None:
    figures.running = sorted(at - began for at in watched.jobs.values())
    figures.pods_running = sorted(at - began for at in watched.pods.values())
    figures.pods_seconds = figures.pods_running[-1]
    figures.seconds = max([figures.pods_seconds, *figures.running])


async def _live(
    figures: Figures, cluster: RealCluster, watched: Watched, worlds: Worlds, process: OperatorProcess
) -> None:
    """A quiet time, one with progress, pods that are deleted, and some jobs' end."""
    await asyncio.sleep(_SETTLE_SECONDS)
    cpu = process.cpu_seconds()
    figures.quiet_writes = len(await _writes(cluster, QUIET_SECONDS))
    figures.quiet_cpu = (process.cpu_seconds() - cpu) / QUIET_SECONDS
    before = audit.calls(cluster.audit_log)
    worlds.progress = True
    written = await _writes(cluster, QUIET_SECONDS)
    figures.progress_per_second = len(written) / QUIET_SECONDS
    worlds.progress = False
    await asyncio.sleep(_SETTLE_SECONDS)
    figures.reactions = await _delete_pods(cluster, figures.jobs)
    await asyncio.sleep(_SETTLE_SECONDS)
    ended = [name for name in watched.jobs if int(name[-4:]) >= figures.jobs - _followed(figures.jobs)]
    offset = cluster.audit_log.stat().st_size
    worlds.complete = {watched.uids[name] for name in ended}
    workers = figures.pods // figures.jobs - 1
    await asyncio.gather(*(loads.end_workers(cluster.client, name, workers) for name in ended))
    await watched.until(lambda: watched.ended >= set(ended), "jobs are complete", 120)
    await asyncio.sleep(_SETTLE_SECONDS)
    start, end = audit.per_job(before), audit.per_job(audit.calls(cluster.audit_log, offset))
    figures.requests = [start[name] + end[name] for name in ended]


def _followed(jobs: int) -> int:
    return min(_TRIALS, jobs // 2)


async def _writes(cluster: RealCluster, seconds: float) -> list[audit.Call]:
    """The operator's, during so many seconds from now."""
    offset = cluster.audit_log.stat().st_size
    await asyncio.sleep(seconds)
    return audit.writes(audit.calls(cluster.audit_log, offset))


async def _delete_pods(cluster: RealCluster, jobs: int) -> list[float]:
    """One of each of the first jobs, one after the other."""
    offset = cluster.audit_log.stat().st_size
    for number in range(_followed(jobs)):
        place = ObjectRef("Pod", "default", f"scale-{number:04}-0-1")
        pod = await cluster.client.get(place)
        await cluster.client.delete(place, uid=pod["metadata"]["uid"])
        await asyncio.sleep(_BETWEEN_SECONDS)
    await asyncio.sleep(_SETTLE_SECONDS)
    return audit.reactions(audit.calls(cluster.audit_log, offset), "delete", "pods")


async def batch_jobs(count: int, pods: int) -> Figures:
    """Without us: the controller manager creates the pods."""
    figures = Figures(count, count * pods)
    async with real_cluster() as cluster, watching(cluster.client, Worlds()) as watched:
        idle, began = cluster.cpu_seconds(), time.monotonic()
        await loads.create_batch_jobs(cluster.client, count, pods)
        print(f"{count} batch/Jobs created after {time.monotonic() - began:.1f} s", flush=True)
        await watched.until(lambda: watched.all_run(0, figures.pods), "all run")
        note_starts(figures, watched, began)
        used = cluster.cpu_seconds()
        figures.cpu_seconds = {name: round(used[name] - idle[name], 1) for name in used}
        print(f"all run after {figures.seconds:.1f} s", flush=True)
    return figures
