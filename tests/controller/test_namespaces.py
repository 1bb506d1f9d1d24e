"""An operator that looks after some namespaces has no business in others, nor with nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.controller.house import job
from tests.controller.waiting import until_async

from ropeteam.controller import access, assembly
from ropeteam.controller.cluster import ApiClient, Object, Place
from ropeteam.controller.settings import read
from ropeteam.local.cluster import LocalCluster


def a_job_in(namespace: str) -> Object:
    made = job()
    made["metadata"]["namespace"] = namespace
    return made


async def test_jobs_of_the_named_namespaces_run_and_of_others_do_not(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        ApiClient(partial(access.load, cluster.kubeconfig)) as client,
    ):
        for name in ("a", "b", "c"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await client.create(namespace)
        flags = ["--kubeconfig", str(cluster.kubeconfig), "--home", str(cluster.home), "--namespace", "a,b"]
        settings = read(flags, {})
        task = asyncio.create_task(assembly.run(settings))
        for name in ("c", "b", "a"):
            await client.create(a_job_in(name))

        async def served() -> bool:
            pods = [pod for name in ("a", "b") for pod in await client.items(Place("Pod", name))]
            return [pod["status"]["phase"] for pod in pods] == ["Running"] * 6

        await until_async(served)
        assert await client.items(Place("Pod", "c")) == []
        place = Place("TrainingJob", "b", "job")
        await client.delete(place, uid=(await client.get(place))["metadata"]["uid"])

        async def swept() -> bool:
            return await client.items(Place("Pod", "b")) == []

        await until_async(swept)
        assert len(await client.items(Place("Pod", "a"))) == 3
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_without_rights_in_the_cluster_no_node_is_asked_for(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "home") as cluster:
        flags = ["--kubeconfig", str(cluster.kubeconfig), "--home", str(cluster.home)]
        for more, nodes in (([], 1), (["--namespace", "a,b"], 0)):
            async with assembly.assembled(read([*flags, *more], {})) as operator:
                assert len(operator.caches.nodes.parts) == nodes
                assert not operator.caches.node_is_lost("node-1") or nodes
