"""Rounds against a real API server: intent is saved before it is carried out; twice is the same as once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from lab.waiting import wait_until_async
from tests.controller.house import JOB, condition, job, names, observation, operator_of, status

from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import (
    ApiError,
    Conflict,
    NotFound,
    Object,
    ObjectRef,
    QuotaExceeded,
)
from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import CreatePod, DeleteJob, DeletePod, DeleteService, PointService
from ropeteam.core.questions.steady import ASSUMED_UP_TO_DATE_SECONDS
from ropeteam.core.seen.observation import Observation
from ropeteam.local.cluster import LocalCluster

KEY = Key("default", "job")


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "home") as running:
        yield running


@pytest_asyncio.fixture
async def still(cluster: LocalCluster) -> AsyncIterator[Operator]:
    """An operator that makes a round when the test says so."""
    async with operator_of(cluster, works=False) as operator:
        yield operator


async def test_a_new_job_gets_its_secret_service_coordinator_and_workers(cluster: LocalCluster) -> None:
    async with operator_of(cluster) as operator:
        client = operator.client
        await client.create(job())

        async def pods() -> bool:
            return await names(client, "Pod") == ["job-0-1", "job-1-1", "job-coordinator-1"]

        await wait_until_async("all three pods are there", pods)
        assert await names(client, "Service") == ["job"]
        token, agent = await names(client, "Secret")
        assert token.startswith("job-")
        assert agent.startswith("ropeteam-agent-")
        seen = await status(client)
        assert (seen["attempt"], seen["observedGeneration"]) == (1, 1)


async def test_a_secret_that_somebody_deleted_comes_back_with_the_next_pod(still: Operator) -> None:
    seen = await with_pods(still)
    created = still.reconciler.jobs.state_of(KEY, seen.metadata.uid, 0.0).created
    assert created.secret
    created.secret_at -= ASSUMED_UP_TO_DATE_SECONDS

    async def known() -> bool:
        await still.reconciler(KEY)
        return all(slot["podUID"] for slot in (await status(still.client))["slots"])

    await wait_until_async("each slot has its pod in status", known)
    for kind, prefix in (("Secret", "job-"), ("Pod", "job-0-")):
        (gone,) = [name for name in await names(still.client, kind) if name.startswith(prefix)]
        place = ObjectRef(kind, "default", gone)
        uid = (await still.client.get(place))["metadata"]["uid"]
        await still.client.delete(place, uid=uid, grace_seconds=0)

    async def replaced() -> bool:
        await still.caches.pods.parts[0].list()
        await still.reconciler(KEY)
        return "job-0-2" in await names(still.client, "Pod")

    await wait_until_async("the replacement pod is there", replaced)
    assert len(await names(still.client, "Secret")) == 2, "the token's and the agent's"


async def test_the_intent_is_saved_before_anything_is_made(still: Operator) -> None:
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    assert await still.reconciler(KEY) == 0
    assert (await status(still.client))["attempt"] == 1
    assert await names(still.client, "Pod") == []
    await still.reconciler(KEY)
    await still.reconciler(KEY)
    assert "job-coordinator-1" in await names(still.client, "Pod")


async def test_a_decision_about_an_old_object_is_forgotten(still: Operator) -> None:
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    await still.client.merge(JOB, {"metadata": {"labels": {"changed": "meanwhile"}}})
    with pytest.raises(Conflict):
        await still.reconciler(KEY)
    assert await status(still.client) == {}
    await still.caches.jobs.parts[0].list()
    assert await still.reconciler(KEY) == 0


async def test_a_job_whose_end_the_watch_has_not_reported_is_swept_all_the_same(still: Operator) -> None:
    seen = await with_pods(still)
    for part in still.caches.informers:
        await part.list()
    await still.client.merge(JOB, {"spec": {"suspend": True}})
    await still.caches.jobs.parts[0].list()  # something to write about, and the last event of it
    await still.client.delete(JOB, uid=seen.metadata.uid)
    rounds: list[float | None] = [0.0]
    for _ in range(5):  # the first find out; what is logged by then depends on the garbage collector
        with suppress(ApiError):
            rounds.append(await still.reconciler(KEY))
    assert rounds[-1] is None
    assert await names(still.client, "Service") == []


async def test_every_action_may_be_carried_out_twice(still: Operator) -> None:
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    done = []
    for _ in range(6):
        seen = await observation(still)
        assert seen is not None
        actions = decide(seen).actions
        created = still.reconciler.jobs.state_of(KEY, seen.metadata.uid, 0.0).created
        for action in (*actions, *actions):
            await still.reconciler.executor.execute(action, seen.metadata, created)
            done.append(type(action).__name__)
        await still.reconciler(KEY)
    assert {"CreateSecret", "CreateService", "CreatePod"} <= set(done)
    assert await names(still.client, "Pod") == ["job-0-1", "job-1-1", "job-coordinator-1"]


async def test_a_log_line_names_some_actions_and_counts_the_rest(
    still: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await still.client.create(job(workers=30))
    await still.caches.jobs.parts[0].list()
    while "job-0-1" not in await names(still.client, "Pod"):
        await still.reconciler(KEY)
    line = next(line for line in caplog.messages if "create Pod job-0-1" in line)
    assert line.endswith("create Pod job-18-1; and 11 more]")


async def test_a_large_job_leaves_capacity_for_others_and_reports_few_failures(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, creates = still.client.create, Counter[str]()

    async def refuse(obj: Object, *, dry_run: bool = False) -> Object:
        if obj["kind"] != "Pod" or dry_run or "coordinator" in obj["metadata"]["name"]:
            return await create(obj, dry_run=dry_run)
        creates["at once"] += 1
        creates["most"] = max(creates["most"], creates["at once"])
        await asyncio.sleep(0.2)  # until all that may be requested at once are
        creates["at once"] -= 1
        raise ApiError(403, "exceeded quota")

    monkeypatch.setattr(still.client, "create", refuse)
    await still.client.create(job(workers=200))
    await still.caches.jobs.parts[0].list()

    async def rounds() -> None:
        for _ in range(10):
            await still.reconciler(KEY)

    with pytest.raises(ApiError, match="exceeded quota"):
        await rounds()
    events = await still.client.items(ObjectRef("Event", "default"))
    assert creates["most"] == 50
    assert sum(event["reason"] == "ActionFailed" for event in events) == 5


async def with_pods(still: Operator) -> Observation:
    """A job whose pods were made."""
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    while "job-0-1" not in await names(still.client, "Pod"):
        await still.reconciler(KEY)
    seen = await observation(still)
    assert seen is not None
    return seen


async def test_each_action_does_what_it_names(still: Operator) -> None:
    seen = await with_pods(still)
    assert seen.service is not None
    created = still.reconciler.jobs.state_of(KEY, seen.metadata.uid, 0.0).created
    worker = next(pod for pod in seen.pods if pod.name == "job-0-1")
    selector = {"ropeteam.dev/term": "2"}
    point = PointService("job", seen.service.uid, selector)
    await still.reconciler.executor.execute(point, seen.metadata, created)
    delete = DeletePod(worker.name, worker.uid, grace_seconds=7)
    await still.reconciler.executor.execute(delete, seen.metadata, created)
    again = await observation(still)
    assert again is not None
    assert again.service is not None
    assert again.service.term == 2, "what was written is known without a watch"
    assert next(pod for pod in again.pods if pod.name == "job-0-1").deleting
    for action in (DeleteService("job", seen.service.uid), DeleteJob("job", seen.metadata.uid)):
        await still.reconciler.executor.execute(action, seen.metadata, created)
    await wait_until_async("the job is gone", lambda: is_gone(still, JOB))
    await wait_until_async(
        "the Service is gone", lambda: is_gone(still, ObjectRef("Service", "default", "job"))
    )


async def is_gone(operator: Operator, place: ObjectRef) -> bool:
    try:
        await operator.client.get(place)
    except NotFound:
        return True
    return False


async def test_what_cannot_be_done_is_reported_to_the_user(still: Operator) -> None:
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"ports": [{"port": 80}]},
    }
    await still.client.create(foreign)

    async def rounds() -> None:
        for _ in range(5):
            await still.reconciler(KEY)

    with pytest.raises(Conflict):
        await rounds()
    events = await still.client.items(ObjectRef("Event", "default"))
    messages = [event["message"] for event in events if event["reason"] == "ActionFailed"]
    assert messages
    assert messages[0].startswith("cannot create Service job: ")


async def test_a_pod_is_deleted_by_its_uid_only(still: Operator) -> None:
    seen = await with_pods(still)
    created = still.reconciler.jobs.state_of(KEY, seen.metadata.uid, 0.0).created
    await still.reconciler.executor.execute(DeletePod("job-0-1", "another-uid"), seen.metadata, created)
    assert (
        "deletionTimestamp"
        not in (await still.client.get(ObjectRef("Pod", "default", "job-0-1")))["metadata"]
    )


async def test_a_pod_whose_name_another_owner_has_is_not_taken_for_ours(still: Operator) -> None:
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    seen = await observation(still)
    assert seen is not None
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job-0-1", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "command": ["sleep", "600"]}]},
    }
    await still.client.create(pod)
    owner = {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "job",
        "uid": seen.metadata.uid,
    }
    owned = {**pod, "metadata": {**pod["metadata"], "ownerReferences": [owner]}}  # type: ignore[dict-item]
    created = still.reconciler.jobs.state_of(KEY, seen.metadata.uid, 0.0).created
    with pytest.raises(Conflict):
        await still.reconciler.executor.execute(CreatePod(owned), seen.metadata, created)


async def test_a_quota_that_is_full_keeps_no_job_from_being_decided(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = still.client.create

    async def refuse(obj: Object, *, dry_run: bool = False) -> Object:
        if dry_run:
            raise QuotaExceeded(403, 'pods "job-0-0" is forbidden: exceeded quota: small, used: pods=4')
        return await create(obj)

    monkeypatch.setattr(still.client, "create", refuse)
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    while "job-0-1" not in await names(still.client, "Pod"):
        await still.reconciler(KEY)
    assert condition(await status(still.client), "Accepted")["status"] == "True"


async def test_a_quota_with_no_capacity_for_all_is_reported_by_an_event_and_tried_again(
    still: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotas, as in docs/install.md; the local cluster enforces none."""
    create, full = still.client.create, True

    async def refuse(obj: Object, *, dry_run: bool = False) -> Object:
        if full and obj["metadata"]["name"] == "job-1-1":
            raise QuotaExceeded(403, 'pods "job-1-1" is forbidden: exceeded quota: small, used: pods=2')
        return await create(obj, dry_run=dry_run)

    monkeypatch.setattr(still.client, "create", refuse)
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()

    async def rounds() -> None:
        while True:
            await still.reconciler(KEY)

    with pytest.raises(ApiError, match="exceeded quota: small"):
        await rounds()
    events = await still.client.items(ObjectRef("Event", "default"))
    messages = [event["message"] for event in events if event["reason"] == "ActionFailed"]
    assert messages == [f"cannot create Pod job-1-1: {messages[0].partition(': ')[2]}"]
    assert "exceeded quota: small" in messages[0]
    shown = await status(still.client)
    assert (shown["state"], condition(shown, "Running")["reason"]) == ("Pending", "PodsStarting")
    assert await names(still.client, "Pod") == ["job-0-1", "job-coordinator-1"], "these keep their room"
    full = False
    while "job-1-1" not in await names(still.client, "Pod"):
        await still.reconciler(KEY)


async def test_a_pod_that_the_server_refuses_is_reported_in_the_servers_own_message(
    cluster: LocalCluster,
) -> None:
    mounts = [{"name": "nowhere", "mountPath": "/data"}]
    fetch = {"name": "fetch", "image": "i", "volumeMounts": mounts}
    template = {"spec": {"containers": [{"name": "trainer"}], "initContainers": [fetch]}}
    async with operator_of(cluster) as operator:
        await operator.client.create(job(template=template))

        async def refused() -> str:
            accepted = condition(await status(operator.client), "Accepted")
            return accepted.get("message", "") if accepted.get("status") == "False" else ""

        assert 'Not found: "nowhere"' in await wait_until_async("the job is not Accepted", refused)
        assert await names(operator.client, "Pod") == []


async def test_what_a_deleted_job_left_behind_is_swept_up(still: Operator) -> None:
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    while "job-0-1" not in await names(still.client, "Pod"):
        await still.reconciler(KEY)
    worker = await still.client.get(ObjectRef("Pod", "default", "job-0-1"))
    assert worker["spec"]["terminationGracePeriodSeconds"] == 70
    orphan = {"metadata": {"ownerReferences": None}}
    await still.client.merge(ObjectRef("Pod", "default", "job-0-1"), orphan)
    uid = (await still.client.get(JOB))["metadata"]["uid"]
    await still.client.delete(JOB, uid=uid)
    await still.caches.jobs.parts[0].list()
    await still.reconciler(KEY)
    left = await still.client.items(ObjectRef("Pod", "default"))
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in left} <= {2}, "nobody is waited for"

    async def gone() -> bool:
        return await names(still.client, "Pod") == []

    await wait_until_async("the pods are gone", gone)
