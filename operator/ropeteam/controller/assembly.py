"""Put the parts together: caches, queue, reconciler, probes and kopf; run them until a signal comes.

Order matters: caches and workers start before kopf, which at its end waits for every task that is younger
than itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
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

RESYNC_SECONDS = 600


class CrdMissing(Exception):
    """The cluster does not know TrainingJobs."""


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises CrdMissing, AccessError, SettingsError, and connection errors at the
    start.
    """
    key, load = load_key(settings), partial(access.load, settings.kubeconfig)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(load))
        await _require_crd(client, settings.namespace)
        coordinators = await stack.enter_async_context(Coordinators())
        queue = WorkQueue[Key]()
        caches = make_caches(client, settings.namespace, queue.add)
        observer = Observer(caches, Memories(), client, coordinators, key, settings.defaults, _utc_now)
        reconciler = Reconciler(client, observer, Executor(client, caches, key), Pace())
        metrics.REGISTRY.register(metrics.JobsByState(partial(_states, caches)))
        ready = partial(_all_synced, caches)
        probe = probes.served(settings.probe_address, ready, queue.longest_running_seconds)
        settings.publish_address(await stack.enter_async_context(probe))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(informer.run()) for informer in caches.all]
            await asyncio.gather(*(informer.synced.wait() for informer in caches.all))
            log.info(
                "ready: %d jobs, %d pods", len(caches.jobs.known_keys()), len(list(caches.pods.values()))
            )
            tasks.append(group.create_task(serve(queue, reconciler, settings.workers)))
            tasks.append(group.create_task(_look_at_all(caches, queue)))
            await handlers.run(handlers.registry(load, queue.add), settings.namespace)
            for task in tasks:
                task.cancel()


async def _require_crd(client: ApiClient, namespace: str) -> None:
    try:
        await client.request("GET", Place(KIND, namespace).path, params={"limit": "1"})
    except NotFound:
        raise CrdMissing(
            f"this cluster does not know {PLURAL} in version {VERSION}. "
            "Install the definition: ropeteam crd | kubectl apply -f -"
        ) from None


async def _look_at_all(caches: Caches, queue: WorkQueue[Key]) -> None:
    """Now and then, in case a bell was not heard."""
    while True:
        await asyncio.sleep(RESYNC_SECONDS)
        for key in caches.jobs.known_keys():
            queue.add(key)


def _all_synced(caches: Caches) -> bool:
    return all(informer.synced.is_set() for informer in caches.all)


def _states(caches: Caches) -> list[str]:
    return [str((job.get("status") or {}).get("state") or "Pending") for job in caches.jobs.values()]


def _utc_now() -> datetime:
    return datetime.now(UTC)
