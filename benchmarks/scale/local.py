"""Many jobs on our own API server. `python -m benchmarks.scale.local HOME` is that server.

Its kubelet starts nothing: it says that a pod runs as soon as it is there, and its Services proxy nothing:
the coordinators answer at the Services' addresses themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.scale import loads
from benchmarks.scale.operatorprocess import operator
from benchmarks.scale.real import Figures, note_starts
from benchmarks.scale.watcher import watching
from benchmarks.scale.worlds import coordinators
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient
from ropeteam.local import resources as r
from ropeteam.local.api.store import Event, key_of
from ropeteam.local.api.verbs import timestamp
from ropeteam.local.cluster import LocalCluster
from ropeteam.local.node.kubelet import Kubelet
from ropeteam.local.node.services import ADDRESSES, Services

Object = r.Object


class InstantKubelet(Kubelet):
    """Every pod runs at once, and ends at once when it is deleted."""

    def _handle_event(self, event: Event) -> None:
        if event.resource != r.PODS or event.type == "DELETED":
            return
        loop, pod = asyncio.get_running_loop(), event.object
        if "deletionTimestamp" in pod["metadata"]:
            loop.call_soon(self.verbs.release, r.PODS, key_of(pod))
        elif event.type == "ADDED":
            loop.call_soon(self.write_status, pod, _running(pod), {"nodeName": self.name})


def _running(pod: Object) -> Object:
    now = timestamp()
    containers = [
        {"name": each["name"], "ready": True, "restartCount": 0, "state": {"running": {"startedAt": now}}}
        for each in pod["spec"]["containers"]
    ]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    return {"phase": "Running", "startTime": now, "conditions": [ready], "containerStatuses": containers}


class NoProxies(Services):
    def start(self) -> None:
        return

    async def stop(self) -> None:
        return


class InstantCluster(LocalCluster):
    kubelet = InstantKubelet
    services = NoProxies


async def training_jobs(count: int, workers: int) -> Figures:
    figures = Figures(count, count * (workers + 1))
    with tempfile.TemporaryDirectory(prefix="ropeteam-scale-") as folder:
        home = Path(folder)
        async with (
            _server(home) as url,
            coordinators(_service_addresses(url, count)) as worlds,
            ApiClient(partial(access.load, home / "kubeconfig")) as client,
            watching(client, worlds) as watched,
            operator(home / "kubeconfig", home / "operator") as process,
        ):
            cpu, began = process.cpu_seconds(), time.monotonic()
            await loads.create_training_jobs(client, count, workers)
            await watched.until(lambda: watched.all_run(count, figures.pods), "all run")
            note_starts(figures, watched, began)
            figures.cpu_seconds = {"operator": round(process.cpu_seconds() - cpu, 1)}
            figures.peak_mib = process.peak_mib()
    return figures


@asynccontextmanager
async def _server(home: Path) -> AsyncIterator[str]:
    """Gives its URL."""
    command = (sys.executable, "-m", "benchmarks.scale.local", str(home))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


def _service_addresses(url: str, count: int) -> list[str]:
    """The first so many that the server will give out."""
    first, second, *_ = url.removeprefix("http://").split(".")
    found = (f"{first}.{second}.{third}.{fourth}" for third in ADDRESSES for fourth in range(1, 255))
    return list(itertools.islice(found, count))


async def _serve(home: Path) -> None:
    async with InstantCluster(home) as cluster:
        print(cluster.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
