"""No object of one tenant is trouble for another: each is read alone, and is ours only if a job owns it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from lab.waiting import wait_until_async
from tests.controller.house import JOB, condition, job, names, observation, operator_of, status
from tests.controller.parsing import Parsed
from tests.controller.scripted import Scripted, an_object

from ropeteam.controller import metrics
from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache import parsing
from ropeteam.controller.cache.caches import make_caches
from ropeteam.controller.cache.informer import Informer, Key, WatchSpec
from ropeteam.controller.client.apiclient import ApiClient, Object, ObjectRef
from ropeteam.core.seen import names as own_names
from ropeteam.local.cluster import LocalCluster

LABELS = {"app.kubernetes.io/managed-by": "ropeteam", "ropeteam.dev/job": "job"}
OTHER = ObjectRef("TrainingJob", "default", "other")


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "home") as running:
        yield running


def service(name: str = "aaa", term: str = "1", **labels: str) -> Object:
    meta = {"name": name, "namespace": "default", "labels": LABELS | labels}
    spec = {"selector": {"ropeteam.dev/term": term}, "ports": [{"port": 29402}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def nested(levels: int) -> Object:
    deep: Any = "inside"
    for _ in range(levels):
        deep = {"a": deep}
    return {"metadata": {"x": deep}}


async def started(client: ApiClient, place: ObjectRef) -> Object:
    async def attempted() -> Object:
        seen = await status(client, place)
        return seen if seen.get("attempt") == 1 else {}

    return await wait_until_async("the job has its first attempt", attempted)


async def refusal(client: ApiClient) -> str:
    async def skipped() -> str:
        accepted = condition(await status(client), "Accepted")
        return str(accepted["message"]) if accepted.get("status") == "False" else ""

    return await wait_until_async("the job is not Accepted", skipped)


async def test_a_service_with_a_wrong_label_is_no_error(cluster: LocalCluster) -> None:
    async with operator_of(cluster) as operator:
        await operator.client.create(service(term="x"))
        await operator.client.create(job())
        await started(operator.client, JOB)


async def test_a_job_that_is_nested_too_deep_is_refused_and_the_next_one_starts(
    cluster: LocalCluster,
) -> None:
    async with operator_of(cluster) as operator:
        await operator.client.create(job(template=nested(150)))
        await operator.client.create(job("other"))
        await started(operator.client, OTHER)
        assert "spec: is nested more than 100 levels deep" in await refusal(operator.client)
        pods = await names(operator.client, "Pod")
        assert [name for name in pods if not name.startswith("other")] == []


async def test_a_job_that_is_too_large_is_refused_and_takes_little_memory(cluster: LocalCluster) -> None:
    async with operator_of(cluster) as operator:
        many: Object = {f"k{number}": [] for number in range(40_000)}
        await operator.client.create(job(template={"metadata": {"x": many}}))
        assert "spec: has 4" in await refusal(operator.client)
        (cached,) = operator.caches.jobs.values_of(Key("default", "job"))
        assert len(cached.text) < 8192


def test_of_a_jobs_metadata_only_what_is_read_is_cached() -> None:
    obj = training_job("job", 1)
    obj["metadata"] |= {
        "labels": {f"label-{n}": "x" * 60 for n in range(1000)},
        "finalizers": ["example.com/x"] * 1000,
        "annotations": {"ropeteam.dev/coordinators-ended": "1", "kubectl": "x" * 100_000},
    }
    cached = parsing.job(obj)
    assert cached.parsed()["metadata"]["annotations"] == {"ropeteam.dev/coordinators-ended": "1"}
    assert len(cached.text) < 500


@asynccontextmanager
async def watching(client: ApiClient, kind: str) -> AsyncIterator[tuple[Informer[Any], list[Key]]]:
    bells = list[Key]()
    caches = make_caches(client, (), bells.append)
    (informer,) = (each for each in caches.informers if each.kind == kind)
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    yield informer, bells
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def training_job(name: str, version: int, **spec: Any) -> Object:
    return an_object(name, version, **spec) | {"kind": "TrainingJob"}


async def test_thousands_of_levels_are_listed_and_watched(api: Scripted, client: ApiClient) -> None:
    api.listed, api.version = [training_job("deep", 3, template="DEEP"), training_job("a", 4)], 5
    async with watching(client, "TrainingJob") as (jobs, _):
        assert {job.spec_error != "" for job in jobs.values_of(Key("default", "deep"))} == {True}
        assert {job.spec_error for job in jobs.values_of(Key("default", "a"))} == {""}
        api.send("MODIFIED", training_job("a", 6, template="DEEP"))
        api.send("ADDED", training_job("b", 7))
        await wait_until_async("job b is known", lambda: Key("default", "b") in jobs.known_keys())
        assert {job.spec_error != "" for job in jobs.values_of(Key("default", "a"))} == {True}
        assert jobs.lists == 1


async def test_of_a_job_that_is_too_large_only_the_rest_is_parsed(
    api: Scripted, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = training_job("large", 3, template=[[]] * 150_000) | {"status": {"state": "Running"}}
    async with watching(client, "TrainingJob") as (jobs, bells):
        parsed = Parsed(monkeypatch)
        for version in range(4, 9):
            large["metadata"]["resourceVersion"] = str(version)
            api.send("MODIFIED", large)
        await wait_until_async("all five changes are reported", lambda: len(bells) == 5)
        (seen,) = jobs.values_of(Key("default", "large"))
        assert (seen.state, seen.spec_error[:18]) == ("Running", "spec: has 439 KiB,")
        jobs.upsert(await client.replace(large, "status", parsing.job_text))
    assert parsed.bytes < 5_000
    assert parsed.walks == 0


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ADDED", "object": {"metadata": }}',
        b"[]",
        b"null",
        b'{"kind": "Status", "code": 502}',
        b'{"type": "ADDED", "object": {"metadata": {"uid": "u"}}}',
        b'{"type": "BOOKMARK", "object": []}',
    ],
)
async def test_a_line_that_is_no_event_leads_to_a_list(api: Scripted, client: ApiClient, line: bytes) -> None:
    async with watching(client, "TrainingJob") as (jobs, _):
        api.listed, api.version = [training_job("a", 4)], 9
        api.send_text(line)
        await wait_until_async("the jobs are listed again", lambda: jobs.lists == 2)
        assert jobs.known_keys() == (Key("default", "a"),)


@pytest.mark.parametrize("page", [{}, {"items": 5}, {"items": [{}], "metadata": {}}, {"items": []}])
async def test_a_list_that_is_none_is_requested_again(api: Scripted, client: ApiClient, page: Object) -> None:
    api.listed, api.answers = [training_job("a", 4)], [(200, page)]
    async with watching(client, "TrainingJob") as (jobs, _):
        assert jobs.known_keys() == (Key("default", "a"),)


async def test_pages_that_are_too_large_are_requested_in_parts(api: Scripted, client: ApiClient) -> None:
    large = [training_job(f"large-{n}", n + 1, env="x" * 300_000) for n in range(10)]
    api.listed = [*large, *(training_job(f"small-{n}", n + 20) for n in range(100))]
    async with watching(client, "TrainingJob") as (jobs, _):
        assert len(jobs.known_keys()) == 110
        assert api.limits == [500, 100, 20, 4, 20, 100]


async def test_an_object_that_cannot_be_read_is_passed_over_and_reported_once(
    api: Scripted, client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    def read(found: Object) -> int:
        return int(found["spec"]["number"])

    def counted() -> float:
        return metrics.REGISTRY.get_sample_value("ropeteam_unreadable_objects_total", {"kind": "Pod"}) or 0

    before = counted()
    informer = Informer(client, WatchSpec("Pod", "", parsing.own_key, read), lambda _: None)
    api.listed = [an_object("good", 2, number="1"), an_object("bad", 3, number="x")]
    await informer.list()
    assert list(informer.values()) == [1]
    informer.upsert(an_object("bad", 4, number="y"))
    informer.upsert(an_object("good", 5, number="z"))
    assert list(informer.values()) == [], "what was known of it is not true any more"
    assert counted() - before == 3
    warnings = [line for line in caplog.messages if "skipped Pod default/bad" in line]
    assert len(warnings) == 1


async def with_pods(still: Operator) -> str:
    """The job's UID."""
    await still.client.create(job())
    await still.caches.jobs.parts[0].list()
    while "job-0-1" not in await names(still.client, "Pod"):
        await still.reconciler(Key("default", "job"))
    for part in still.caches.informers:
        await part.list()
    return str((await still.client.get(JOB))["metadata"]["uid"])


@pytest_asyncio.fixture
async def still(cluster: LocalCluster) -> AsyncIterator[Operator]:
    async with operator_of(cluster, works=False) as operator:
        yield operator


async def test_nothing_is_deleted_because_of_its_labels(still: Operator) -> None:
    uid = await with_pods(still)
    foreign = service(**{"ropeteam.dev/job-uid": uid})
    await still.client.create(foreign)
    await still.client.delete(JOB, uid=uid)
    for part in still.caches.informers:
        await part.list()
    await still.reconciler(Key("default", "job"))
    assert await names(still.client, "Service") in (["aaa"], ["aaa", "job"])


async def test_a_service_that_has_not_the_jobs_name_is_not_its_service(
    still: Operator, cluster: LocalCluster
) -> None:
    uid = await with_pods(still)
    owner = (await still.client.get(ObjectRef("Service", "default", "job")))["metadata"]["ownerReferences"]
    forged = service(**{"ropeteam.dev/job-uid": uid})
    forged["metadata"]["ownerReferences"] = owner
    await still.client.create(forged)
    async with operator_of(cluster, works=False) as restarted:
        seen = await observation(restarted)
    assert seen is not None
    assert seen.service is not None
    assert seen.service.name == own_names.service("job")


OWNER = {
    "apiVersion": "ropeteam.dev/v1",
    "kind": "TrainingJob",
    "name": "job",
    "uid": "u",
    "controller": True,
}


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [],
        [OWNER | {"uid": "other"}],
        [OWNER | {"name": "other"}],
        [OWNER | {"kind": "Job", "apiVersion": "batch/v1"}],
        [OWNER | {"apiVersion": "ropeteam.dev.example.com/v1"}],
        [{key: value for key, value in OWNER.items() if key != "controller"}],
    ],
)
def test_labels_without_an_owner_are_not_trusted(owners: list[Object] | None) -> None:
    labelled = an_object("pod", 1)
    labelled["metadata"]["labels"] = {"ropeteam.dev/job": "job", "ropeteam.dev/job-uid": "u"}
    labelled["metadata"]["ownerReferences"] = owners
    assert parsing.job_key(labelled) is None
    labelled["metadata"]["ownerReferences"] = [{"kind": "Other"}, OWNER]
    assert parsing.job_key(labelled) == Key("default", "job")


TEXTS = st.text("0123456789x-²", max_size=12)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("role", "slot", "incarnation", "term"), TEXTS)))
def test_whatever_labels_contain_pods_and_services_are_read(labels: dict[str, str]) -> None:
    pod = an_object("pod", 1)
    pod["metadata"]["labels"] = {f"ropeteam.dev/{key}": value for key, value in labels.items()}
    assert parsing.pod(pod)[1].name == "pod"
    led = an_object("service", 1, selector=pod["metadata"]["labels"])
    term = labels.get("term", "")
    is_number = term.isascii() and term.isdecimal() and len(term) <= 9
    assert parsing.service(led)[1].term == (int(term) if is_number else 0)


@pytest.mark.parametrize("spec", ["None", 2**63, [{"workers": 2}]])
def test_a_spec_that_is_no_map_is_a_fault_of_the_job(spec: Any) -> None:
    seen = parsing.job(training_job("a", 1) | {"spec": spec})
    assert seen.spec_error.startswith("spec: is not a map of fields")
    assert seen.parsed()["spec"] == {}


@pytest.mark.parametrize(
    ("given", "taken"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("9" * 99, "")]
)
def test_an_address_that_is_none_is_not_known_yet(given: str, taken: str) -> None:
    assert parsing.service(an_object("service", 1, clusterIP=given))[1].cluster_ip == taken


async def test_an_operator_without_data_of_a_kind_is_not_ready(still: Operator) -> None:
    loop, requested = asyncio.get_running_loop(), still.stale_caches()
    assert requested == ""
    assert set(still.cache_ages()) == {"Node", "Pod", "Service", "TrainingJob"}
    still.caches.pods.parts[0]._received_at = loop.time() - 200
    assert still.stale_caches() == (
        "the caches are out of date, the API server has sent nothing for too long (Pod: 200 s; limit: "
        "180 s): check that this operator can reach it"
    )
    await still.caches.pods.parts[0].list()
    assert still.stale_caches() == ""
