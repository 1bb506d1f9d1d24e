"""The Secret that brings our agent into worker pods."""

from __future__ import annotations

import asyncio
import base64
import io
import zipfile
from pathlib import Path

import pytest
from lab.waiting import wait_until_async
from tests.controller.house import operator_of
from tests.controller.scripted import Scripted

from ropeteam.controller.client.apiclient import ApiClient, NotFound, ObjectRef
from ropeteam.controller.reconcile import agentsecret
from ropeteam.controller.reconcile.agentsecret import AgentSecret, build_agent_archive
from ropeteam.local.cluster import LocalCluster


def test_it_is_named_after_what_is_in_it() -> None:
    assert AgentSecret(b"one").name == AgentSecret(b"one").name != AgentSecret(b"two").name
    assert "__main__.py" in zipfile.ZipFile(io.BytesIO(build_agent_archive())).namelist()


async def test_it_is_made_once_and_again_when_somebody_deleted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = AgentSecret(b"content")
    async with LocalCluster(tmp_path / "home") as cluster, operator_of(cluster, works=False) as operator:
        client, place = operator.client, ObjectRef("Secret", "default", agent.name)
        await agent.ensure(client, "default")
        made = await client.get(place)
        assert base64.b64decode(made["data"]["agent.pyz"]) == b"content"
        assert made["immutable"]
        await AgentSecret(b"content").ensure(client, "default")
        assert (await client.get(place))["metadata"]["uid"] == made["metadata"]["uid"], "another's is as good"

        await client.delete(place, uid=made["metadata"]["uid"])

        async def gone() -> bool:
            try:
                await client.get(place)
            except NotFound:
                return True
            return False

        await wait_until_async("the Secret is deleted", gone)
        await agent.ensure(client, "default")
        assert await gone(), "believed to be there"
        monkeypatch.setattr(agentsecret, "_RECHECK_SECONDS", 0.0)
        await agent.ensure(client, "default")
        assert not await gone()


async def test_many_jobs_that_start_at_once_request_it_once(api: Scripted, client: ApiClient) -> None:
    agent = AgentSecret(b"content")
    await asyncio.gather(*(agent.ensure(client, space) for space in ["one", "two"] * 10))
    assert sorted(api.requests) == [f"POST /api/v1/namespaces/{space}/secrets" for space in ("one", "two")]
