"""A server with Pod Security: what it refuses as written is requested again as a user that is not root."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.controller.house import condition, job, names, operator_of, status

from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiError, Object, QuotaExceeded
from ropeteam.local.cluster import LocalCluster

KEY = Key("default", "job")


@pytest_asyncio.fixture
async def still(tmp_path: Path) -> AsyncIterator[Operator]:
    """An operator that makes a round when the test says so."""
    async with LocalCluster(tmp_path / "home") as cluster, operator_of(cluster, works=False) as operator:
        yield operator


class PodSecurity:
    """The level `restricted` as far as users go, before the local server, which has none; a real one is
    tested in tests/cluster/test_injection.py. `quota`: what is let pass has no place.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operator: Operator, *, quota: bool = False) -> None:
        self.dry_runs: list[bool] = []
        self._create, self._quota = operator.client.create, quota
        monkeypatch.setattr(operator.client, "create", self._validate)

    async def _validate(self, obj: Object, *, dry_run: bool = False) -> Object:
        if obj["kind"] != "Pod" or "coordinator" in obj["metadata"]["name"]:
            return await self._create(obj, dry_run=dry_run)
        if dry_run:
            self.dry_runs.append(_may_be_root(obj["spec"]))
        if _may_be_root(obj["spec"]):
            text = 'is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
            raise ApiError(403, f'pods "{obj["metadata"]["name"]}" {text}')
        if self._quota and dry_run:
            raise QuotaExceeded(403, "is forbidden: exceeded quota: small, used: pods=4")
        return await self._create(obj, dry_run=dry_run)


def _may_be_root(spec: Object) -> bool:
    whole, own = spec["securityContext"], spec["containers"][0]["securityContext"]
    return whole.get("runAsNonRoot") is not True or own.get("runAsUser") == 0


async def rounds(operator: Operator, number: int = 8, **spec: Any) -> Object:
    """The job's status after so many."""
    await operator.client.create(job(**spec))
    await operator.caches.jobs.parts[0].list()
    for _ in range(number):
        await operator.reconciler(KEY)
    return await status(operator.client)


@pytest.mark.parametrize("quota", [False, True])
async def test_where_nothing_may_run_as_root_a_job_runs_as_a_user(
    still: Operator, monkeypatch: pytest.MonkeyPatch, quota: bool
) -> None:
    server = PodSecurity(monkeypatch, still, quota=quota)
    status = await rounds(still)
    assert (status["runAsUser"], condition(status, "Accepted")["reason"]) == (1000, "RunsAsNonRoot")
    assert {"job-0-1", "job-1-1"} <= set(await names(still.client, "Pod"))
    assert server.dry_runs == [True, False], "once each"


async def test_what_insists_on_root_is_refused_with_the_servers_message(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PodSecurity(monkeypatch, still)
    container = {"name": "trainer", "securityContext": {"runAsUser": 0}}
    status = await rounds(still, template={"spec": {"containers": [container]}})
    accepted = condition(status, "Accepted")
    assert (status["state"], accepted["reason"]) == ("Invalid", "PodRefused")
    assert "runAsNonRoot != true. It is refused as a non-root user too" in accepted["message"]
    assert await names(still.client, "Pod") == []
    assert server.dry_runs == [True, True]


async def test_where_root_may_run_the_image_decides(still: Operator) -> None:
    status = await rounds(still)
    assert "runAsUser" not in status
    assert condition(status, "Accepted")["reason"] == "Accepted"
