"""A local cluster and an operator in the test's own process, without kopf."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ropeteam.controller.assembly import Operator, open_operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiClient, NotFound, Object, ObjectRef
from ropeteam.controller.reconcile.jobread import read_job
from ropeteam.controller.settings import read
from ropeteam.core.seen.observation import Observation
from ropeteam.local.cluster import LocalCluster

JOB = ObjectRef("TrainingJob", "default", "job")


def job(name: str = "job", **spec: Any) -> Object:
    """Two workers that would train if there were a trainer; here only their pods matter."""
    return {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"workers": 2, "image": "local", "command": ["sleep", "600"], **spec},
    }


@asynccontextmanager
async def operator_of(cluster: LocalCluster, *flags: str, works: bool = True) -> AsyncIterator[Operator]:
    """Not `works`: the caches are listed once, and rounds are made by hand."""
    settings = read(["--kubeconfig", str(cluster.kubeconfig), "--home", str(cluster.home), *flags], {})
    async with open_operator(settings) as operator:
        ready = asyncio.Event()
        if not works:
            for informer in operator.caches.informers:
                await informer.list()
            yield operator
            return
        watching = asyncio.create_task(operator.watch(ready))
        await ready.wait()
        acting = asyncio.create_task(operator.reconcile_jobs())
        try:
            yield operator
        finally:
            for task in (acting, watching):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def observation(operator: Operator) -> Observation | None:
    """As the operator would observe the job now, without a report of its coordinator."""
    reconciler, key = operator.reconciler, Key(JOB.namespace, JOB.name)
    read = await read_job(operator.caches, key)
    if read is None:
        return None
    state = reconciler.jobs.state_of(key, read.metadata.uid, reconciler.observer.own_clock())
    return reconciler.observer.observe(read, state, None, "")


async def names(client: ApiClient, kind: str) -> list[str]:
    items = await client.items(ObjectRef(kind, "default"), "app.kubernetes.io/managed-by=ropeteam")
    return sorted(item["metadata"]["name"] for item in items)


async def status(client: ApiClient, place: ObjectRef = JOB) -> Object:
    try:
        return dict((await client.get(place)).get("status") or {})
    except NotFound:
        return {}


def condition(seen: Object, kind: str) -> Object:
    return next((each for each in seen.get("conditions", ()) if each["type"] == kind), {})
