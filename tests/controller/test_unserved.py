"""Unserved requests are named by the operator with the rights that it has: on the local cluster, with all of
its I/O."""

from __future__ import annotations

from pathlib import Path

from lab.waiting import wait_until_async
from tests.controller.house import condition, job, operator_of, status

from ropeteam.controller.client.apiclient import ApiClient, Object, ObjectRef
from ropeteam.local.cluster import LocalCluster

QUEUE = "kueue.x-k8s.io/queue-name"


async def degraded(client: ApiClient) -> Object | None:
    found = condition(await status(client), "Degraded")
    return found if found.get("status") == "True" else None


async def warned(client: ApiClient) -> list[str]:
    return [
        each["reason"]
        for each in await client.items(ObjectRef("Event", "default"))
        if each["type"] == "Warning"
    ]


async def test_a_queue_and_a_gang_that_nobody_serves_are_named(tmp_path: Path) -> None:
    requested = job(template={"metadata": {"labels": {"volcano.sh/queue-name": "v"}}})
    requested["metadata"]["labels"] = {QUEUE: "team-a"}
    async with LocalCluster(tmp_path / "home") as cluster, operator_of(cluster) as operator:
        await operator.client.create(requested)
        message = await wait_until_async("the job is Degraded", lambda: degraded(operator.client))
        assert message["reason"] == "QueueNameIgnored"
        assert "(queue team-a)" in message["message"]

        async def both() -> bool:
            return (
                "volcano.sh/queue-name (read by Volcano)"
                in (await degraded(operator.client) or message)["message"]
            )

        await wait_until_async("the condition names Volcano", both)
        assert (await warned(operator.client)).count("QueueNameIgnored") == 1
