"""Objects that are created again, in case that somebody has deleted it, where a quota is full."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.controller.scripted import Scripted

from ropeteam.api.job import Metadata
from ropeteam.controller.cache.caches import Caches
from ropeteam.controller.client.apiclient import ApiClient, ApiError
from ropeteam.controller.reconcile import agentsecret
from ropeteam.controller.reconcile.agentsecret import AgentSecret
from ropeteam.controller.reconcile.created import CreatedObjects
from ropeteam.controller.reconcile.executor import Executor
from ropeteam.controller.settings import OperatorKey, OperatorKeys
from ropeteam.core.objects.actions import CreateSecret

FULL = (403, {"message": 'secrets "x" is forbidden: exceeded quota: small'})
JOB, KEY = Metadata(name="job", uid="uid"), OperatorKey(b"k" * 32)
CREATE = CreateSecret("job-uid-k1", "uid", {}, {}, KEY.id)


async def test_a_jobs_secret_that_was_there_is_taken_to_be_there_still(
    api: Scripted, client: ApiClient
) -> None:
    """Quotas are checked before names: else each round of a job whose pods wait would fail, and its
    coordinator would receive no request."""
    created, now = CreatedObjects(), 100.0
    executor = Executor(client, cast(Caches, None), OperatorKeys((KEY,)), AgentSecret(b"agent"), lambda: now)
    api.answers = [FULL]
    with pytest.raises(ApiError, match="exceeded quota"):
        await executor.execute(CREATE, JOB, created)
    assert created.secret == ""
    api.answers = [(201, {}), FULL]
    await executor.execute(CREATE, JOB, created)
    now = 200.0
    await executor.execute(CREATE, JOB, created)
    assert (created.secret, created.secret_at) == (CREATE.name, 200.0)


async def test_and_so_is_the_agents(
    api: Scripted, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agentsecret, "_RECHECK_SECONDS", 0.0)
    agent = AgentSecret(b"agent")
    api.answers = [FULL]
    with pytest.raises(ApiError, match="exceeded quota"):
        await agent.ensure(client, "default")
    api.answers = [(201, {}), FULL]
    await agent.ensure(client, "default")
    await asyncio.sleep(0)
    await agent.ensure(client, "default")
    assert len(api.requests) == 3
