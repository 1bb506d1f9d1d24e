"""A job whose rounds fail again and again says so itself, once, and no longer than that is so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import pytest_asyncio
from tests.controller.house import JOB, condition, job, operator_of, status

from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiError, Conflict, Object, ObjectRef
from ropeteam.controller.reconcile import failing, reconciler
from ropeteam.controller.reconcile.failing import REASON, REPORT_AFTER_FAILURES
from ropeteam.local.cluster import LocalCluster

KEY = Key("default", "job")


@pytest_asyncio.fixture
async def still(tmp_path: Path) -> AsyncIterator[Operator]:
    """An operator that has started a job, and makes a round when the test says so."""
    async with LocalCluster(tmp_path / "home") as cluster, operator_of(cluster, works=False) as operator:
        await operator.client.create(job())
        await operator.caches.jobs.parts[0].list()
        await operator.reconciler(KEY)
        yield operator


async def fail(operator: Operator, rounds: int) -> None:
    for _ in range(rounds):
        with pytest.raises(Exception, match="odd"):
            await operator.reconciler(KEY)


async def stalled(operator: Operator) -> Object:
    return condition(await status(operator.client), "Stalled")


async def events(operator: Operator) -> list[str]:
    found = await operator.client.items(ObjectRef("Event", "default"))
    return [event["message"] for event in found if (event["type"], event["reason"]) == ("Warning", REASON)]


def raising(error: Exception) -> Any:
    def decide(*_: object) -> NoReturn:
        raise error

    return decide


async def test_after_some_failures_for_one_reason_the_job_is_stalled_until_it_can_be_decided(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(reconciler, "decide", raising(ValueError("odd: \udce9")))
        await fail(still, REPORT_AFTER_FAILURES - 1)
        assert (await stalled(still))["status"] == "False"
        await fail(still, 1)
        found = await stalled(still)
        assert (found["status"], found["reason"]) == ("True", REASON)
        assert "ValueError: odd: ?." in found["message"]
        assert (await status(still.client))["reason"] == REASON, "kubectl get shows it"
        version = (await still.client.get(JOB))["metadata"]["resourceVersion"]
        await fail(still, 3)
        assert (await still.client.get(JOB))["metadata"]["resourceVersion"] == version, "it is said once"
        assert await events(still) == [found["message"][:1024]]
    await still.reconciler(KEY)
    assert (await stalled(still))["status"] == "False"


async def pods(operator: Operator) -> list[str]:
    await operator.caches.pods.parts[0].list()
    found = await operator.client.items(ObjectRef("Pod", "default"))
    return sorted(each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"])


async def begun(operator: Operator) -> None:
    """All pods are there."""
    while "job-1-1" not in await pods(operator):
        await operator.reconciler(KEY)


async def finish(operator: Operator) -> None:
    """The job is over, and its pods are not deleted yet."""
    seen = await operator.client.get(JOB)
    failed = next(each for each in seen["status"]["conditions"] if each["type"] == "Stalled")
    seen["status"]["conditions"] += [failed | {"type": "Failed", "status": "True"}]
    operator.caches.jobs.upsert(await operator.client.replace(seen, subresource="status"))


@pytest.mark.parametrize("over", [True, False])
async def test_after_an_hour_pods_that_certainly_do_not_train_go(
    still: Operator, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    await begun(still)
    if over:
        await finish(still)
    monkeypatch.setattr(reconciler, "decide", raising(ValueError("odd")))
    await fail(still, REPORT_AFTER_FAILURES)
    assert len(await pods(still)) == 3
    monkeypatch.setattr(failing, "DELETE_IDLE_AFTER_SECONDS", 0.0)
    await fail(still, 1)
    workers = [] if over else ["job-0-1", "job-1-1"]
    assert await pods(still) == [*workers, "job-coordinator-1"]


async def test_what_is_too_malformed_to_be_observed_keeps_its_pods(
    still: Operator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failing, "DELETE_IDLE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(type(still.reconciler.observer), "observe", raising(ValueError("odd")))
    await fail(still, REPORT_AFTER_FAILURES)
    assert [line for line in caplog.messages if "cannot delete its idle pods: odd" in line]


async def test_failures_for_several_reasons_are_not_one(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in [ValueError("odd"), KeyError("odd")] * REPORT_AFTER_FAILURES:
        monkeypatch.setattr(reconciler, "decide", raising(error))
        await fail(still, 1)
    assert await events(still) == []


@pytest.mark.parametrize(
    "error", [Conflict(409, "odd"), ApiError(503, "odd"), ApiError(401, "odd"), TimeoutError("odd")]
)
async def test_what_passes_by_itself_is_not_reported(
    still: Operator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(reconciler, "decide", raising(error))
    await fail(still, 2 * REPORT_AFTER_FAILURES)
    assert await events(still) == []


async def test_a_status_that_the_server_refuses_is_reported_in_an_event(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> NoReturn:
        raise ApiError(422, "status.incidents[0].rank: odd")

    monkeypatch.setattr(still.client, "replace", refuse)
    await still.client.merge(JOB, {"spec": {"suspend": True}})
    await still.caches.jobs.parts[0].list()  # something to write about
    await fail(still, REPORT_AFTER_FAILURES)
    (found,) = await events(still)
    assert "status.incidents[0].rank: odd. The API server refuses a request of the operator" in found
    assert (await stalled(still))["status"] == "False"
