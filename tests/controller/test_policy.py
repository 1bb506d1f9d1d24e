"""The NetworkPolicies of jobs, by an operator that may create them and no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.controller.house import JOB, condition, job, names, operator_of, status
from tests.controller.scripted import Scripted

from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef, OwnedObjectExists
from ropeteam.controller.settings import read
from ropeteam.local.cluster import LocalCluster

KEY = Key("default", "job")
PEERS: Object = {"operatorFrom": [{"podSelector": {}}], "metricsFrom": [{"namespaceSelector": {}}]}
FORBIDDEN = 'forbidden: User "ropeteam" cannot create resource "networkpolicies" in API group "x"'


@pytest_asyncio.fixture
async def still(tmp_path: Path) -> AsyncIterator[Operator]:
    """An operator that wants policies, makes a round when the test says so, and has seen one job."""
    peers = tmp_path / "policy.json"
    peers.write_text(json.dumps(PEERS))
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        operator_of(cluster, "--job-policy", str(peers), works=False) as operator,
    ):
        await operator.client.create(job())
        await operator.caches.jobs.parts[0].list()
        yield operator


def answered(monkeypatch: pytest.MonkeyPatch, client: ApiClient, *errors: ApiError) -> list[str]:
    """Answers to the creation of a NetworkPolicy, as the local cluster knows none: `errors`, then success.
    Gives the requested names.
    """
    create, created, left = client.create, list[str](), list(errors)

    async def answer(obj: Object, *, dry_run: bool = False) -> Object:
        if obj["kind"] != "NetworkPolicy":
            return await create(obj, dry_run=dry_run)
        created.append(obj["metadata"]["name"])
        if left:
            raise left.pop(0)
        return obj

    monkeypatch.setattr(client, "create", answer)
    return created


async def rounds(still: Operator) -> list[str]:
    """Until the workers are there. Gives the errors on the way."""
    errors: list[str] = []
    for _ in range(20):
        if "job-1-1" in await names(still.client, "Pod"):
            break
        try:
            await still.reconciler(KEY)
        except ApiError as error:
            errors.append(str(error))
    return errors


async def warnings(still: Operator) -> list[str]:
    events = await still.client.items(ObjectRef("Event", "default"))
    return [event["message"] for event in events if event["reason"] == "ActionFailed"]


async def test_a_job_gets_one_and_is_requested_once(still: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    created = answered(monkeypatch, still.client)
    assert await rounds(still) == []
    assert len(created) == 1
    assert created[0].startswith("job-")
    await still.reconciler(KEY)
    assert len(created) == 1


async def test_one_that_is_there_is_ours(api: Scripted, client: ApiClient) -> None:
    """The name shows it; we may not read the policy."""
    api.answers = [(409, {"message": "already exists"})]
    meta = {"name": "job-1", "namespace": "default"}
    with pytest.raises(OwnedObjectExists):
        await client.create({"kind": "NetworkPolicy", "metadata": meta})
    assert api.requests == ["POST /apis/networking.k8s.io/v1/namespaces/default/networkpolicies"]


async def test_an_operator_without_the_right_reports_it_once_and_starts_the_job(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = answered(monkeypatch, still.client, ApiError(403, FORBIDDEN))
    (error,) = await rounds(still)
    assert len(created) == 1
    (warning,) = await warnings(still)
    assert warning == f"cannot create NetworkPolicy {created[0]}: {error}"
    assert "Grant the operator that permission" in warning
    assert "job-1-1" in await names(still.client, "Pod")


async def test_one_that_is_refused_holds_the_gang_up_until_it_is_taken(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch, still.client, *[ApiError(403, "exceeded quota: small")] * 3)
    for _ in range(5):
        try:
            await still.reconciler(KEY)
        except ApiError:
            continue
    stalled = condition(await status(still.client, JOB), "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NetworkPolicyRefused")
    assert "exceeded quota: small" in stalled["message"]
    assert await names(still.client, "Pod") == ["job-coordinator-1"]
    await rounds(still)
    assert await names(still.client, "Pod") == ["job-0-1", "job-1-1", "job-coordinator-1"]
    assert condition(await status(still.client, JOB), "Stalled")["status"] == "False"


def test_who_may_reach_jobs_comes_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read([], {}).defaults.policy is None, "without one there are no policies"
    file = tmp_path / "policy.json"
    file.write_text('{"operatorFrom": []}')
    with pytest.raises(SystemExit):
        read(["--job-policy", str(file)], {})
    assert f"--job-policy {file}: " in capsys.readouterr().err
    file.write_text(json.dumps(PEERS))
    policy = read([], {"ROPETEAM_JOB_POLICY": str(file)}).defaults.policy
    assert policy is not None
    assert policy.to_json() == PEERS


async def test_an_error_that_may_pass_is_no_refusal(still: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs would not request it again."""
    created = answered(monkeypatch, still.client, ApiError(503, "etcdserver: request timed out"))
    assert await rounds(still) == ["etcdserver: request timed out"]
    assert len(created) == 2
    assert condition(await status(still.client, JOB), "Stalled")["reason"] != "NetworkPolicyRefused"
