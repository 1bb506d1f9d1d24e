"""kopf rings the bell, and is started again whatever makes it give up."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from itertools import islice
from typing import Any

import kopf
import pytest
from aiohttp import web
from tests.controller.parsing import Parsed
from tests.controller.scripted import Object, Scripted, access, serving, thing
from tests.controller.waiting import until

from ropeteam.controller import handlers
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.access import Access


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
    """Also tells kopf that there are TrainingJobs."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        return await super().handle(request)


def job(name: str, version: int) -> Object:
    return {**thing(name, version), "apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob"}


async def test_a_job_of_thousands_of_levels_is_no_trouble_for_kopf(caplog: pytest.LogCaptureFixture) -> None:
    api, bells = ScriptedJobs(), list[Key]()
    deep = {**job("deep", 3), "spec": {"template": "DEEP"}}
    api.listed, api.version = [deep, job("listed", 4)], 5
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(handlers.run(load, bells.append, (), asyncio.Event()))
        await until(lambda: api.watches == 1)
        assert api.limits == [1], "each has rung already, when our informer has listed it"
        api.say("ADDED", {**deep, "metadata": {**deep["metadata"], "name": "watched", "uid": "w"}})
        api.say("MODIFIED", {**job("listed", 7), "spec": {"changed": True}})
        await until(lambda: {key.name for key in bells} == {"watched", "listed"})
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert api.watches == 1
    assert not [line for line in caplog.messages if "kopf stopped" in line]


async def test_a_large_job_that_changes_is_not_parsed_for_kopf(monkeypatch: pytest.MonkeyPatch) -> None:
    api, bells, parsed = ScriptedJobs(), list[Key](), Parsed(monkeypatch)
    large = {**job("large", 3), "spec": {"template": [[]] * 50_000}, "status": {"state": "Running"}}
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(handlers.run(load, bells.append, (), asyncio.Event()))
        for change in range(5):
            api.say("MODIFIED", large)
            await until(lambda: len(bells) == change + 1)  # noqa: B023 - it is awaited here
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert parsed.bytes < 5_000
    assert parsed.walks == 0


@pytest.mark.parametrize("trouble", ["an error in the stream", "credentials that are refused"])
async def test_the_bell_rings_again_after_what_kills_kopf(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, bells, kills = ScriptedJobs(), list[Key](), list[int]()
    settings = handlers.settings

    def impatient() -> kopf.OperatorSettings:
        chosen = settings()
        if chosen.process.ultimate_exiting_timeout:
            chosen.process.ultimate_exiting_timeout = 0.01
        return chosen

    monkeypatch.setattr(handlers, "settings", impatient)
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: kills.append(number))
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(handlers.run(load, bells.append, (), asyncio.Event()))
        await until(lambda: api.watches == 1)
        if trouble == "an error in the stream":
            api.say("ERROR", {"kind": "Status", "apiVersion": "v1", "code": 500, "message": "no"})
        else:
            api.answers += [(401, {"kind": "Status", "message": "expired", "code": 401})] * 3
            api.hang_up()
        await until(lambda: api.watches == 2)
        api.say("MODIFIED", job("a", 9))
        await until(lambda: Key("default", "a") in bells)
        assert not kills, "kopf gave up, this process has not"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_signal_is_told_before_kopf_waits_for_every_younger_task() -> None:
    api, ended = ScriptedJobs(), asyncio.Event()
    async with serving(api) as address:

        async def load() -> Access:
            return access(address)

        task = asyncio.create_task(handlers.run(load, list[Key]().append, (), ended))
        await until(lambda: api.watches == 1)
        younger = asyncio.create_task(asyncio.Event().wait())
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait((asyncio.ensure_future(ended.wait()), task), return_when="FIRST_COMPLETED")
        assert ended.is_set()
        assert not younger.done()
        younger.cancel()
        await task


def test_waits_never_run_out() -> None:
    waits: list[Any] = list(islice(handlers.Forever(), 1000))
    assert len(waits) == 1000
    assert waits[:4] == [0.5, 1.0, 2.0, 5.0]
