"""An operator that looks after some namespaces has no business in others, nor with nodes."""

from __future__ import annotations

from pathlib import Path

from lab.waiting import wait_until_async
from tests.controller.house import job, operator_of

from ropeteam.controller.client.apiclient import Object, ObjectRef
from ropeteam.local.cluster import LocalCluster


def a_job_in(namespace: str) -> Object:
    made = job()
    made["metadata"]["namespace"] = namespace
    return made


async def test_jobs_of_the_named_namespaces_run_and_of_others_do_not(tmp_path: Path) -> None:
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        operator_of(cluster, "--namespaces", "a,b") as operator,
    ):
        client = operator.client
        for name in ("a", "b", "c"):
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in ("c", "b", "a"):
            await client.create(a_job_in(name))

        async def served() -> bool:
            return all([len(await client.items(ObjectRef("Pod", name))) == 3 for name in ("a", "b")])

        await wait_until_async("both namespaces have their pods", served)
        assert await client.items(ObjectRef("Pod", "c")) == []
        place = ObjectRef("TrainingJob", "b", "job")
        await client.delete(place, uid=(await client.get(place))["metadata"]["uid"])

        async def swept() -> bool:
            return await client.items(ObjectRef("Pod", "b")) == []

        await wait_until_async("the pods of b are gone", swept)
        assert len(await client.items(ObjectRef("Pod", "a"))) == 3


async def test_without_rights_in_the_cluster_no_node_is_requested(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "home") as cluster:
        async with operator_of(cluster, works=False) as operator:
            assert len(operator.caches.nodes.known_keys()) == 1
        async with operator_of(cluster, "--namespaces", "a,b", works=False) as operator:
            assert operator.caches.nodes.known_keys() == ()
            assert not operator.caches.node_is_lost("node-1")
