"""The shipped operator as a process: assembly.make_operator and the election, without kopf and without
probes.

kopf only rings the bell that the informer rings, too (tests/controller/test_kopfwatch.py); probes and
signals are tests/controller/test_process.py's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from tests.shipped.loop import Process
from tests.shipped.session import ApiSession, CoordinatorSession

from ropeteam.api.defaults import JobPolicy
from ropeteam.controller.assembly import Clocks, make_operator
from ropeteam.controller.client.access import Access
from ropeteam.controller.client.apiclient import ApiClient, ApiError, ObjectRef
from ropeteam.controller.client.coordinator import Coordinators
from ropeteam.controller.election import Elector, LeadershipLost, Timing
from ropeteam.controller.reconcile.agentsecret import AgentSecret
from ropeteam.controller.settings import OperatorKey, OperatorKeys, read

if TYPE_CHECKING:
    from tests.shipped.site import Site

KEY = OperatorKey(b"k" * 32)
_LEASE = ObjectRef("Lease", "default", "ropeteam")
_PREVIOUS = read(["--image", "ropeteam:sim"], {})
_SETTINGS = replace(_PREVIOUS, job_policy=JobPolicy(operator_from=({"namespaceSelector": {}},)))


async def _load() -> Access:
    async def token() -> str:
        return ""

    return Access("http://api", None, token)


def _client(site: Site, process: Process, **settings: Any) -> ApiClient:
    return ApiClient(
        _load, connect=lambda _: cast(Any, ApiSession(site, process)), chance=site.random, **settings
    )


async def main(site: Site, process: Process) -> None:
    """Ends the process when it may not lead any more; its Deployment starts another."""
    try:
        await _lead(site, process)
    except* (LeadershipLost, ApiError, aiohttp.ClientError, OSError) as group:
        site.film.write(process.name, f"ends: {group.exceptions[0]}")
    process.die()
    site.operator_ended(process)


async def _lead(site: Site, process: Process) -> None:
    def clock() -> datetime:
        return site.kubernetes.time() + timedelta(seconds=process.wall_ahead)

    elector = Elector(_client(site, process), _LEASE, process.name, Timing(), lambda: site.loop.now, clock)
    coordinators = Coordinators(
        may_write=elector.may_write,
        connect=lambda: cast(Any, CoordinatorSession(process)),
        chance=Random(site.random.random()),
    )
    client = _client(site, process, may_write=elector.may_write)
    async with elector._client, client, coordinators:
        agent, now = AgentSecret(b"agent"), site.loop.time
        settings, keys = _PREVIOUS if process.previous else _SETTINGS, OperatorKeys((KEY,))
        operator = make_operator(
            settings, client, coordinators, keys, agent, Clocks(clock, now, elector.predecessor_ahead_seconds)
        )
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(operator.watch(ready))
            await ready.wait()
            await elector.acquire()
            group.create_task(elector.renew())
            group.create_task(operator.reconcile_jobs())
