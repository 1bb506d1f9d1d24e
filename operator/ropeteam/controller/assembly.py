"""Connect caches, queue, reconciler, probes and kopf; run them until a signal comes.

Order matters: first the caches, also in a standby operator; then the election, if there is one; then workers
and kopf.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

import aiohttp

from ropeteam.api.job import KIND, PLURAL, VERSION
from ropeteam.controller import metrics, probes
from ropeteam.controller.cache.caches import Caches, make_caches
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient, NotFound, ObjectRef
from ropeteam.controller.client.coordinator import Coordinators
from ropeteam.controller.election import Elector, LeadershipLost, Timing, utc_now
from ropeteam.controller.kopfwatch import thread
from ropeteam.controller.kopfwatch.crosscheck import CrossCheck
from ropeteam.controller.queue.workqueue import WorkQueue, run_workers
from ropeteam.controller.reconcile.admission import PodCheck
from ropeteam.controller.reconcile.agentsecret import AgentSecret, build_agent_archive
from ropeteam.controller.reconcile.exchange import CoordinatorLink
from ropeteam.controller.reconcile.executor import Executor
from ropeteam.controller.reconcile.observer import Observer
from ropeteam.controller.reconcile.progresslimit import ProgressRateLimiter
from ropeteam.controller.reconcile.reconciler import Reconciler
from ropeteam.controller.settings import OperatorKeys, Settings, load_keys
from ropeteam.errors import CannotRun
from ropeteam_trainer.system.clocks import boot_seconds

log = logging.getLogger(__name__)

_RESYNC_SECONDS = 600
_RETRY_SECONDS = 1.0
_STALE_CACHE_SECONDS = 180.0
"""Three times as long as a watch is silent: an API server writes a bookmark into each every minute."""


def _always_may_write() -> bool:
    """For an operator without leader election."""
    return True


class Clocks(NamedTuple):
    """The clocks of Observer, in the order of its parameters; tests give other ones."""

    wall: Callable[[], datetime] = utc_now
    own: Callable[[], float] = boot_seconds
    predecessor_ahead_seconds: Callable[[], float] = float
    """As of Elector; without an election 0.0, which `float()` returns."""


SYSTEM_CLOCKS = Clocks()


class CrdMissing(CannotRun):
    """The CustomResourceDefinition of TrainingJobs is not installed."""


@dataclass(frozen=True)
class Operator:
    """The parts, connected; nothing runs yet."""

    client: ApiClient
    caches: Caches
    queue: WorkQueue[Key]
    reconciler: Reconciler

    async def watch(self, ready: asyncio.Event) -> None:
        """Keep the caches up to date until cancelled. `ready` is set when each has been listed once."""
        async with asyncio.TaskGroup() as group:
            for informer in self.caches.informers:
                group.create_task(informer.run())
            await asyncio.gather(*(informer.synced.wait() for informer in self.caches.informers))
            log.info("ready: the caches are listed, with %d jobs", len(self.caches.jobs.known_keys()))
            ready.set()

    async def reconcile_jobs(self) -> None:
        """Reconcile jobs until cancelled. Only once `watch` has set `ready`, and this operator may write: a
        job whose pods are not in the cache yet would get others.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(run_workers(self.queue, self.reconciler))
            group.create_task(self._resync())

    async def _resync(self) -> None:
        """Enqueue all jobs periodically, in case an event was missed."""
        while True:
            await asyncio.sleep(_RESYNC_SECONDS)
            for key in self.caches.jobs.known_keys():
                self.queue.add(key)

    def job_states(self) -> list[tuple[str, bool]]:
        """State of each job, and whether it is stalled."""
        return [(job.state, job.stalled) for job in self.caches.jobs.values()]

    def cache_ages(self) -> dict[str, float]:
        """Age of the caches by kind: seconds since the last list or line (also a bookmark) of a watch. The
        oldest counts, where a kind has an informer for each of several namespaces.
        """
        kinds = {informer.kind for informer in self.caches.informers}
        return {
            kind: max(each.age_seconds() for each in self.caches.informers if each.kind == kind)
            for kind in sorted(kinds)
        }

    def stale_caches(self) -> str:
        """The kinds whose caches have been out of date for too long, as text for /readyz; "": none."""
        stale = {
            kind: seconds for kind, seconds in self.cache_ages().items() if seconds > _STALE_CACHE_SECONDS
        }
        ages = ", ".join(f"{kind}: {seconds:.0f} s" for kind, seconds in stale.items())
        return ages and (
            f"the caches are out of date, the API server has sent nothing for too long ({ages}; limit: "
            f"{_STALE_CACHE_SECONDS:.0f} s): check that this operator can reach it"
        )


@asynccontextmanager
async def open_operator(settings: Settings, elector: Elector | None = None) -> AsyncIterator[Operator]:
    """The operator, with its connections, which are closed at the end of the block. Waits for an API server
    that cannot be reached. Raises CrdMissing, AccessError, SettingsError, ApiError, connection errors.
    """
    may_write = elector.may_write if elector else _always_may_write
    keys, load = load_keys(settings), partial(access.load, settings.kubeconfig)
    async with (
        ApiClient(load, may_write, metrics.count_request) as client,
        Coordinators(may_write=may_write) as coordinators,
    ):
        await _require_crd(client, settings.namespaces)
        agent = AgentSecret(await asyncio.to_thread(build_agent_archive))
        clocks = SYSTEM_CLOCKS
        if elector:
            clocks = Clocks(predecessor_ahead_seconds=elector.predecessor_ahead_seconds)
        yield make_operator(settings, client, coordinators, keys, agent, clocks)


def make_operator(
    settings: Settings,
    client: ApiClient,
    coordinators: Coordinators,
    keys: OperatorKeys,
    agent: AgentSecret,
    clocks: Clocks = SYSTEM_CLOCKS,
) -> Operator:
    """The operator, put together without I/O. Namespaces share the queue fairly. Nodes are watched only by an
    operator of all namespaces: the role of one namespace cannot grant that.
    """
    queue = WorkQueue[Key](settings.max_concurrent_reconciles, lambda key: key.namespace)
    caches = make_caches(client, settings.namespaces, queue.add, with_nodes=not settings.namespaces)
    defaults = settings.defaults.model_copy(update={"agent_secret": agent.name})
    reconciler = Reconciler(
        client,
        CoordinatorLink(coordinators, keys, clocks.own),
        Observer(caches, keys, defaults, *clocks, settings.deletion_proves_end),
        PodCheck(client),
        Executor(client, caches, keys, agent, clocks.own),
        ProgressRateLimiter(),
    )
    return Operator(client, caches, queue, reconciler)


@asynccontextmanager
async def open_elector(settings: Settings) -> AsyncIterator[Elector | None]:
    """The Elector that decides whether we act, which has not acquired the lease yet; None: we always act. The
    lease is released at the end of the block, when all that acts must have ended. Raises AccessError.
    """
    if not settings.lease:
        yield None
        return
    namespace, _, name = settings.lease.partition("/")
    me = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    async with ApiClient(partial(access.load, settings.kubeconfig)) as client:
        elector = Elector(client, ObjectRef("Lease", namespace, name), me, Timing(settings.lease_seconds))
        try:
            yield elector
        finally:
            await elector.release()


async def run(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises LeadershipLost, OSError if the port of the probes is
    taken, the errors of `open_operator`, and any other error of a task in an exception group.
    """
    async with open_elector(settings) as elector, open_operator(settings, elector) as operator:
        lost = ""
        try:
            await _run_until_signal(settings, operator, elector)
        except* LeadershipLost as group:
            lost = str(group.exceptions[0])
        if lost:  # raised in the block above it would come in an exception group again
            raise LeadershipLost(lost)


async def _run_until_signal(settings: Settings, operator: Operator, elector: Elector | None) -> None:
    """Serve the probes, fill the caches, acquire the lease, reconcile: in this order, each after the one
    before. Returns after a signal, which ends each of these waits. Raises an exception group with the first
    error of a task, such as LeadershipLost of `renew`.
    """
    ready, ended, queue = asyncio.Event(), asyncio.Event(), operator.queue

    def unready() -> str:
        return operator.stale_caches() if ready.is_set() else "the caches have not been listed yet"

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, ended.set)
    metrics.MAX_CONCURRENT_RECONCILES.set(settings.max_concurrent_reconciles)
    metrics.REGISTRY.register(
        metrics.ScrapeCollector(operator.job_states, queue.running_seconds, operator.cache_ages)
    )
    async with (
        probes.serve(settings.probe_address, unready, queue.longest_running_seconds) as address,
        asyncio.TaskGroup() as group,
    ):
        settings.write_probe_address(address)
        tasks = [group.create_task(operator.watch(ready))]
        if await _completes_before(ended, ready.wait()) and (
            elector is None or await _completes_before(ended, elector.acquire())
        ):
            metrics.LEADER.set(1)
            tasks += [group.create_task(elector.renew())] if elector else []
            tasks.append(group.create_task(operator.reconcile_jobs()))
            tasks += [group.create_task(each) for each in _cross_check_parts(settings, operator)]
            await ended.wait()
        for task in tasks:
            task.cancel()


def _cross_check_parts(settings: Settings, operator: Operator) -> Iterator[Coroutine[None, None, None]]:
    """The two coroutines that compare kopf's watch with the cache of jobs; each runs until cancelled."""
    cross_check = CrossCheck(operator.caches.jobs, operator.queue.add)
    yield cross_check.run()
    yield thread.run(partial(access.load, settings.kubeconfig), cross_check.record, settings.namespaces)


async def _completes_before(ended: asyncio.Event, work: Coroutine[None, None, object]) -> bool:
    """Await `work`, or until `ended` is set, which cancels it. False: `ended` is set. Raises what `work`
    raises."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return not ended.is_set()
    finally:
        working.cancel()
        ending.cancel()


async def _require_crd(client: ApiClient, namespaces: tuple[str, ...]) -> None:
    """Return once the API server serves TrainingJobs: in the first of `namespaces`, or in all. Raises
    CrdMissing, ApiError. Waits for a server that cannot be reached: a container that exits instead is
    restarted with backoff.
    """
    try:
        while True:
            try:
                await client.request("GET", ObjectRef(KIND, *namespaces[:1]).path, params={"limit": "1"})
                return
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                name = type(error).__name__
                log.warning("the API server cannot be reached, trying again: %s: %s", name, error)
                await asyncio.sleep(_RETRY_SECONDS)
    except NotFound:
        raise CrdMissing(
            f"this cluster does not serve {PLURAL} in version {VERSION}. "
            "Install the definition: ropeteam crd | kubectl apply -f -"
        ) from None
