"""Requests of `ropeteam watch` and `snapshot` to a coordinator: through an API server's proxy, and signed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from lab.coordinator.link import TOKEN, Operator
from lab.coordinator.reports import JOB_UID
from tests.controller.scripted import access, an_object
from tests.coordinator import conftest
from tests.coordinator.conftest import ServedCoordinator

from ropeteam.cli.show.follow import JobPoller
from ropeteam.controller.client.access import Access
from ropeteam.controller.client.apiclient import ApiClient
from ropeteam_trainer.contract import OLDEST, VERSION, codec, signing
from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.coordinator import http as http_module

served = conftest.served
JOB = {"metadata": {"uid": JOB_UID}, "status": {"coordinator": {"term": 1}}}


class Api:
    """An API server with one coordinator's pod and Secret, and the proxy to it. As in Kubernetes,
    Authorization goes no further."""

    def __init__(self, port: int, contract: int) -> None:
        self._port, self.requests = port, list[Any]()
        env = [{"name": "ROPETEAM_CONFIG", "value": orjson.dumps({"contract": contract}).decode()}]
        self._pod = an_object("mnist-coordinator-1", 1, containers=[{"env": env}])
        self._pod["metadata"]["labels"] = {"ropeteam.dev/role": "coordinator"}
        self.body: bytes | None = None

    async def handle(self, request: web.Request) -> web.Response:
        if "/secrets" in request.path:
            secret = {"data": {"token": base64.b64encode(TOKEN.hex().encode()).decode()}}
            return web.json_response({"items": [secret]})
        if not request.path.endswith("/proxy/status"):
            return web.json_response(self._pod)
        self.requests.append(request.headers)
        passed = {name: text for name, text in request.headers.items() if name.startswith("X-")}
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{self._port}") as session,
            session.get("/status", headers=passed) as answer,
        ):
            body = await answer.read() if self.body is None else self.body
            headers = {name: text for name, text in answer.headers.items() if name.startswith("X-")}
            return web.Response(status=answer.status, body=body, headers=headers)


@asynccontextmanager
async def following(api: Api) -> AsyncIterator[JobPoller]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def load(server: str) -> Access:
        return access(server)

    try:
        async with ApiClient(partial(load, f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            yield JobPoller(client, "default", "mnist")
    finally:
        await runner.cleanup()


async def test_a_look_is_one_signed_request_after_the_first(served: ServedCoordinator) -> None:
    api = Api(served.http, VERSION)
    await Operator(served.http).request("PUT /desired", codec.encode(Desired(3, 1, 1, {})))
    async with following(api) as follower:
        for _ in range(3):
            report = await follower.fetch_report(JOB)
            assert report is not None
            assert report.observed_generation == 3
        assert len(api.requests) == 1 + 3
        assert not any("X-Ropeteam-Bearer" in headers for headers in api.requests)


async def test_what_somebody_else_answers_is_no_report(served: ServedCoordinator) -> None:
    api = Api(served.http, VERSION)
    async with following(api) as follower:
        report = await follower.fetch_report(JOB)
        assert report is not None
        api.body = codec.encode(report)[:-1] + b" }"
        assert await follower.fetch_report(JOB) is None


async def test_a_coordinator_of_an_earlier_release_is_shown_its_bearer(
    served: ServedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "BEARER_SECONDS", 0.0)
    api = Api(served.http, OLDEST)
    async with following(api) as follower:
        assert await follower.fetch_report(JOB) is not None
        assert signing.HEADER not in api.requests[0]
