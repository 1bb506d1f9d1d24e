"""Put the parts together: caches, queue, reconciler, probes and kopf; run them until a signal comes.

Order matters: caches and workers start before kopf, which at its end waits for every task that is younger
than itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from ropeteam.api.job import KIND, PLURAL, VERSION
from ropeteam.controller import access, handlers, metrics, probes
from ropeteam.controller.caches import Caches, make_caches
from ropeteam.controller.cluster import ApiClient, NotFound, Place
from ropeteam.controller.coordinator import Coordinators
from ropeteam.controller.executor import Executor
from ropeteam.controller.informer import Key
from ropeteam.controller.observer import Memories, Observer
from ropeteam.controller.pace import Pace
from ropeteam.controller.reconcile import Reconciler
from ropeteam.controller.settings import Settings, load_key
from ropeteam.controller.workqueue import WorkQueue, serve

log = logging.getLogger(__name__)

_RESYNC_SECONDS = 600


class CrdMissing(Exception):
    """The cluster does not know TrainingJobs."""


@dataclass(frozen=True)
class Operator:
    """The parts, connected; nothing runs yet."""

    client: ApiClient
    caches: Caches
    queue: WorkQueue[Key]
    reconciler: Reconciler
    workers: int

    async def work(self, ready: asyncio.Event) -> None:
        """For ever. `ready` is set when every cache has been listed."""
        async with asyncio.TaskGroup() as group:
            for informer in self.caches.all:
                group.create_task(informer.run())
            await asyncio.gather(*(informer.synced.wait() for informer in self.caches.all))
            group.create_task(serve(self.queue, self.reconciler, self.workers))
            group.create_task(self._look_at_all())
            await asyncio.sleep(
                0
            )  # the workers start: at its end kopf cancels every task younger than itself
            log.info("ready: %d jobs", len(self.caches.jobs.known_keys()))
            ready.set()

    async def _look_at_all(self) -> None:
        """Now and then, in case a bell was not heard."""
        while True:
            await asyncio.sleep(_RESYNC_SECONDS)
            for key in self.caches.jobs.known_keys():
                self.queue.add(key)

    def states(self) -> list[str]:
        jobs = self.caches.jobs.values()
        return [str((job.get("status") or {}).get("state") or "Pending") for job in jobs]


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[Operator]:
    """Raises CrdMissing, AccessError, SettingsError, ApiError, connection errors."""
    key = load_key(settings)
    async with ApiClient(partial(access.load, settings.kubeconfig)) as client, Coordinators() as coordinators:
        await _require_crd(client, settings.namespace)
        queue = WorkQueue[Key]()
        caches = make_caches(client, settings.namespace, queue.add)
        observer = Observer(caches, Memories(), client, coordinators, key, settings.defaults, _utc_now)
        reconciler = Reconciler(client, observer, Executor(client, caches, key), Pace())
        yield Operator(client, caches, queue, reconciler, settings.workers)


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises what `assembled` raises."""
    async with assembled(settings) as operator:
        ready, queue = asyncio.Event(), operator.queue
        metrics.REGISTRY.register(metrics.JobsByState(operator.states))
        async with probes.served(
            settings.probe_address, ready.is_set, queue.longest_running_seconds
        ) as address:
            settings.publish_address(address)
            async with asyncio.TaskGroup() as group:
                work = group.create_task(operator.work(ready))
                await ready.wait()
                await handlers.run(partial(access.load, settings.kubeconfig), queue.add, settings.namespace)
                work.cancel()


async def _require_crd(client: ApiClient, namespace: str) -> None:
    try:
        await client.request("GET", Place(KIND, namespace).path, params={"limit": "1"})
    except NotFound:
        raise CrdMissing(
            f"this cluster does not know {PLURAL} in version {VERSION}. "
            "Install the definition: ropeteam crd | kubectl apply -f -"
        ) from None


def _utc_now() -> datetime:
    return datetime.now(UTC)
