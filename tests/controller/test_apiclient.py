"""Calls are repeated while the trouble may pass; what repetition cannot mend surfaces by its meaning."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from lab.waiting import wait_until_async
from tests.controller.scripted import Object, Scripted, access, serving
from yarl import URL

from ropeteam.controller.client import apiclient
from ropeteam.controller.client.access import Access, AccessError, load
from ropeteam.controller.client.apiclient import (
    AlreadyGone,
    ApiClient,
    ApiError,
    Conflict,
    NoSuchKind,
    NotFound,
    ObjectRef,
    OwnedObjectExists,
    QuotaExceeded,
)
from ropeteam.controller.settings import SettingsError, load_keys, read

POD = ObjectRef("Pod", "default", "p")


def pod(owner: str) -> Object:
    meta = {"name": "p", "namespace": "default", "ownerReferences": [{"uid": owner}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_an_error_that_may_pass_is_waited_for(status: int, api: Scripted, client: ApiClient) -> None:
    api.answers += [(status, {"message": "later"})] * 2
    await client.get(POD)
    assert len(api.requests) == 3


async def test_a_request_that_waits_for_its_turn_does_not_run_out_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Scripted):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.1)
            return await super().handle(request)

    monkeypatch.setattr(apiclient, "_CONCURRENT_REQUESTS", 1)
    monkeypatch.setattr(apiclient, "_TIMEOUT", aiohttp.ClientTimeout(total=4))
    api = Slow()
    async with serving(api) as address:
        found = access(address)

        async def way() -> Access:
            return found

        async with ApiClient(way) as client:
            await asyncio.gather(*(client.get(POD) for _ in range(50)))
    assert len(api.requests) == 50, "nothing was asked again"


async def test_refused_credentials_are_loaded_again(api: Scripted, client: ApiClient) -> None:
    api.answers.append((401, {"message": "expired"}))
    await client.get(POD)
    assert api.tokens == ["Bearer token-0", "Bearer token-1"]


async def test_a_lookup_that_ends_with_its_connection_pool_is_repeated(api: Scripted) -> None:
    """aiohttp cancels lookups of names when their session closes: nobody has cancelled the request."""
    server, looked_up = URL(api.address), list[bool]()

    class Resolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            looked_up.append(True)
            if len(looked_up) == 1:
                await asyncio.Event().wait()
            found = ResolveResult(
                hostname=host, host=str(server.host), port=port, family=family, proto=0, flags=0
            )
            return [found]

        async def close(self) -> None:
            pass

    async def load() -> Access:
        return access(f"http://api.test:{server.port}", f"token-{len(looked_up)}")

    def connect(_: Access) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Resolver()))

    async with ApiClient(load, connect=connect) as client:
        request = asyncio.create_task(client.items(ObjectRef("Pod", "default")))
        await wait_until_async("the address is looked up", lambda: bool(looked_up))
        await client._reconnect(client._access)
        assert await request == []
    assert looked_up == [True, True]


async def test_a_refusal_surfaces_at_once_with_the_servers_message(api: Scripted, client: ApiClient) -> None:
    api.answers.append((422, {"message": "spec.containers: Required value"}))
    with pytest.raises(ApiError, match=r"spec\.containers: Required value"):
        await client.create(pod("job"))
    assert len(api.requests) == 1


async def test_a_name_that_is_taken_by_our_own_object_is_a_success(api: Scripted, client: ApiClient) -> None:
    api.answers += [(409, {"message": "exists"}), (200, pod("job"))]
    with pytest.raises(OwnedObjectExists):
        await client.create(pod("job"))


async def test_a_name_that_is_taken_by_another_owner_is_a_conflict(api: Scripted, client: ApiClient) -> None:
    api.answers += [(409, {"message": "exists"}), (200, pod("stranger"))]
    with pytest.raises(Conflict):
        await client.create(pod("job"))


async def test_secrets_are_never_read(api: Scripted, client: ApiClient) -> None:
    api.answers.append((409, {"message": "exists"}))
    with pytest.raises(OwnedObjectExists):
        await client.create({**pod("job"), "kind": "Secret"})
    assert api.requests == ["POST /api/v1/namespaces/default/secrets"]


@pytest.mark.parametrize("status", [404, 409])
async def test_deleting_what_is_gone_or_another_by_now_is_done(
    status: int, api: Scripted, client: ApiClient
) -> None:
    api.answers.append((status, {"message": "no such pod"}))
    with pytest.raises(AlreadyGone):
        await client.delete(POD, uid="u")


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (403, 'pods "x" is forbidden: exceeded quota: small, used: pods=4', QuotaExceeded),
        (403, 'pods "x" is forbidden: User "me" cannot get resource "pods"', ApiError),
        (404, "the server could not find the requested resource", NoSuchKind),
        (404, 'pods "x" not found', NotFound),
        (409, "the object has been modified", Conflict),
        (422, "exceeded quota", ApiError),
    ],
)
async def test_an_error_is_of_a_type_by_status_and_text(
    status: int, message: str, error: type[ApiError], api: Scripted, client: ApiClient
) -> None:
    api.answers.append((status, {"message": message}))
    with pytest.raises(ApiError) as caught:
        await client.request("GET", "/api/v1/pods")
    assert (type(caught.value), caught.value.status) == (error, status)


async def test_a_kubeconfig_that_cannot_work_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    with pytest.raises(AccessError, match=str(file)):
        await load(file)
    file.write_text("current-context: x\ncontexts: []\n")
    with pytest.raises(AccessError, match="no context named 'x'"):
        await load(file)


def test_the_operator_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    settings = read(["--home", str(tmp_path)], {})
    key = load_keys(settings)
    assert load_keys(settings) == key
    assert stat.S_IMODE((tmp_path / "operator.key").stat().st_mode) == 0o600
    assert key.accepted[0].secret.hex() not in repr(key)


def test_a_named_key_file_must_exist_and_be_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(SettingsError, match=str(file)):
        load_keys(read(["--key-file", str(file)], {}))
    file.write_text("abcd")
    with pytest.raises(SettingsError, match="openssl rand"):
        load_keys(read(["--key-file", str(file)], {}))


@pytest.mark.parametrize(
    ("flag", "value", "fix"),
    [
        ("--log-level", "loud", "must be DEBUG, INFO, WARNING or ERROR"),
        ("--probe-address", "localhost", "must be host:port"),
        ("--probe-address", "localhost:http", "must be host:port"),
        ("--probe-address", ":65536", "must be host:port"),
    ],
)
def test_a_flag_that_is_not_valid_is_named_with_what_it_must_be(
    flag: str, value: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read([flag, value], {})
    assert f"{flag} {value}: {fix}" in capsys.readouterr().err


def test_flags_win_over_the_environment_and_that_over_defaults() -> None:
    environ = {"ROPETEAM_IMAGE": "mine", "ROPETEAM_MAX_CONCURRENT_RECONCILES": "7"}
    settings = read(["--max-concurrent-reconciles", "9"], environ)
    assert (settings.image, settings.max_concurrent_reconciles, settings.log_level) == ("mine", 9, "INFO")
