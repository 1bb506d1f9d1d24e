"""kopf reports changes of jobs and is started again whatever stops it; the cache is compared with them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import enumerate as enumerate_threads
from typing import Any

import kopf
import pytest
import pytest_asyncio
from aiohttp import web
from lab.waiting import wait_until_async
from tests.controller.parsing import Parsed
from tests.controller.scripted import Object, Scripted, access, an_object, serving

from ropeteam.controller import metrics
from ropeteam.controller.cache.informer import Informer, Key, MultiNamespaceInformer, WatchSpec
from ropeteam.controller.client.access import Access
from ropeteam.controller.client.apiclient import ApiClient
from ropeteam.controller.kopfwatch import crosscheck, thread
from ropeteam.controller.kopfwatch.crosscheck import CrossCheck
from ropeteam.controller.kopfwatch.handlers import Change
from ropeteam.controller.kopfwatch.settings import Forever, settings


def resource(name: str, kind: str, namespaced: bool) -> Object:
    return {
        "name": name,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": namespaced,
        "verbs": ["get", "list", "watch", "patch"],
    }


VERSION = {"version": "v1alpha1", "groupVersion": "ropeteam.dev/v1alpha1"}
DISCOVERY: dict[str, Object] = {
    "/version": {"major": "1", "minor": "32"},
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [resource("namespaces", "Namespace", False)]},
    "/apis": {"groups": [{"name": "ropeteam.dev", "versions": [VERSION], "preferredVersion": VERSION}]},
    "/apis/ropeteam.dev/v1alpha1": {"resources": [resource("trainingjobs", "TrainingJob", True)]},
}


class ScriptedJobs(Scripted):
    """Also shows kopf that there are TrainingJobs."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        return await super().handle(request)


def job(name: str, version: int) -> Object:
    return {**an_object(name, version), "apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob"}


async def test_a_job_of_thousands_of_levels_is_no_problem_for_kopf(caplog: pytest.LogCaptureFixture) -> None:
    api, changes = ScriptedJobs(), list[Change]()
    deep = {**job("deep", 3), "spec": {"template": "DEEP"}}
    api.listed, api.version = [deep, job("listed", 4)], 5
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(thread.run(load, changes.append, ()))
        await wait_until_async("the watch is open", lambda: api.watches == 1)
        assert api.limits == [1], "each has rung already, when our informer has listed it"
        api.send("ADDED", {**deep, "metadata": {**deep["metadata"], "name": "watched", "uid": "w"}})
        api.send("MODIFIED", {**job("listed", 7), "spec": {"changed": True}})
        await wait_until_async(
            "both jobs are reported", lambda: {change.key.name for change in changes} == {"watched", "listed"}
        )
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert api.watches == 1
    assert not [line for line in caplog.messages if "kopf stopped" in line]


async def test_a_large_job_that_changes_is_not_parsed_for_kopf(monkeypatch: pytest.MonkeyPatch) -> None:
    api, changes, parsed = ScriptedJobs(), list[Change](), Parsed(monkeypatch)
    large = {**job("large", 3), "spec": {"template": [[]] * 50_000}, "status": {"state": "Running"}}
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(thread.run(load, changes.append, ()))
        for change in range(5):
            api.send("MODIFIED", large)
            await wait_until_async("the change is reported", lambda: len(changes) == change + 1)  # noqa: B023 - it is awaited here
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert parsed.bytes < 5_000
    assert parsed.walks == 0


@pytest.mark.parametrize("fault", ["an error in the stream", "credentials that are refused"])
async def test_the_handler_runs_again_after_what_kills_kopf(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, changes, kills = ScriptedJobs(), list[Change](), list[int]()

    def impatient() -> kopf.OperatorSettings:
        chosen = settings()
        if chosen.process.ultimate_exiting_timeout:
            chosen.process.ultimate_exiting_timeout = 0.01
        return chosen

    monkeypatch.setattr(thread, "settings", impatient)
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: kills.append(number))
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(thread.run(load, changes.append, ()))
        await wait_until_async("the watch is open", lambda: api.watches == 1)
        if fault == "an error in the stream":
            api.send("ERROR", {"kind": "Status", "apiVersion": "v1", "code": 500, "message": "no"})
        else:
            api.answers += [(401, {"kind": "Status", "message": "expired", "code": 401})] * 3
            api.hang_up()
        await wait_until_async("a second watch is open", lambda: api.watches == 2)
        api.send("MODIFIED", job("a", 9))
        await wait_until_async(
            "the change is reported", lambda: Change(Key("default", "a"), "uid-a", 9, False) in changes
        )
        assert not kills, "kopf gave up, this process has not"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_end_of_kopf_reaches_no_task_and_no_signal_handler_of_ours() -> None:
    api, requested = ScriptedJobs(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, requested.set)
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(thread.run(load, list[Change]().append, ()))
        await wait_until_async("the watch is open", lambda: api.watches == 1)
        younger = asyncio.create_task(asyncio.Event().wait())
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_until_async("the request has come", requested.is_set)
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert "kopf" not in {each.name for each in enumerate_threads()}
        assert not younger.done()
        younger.cancel()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


class Clock:
    """Time of the cross-check, which passes only when a test lets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(crosscheck, "_now", clock)
    return clock


@pytest_asyncio.fixture
async def jobs(api: Scripted, client: ApiClient) -> AsyncIterator[MultiNamespaceInformer[Object]]:
    """A cache of two objects, at version 5."""
    api.listed, api.version = [an_object("a", 3), an_object("b", 4)], 5
    spec = WatchSpec[Object]("Pod", "", lambda o: Key("default", o["metadata"]["name"]), lambda o: o["spec"])
    informer = Informer(client, spec, lambda _: None, "default")
    task = asyncio.create_task(informer.run())
    await wait_until_async("the watch is open", lambda: api.watches == 1)
    yield MultiNamespaceInformer((informer, Informer(client, spec, lambda _: None, "other")))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def change(name: str, version: int, *, deleted: bool = False) -> Change:
    return Change(Key("default", name), f"uid-{name}", version, deleted)


def missed() -> float:
    return metrics.REGISTRY.get_sample_value("ropeteam_cache_missed_changes_total") or 0


@pytest.mark.parametrize("lost", [change("a", 8), change("c", 8), change("b", 8, deleted=True)])
async def test_what_the_watch_has_missed_is_listed(
    lost: Change, api: Scripted, jobs: MultiNamespaceInformer[Object], clock: Clock
) -> None:
    queued, before = list[Key](), missed()
    check = CrossCheck(jobs, queued.append)
    check.record(lost)
    check.relist_if_overdue()
    assert (queued, api.watches, missed()) == ([lost.key], 1, before), "it is not overdue yet"
    api.listed = [an_object("a", 8, changed=True), an_object("c", 8, changed=True)]
    api.version = 9
    clock.now += crosscheck.PATIENCE + 1
    check.relist_if_overdue()
    await wait_until_async("a second watch is open", lambda: api.watches == 2)
    assert {key.name for key in jobs.known_keys()} == {"a", "c"}
    clock.now += crosscheck.PATIENCE + 1
    check.relist_if_overdue()
    assert missed() == before + 1, "once"


async def test_a_job_that_changes_all_the_time_is_overdue_as_well(
    api: Scripted, jobs: MultiNamespaceInformer[Object], clock: Clock
) -> None:
    check, before = CrossCheck(jobs, lambda _: None), missed()
    for version in range(8, 12):
        check.record(change("a", version))
        clock.now += 0.4 * crosscheck.PATIENCE
    check.relist_if_overdue()
    assert missed() == before + 1
    await wait_until_async("a second watch is open", lambda: api.watches == 2)


async def test_a_watch_that_is_a_little_behind_has_missed_nothing(
    api: Scripted, jobs: MultiNamespaceInformer[Object], clock: Clock
) -> None:
    check, before = CrossCheck(jobs, lambda _: None), missed()
    check.record(change("a", 6))
    for version in range(6, 12):  # the cache always has the change before
        api.send("MODIFIED", an_object("a", version, number=version))
        await wait_until_async(
            "the change is in the cache", partial(jobs.has_change, "uid-a", version, deleted=False)
        )
        check.record(change("a", version + 1))
        clock.now += 0.4 * crosscheck.PATIENCE
        check.relist_if_overdue()
    check.record(change("a", 13, deleted=True))
    api.send("MODIFIED", an_object("a", 12))
    api.send("DELETED", an_object("a", 13))
    await wait_until_async("the deletion is in the cache", lambda: jobs.has_change("uid-a", 13, deleted=True))
    clock.now += crosscheck.PATIENCE + 1
    check.relist_if_overdue()
    assert (api.watches, missed()) == (1, before)


async def test_what_the_watch_brings_in_time_is_not_missed(
    api: Scripted, jobs: MultiNamespaceInformer[Object], clock: Clock
) -> None:
    check, before = CrossCheck(jobs, lambda _: None), missed()
    for each in (change("a", 6), change("c", 7), change("b", 8, deleted=True), change("broken", 10)):
        check.record(each)
    api.send("MODIFIED", an_object("a", 6))
    api.send("ADDED", an_object("c", 7))
    api.send("DELETED", an_object("b", 8))
    api.send("ADDED", {key: value for key, value in an_object("broken", 10).items() if key != "spec"})
    await wait_until_async(
        "both jobs are known", lambda: {key.name for key in jobs.known_keys()} == {"a", "c"}
    )
    await wait_until_async(
        "the change of the broken job has come", lambda: jobs.has_change("uid-broken", 10, deleted=False)
    )
    clock.now += crosscheck.PATIENCE + 1
    check.record(change("a", 6))
    check.relist_if_overdue()
    assert (api.watches, missed()) == (1, before)


def test_waits_never_run_out() -> None:
    waits: list[Any] = list(islice(Forever(), 1000))
    assert len(waits) == 1000
    assert waits[:4] == [0.5, 1.0, 2.0, 5.0]
