"""Pod Security of a real API server: which pods of ours it takes, as whom, and what its job reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
import yaml
from tests.controller.house import condition, job, operator_of
from tests.differential import servers
from tests.differential.scenario import Call
from tests.differential.servers import TOKEN, Server

from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import Object, ObjectRef


class Site(NamedTuple):
    server: Server
    operator: Operator

    async def reported(self, level: str, **spec: Any) -> Object:
        """The status of a job after some rounds in a new namespace of this level, which has its name."""
        label = {"pod-security.kubernetes.io/enforce": level}
        body = {"metadata": {"name": level, "labels": label}}
        made = await self.server.request(Call("POST", "/api/v1/namespaces", body))
        assert made.status == 201, made.body
        created = job(**spec)
        created["metadata"]["namespace"] = level
        await self.operator.client.create(created)
        await self.operator.caches.jobs.parts[0].list()
        for _ in range(6):
            await self.operator.reconciler(Key(level, "job"))
        return dict(
            (await self.operator.client.get(ObjectRef("TrainingJob", level, "job"))).get("status") or {}
        )

    async def pods(self, level: str) -> list[str]:
        return sorted(
            each["metadata"]["name"] for each in await self.operator.client.items(ObjectRef("Pod", level))
        )


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    if why := servers.why_not():
        pytest.skip(why)
    async with servers.real(tmp_path) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(server.url)))
        cluster: Any = SimpleNamespace(kubeconfig=kubeconfig, home=tmp_path / "home")
        async with operator_of(cluster, works=False) as operator:
            yield Site(server, operator)


def _kubeconfig(url: str) -> Object:
    return {
        "current-context": "real",
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
        "clusters": [{"name": "real", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
    }


def in_template(**security: Any) -> Object:
    return {"spec": {"containers": [{"name": "trainer", "securityContext": security}]}}


ALL = ["job-0-1", "job-1-1", "job-coordinator-1"]


async def test_a_job_without_a_user_runs_at_every_level(site: Site) -> None:
    for level, user, reason in (("baseline", None, "Accepted"), ("restricted", 1000, "RunsAsNonRoot")):
        status = await site.reported(level)
        assert (status.get("runAsUser"), condition(status, "Accepted")["reason"]) == (user, reason)
        assert await site.pods(level) == ALL


async def test_a_job_that_declares_a_non_root_user_runs_as_written(site: Site) -> None:
    status = await site.reported("restricted", template=in_template(runAsNonRoot=True))
    assert (status.get("runAsUser"), condition(status, "Accepted")["reason"]) == (None, "Accepted")
    assert await site.pods("restricted") == ALL


async def test_a_job_that_insists_on_root_reports_what_the_level_forbids(site: Site) -> None:
    status = await site.reported("restricted", template=in_template(runAsUser=0))
    message = condition(status, "Accepted")["message"]
    assert (status["state"], condition(status, "Accepted")["reason"]) == ("Invalid", "PodRefused")
    assert 'violates PodSecurity "restricted:latest": runAsNonRoot != true' in message
    assert "It is refused as a non-root user too: change spec.template" in message
    assert await site.pods("restricted") == []
