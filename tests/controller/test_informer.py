"""The cache follows the server through everything that kopf's watching gets wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio
from lab.waiting import wait_until_async
from tests.controller.scripted import Object, Scripted, an_object

from ropeteam.controller.cache.informer import Informer, Key, WatchSpec
from ropeteam.controller.client.apiclient import ApiClient

A, B = Key("default", "a"), Key("default", "b")


class Watched:
    """An informer that runs, and the keys it has enqueued."""

    def __init__(self, client: ApiClient) -> None:
        self.bells: list[Key] = []
        self.gone: list[Object] = []

        def key(o: Object) -> Key:
            return Key("default", o["metadata"]["name"])

        lens = WatchSpec[Object]("Pod", "", key, lambda o: o["spec"], on_delete=self.gone.append)
        self.informer = Informer(client, lens, self.bells.append)

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.informer.known_keys()}


@pytest_asyncio.fixture
async def watched(api: Scripted, client: ApiClient) -> AsyncIterator[Watched]:
    api.listed, api.version = [an_object("a", 3), an_object("b", 4)], 5
    watched = Watched(client)
    task = asyncio.create_task(watched.informer.run())
    await wait_until_async("the watch is open", lambda: api.watches == 1)
    assert watched.names == {"a", "b"}
    watched.bells.clear()
    yield watched
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_watch_events_change_the_store_and_ring(api: Scripted, watched: Watched) -> None:
    api.send("ADDED", an_object("c", 6))
    api.send("MODIFIED", an_object("a", 7, changed=True))
    api.send("DELETED", an_object("b", 8))
    await wait_until_async("both events are in the cache", lambda: watched.names == {"a", "c"})
    assert watched.bells == [Key("default", "c"), A, B]
    assert watched.informer.values_of(A) == ({"changed": True},)


async def test_what_a_deleted_object_was_in_the_end_is_reported(api: Scripted, watched: Watched) -> None:
    """Also of one that we have deleted ourselves, and forgotten."""
    watched.informer.remove_object(an_object("a", 3)["metadata"]["uid"])
    watched.bells.clear()
    api.send("DELETED", an_object("a", 6, ended=1))
    api.send("DELETED", an_object("b", 7, ended=2))
    await wait_until_async("both deletions are reported", lambda: len(watched.gone) == 2)
    assert watched.gone == [{"ended": 1}, {"ended": 2}]
    assert watched.bells == [A, B]
    assert watched.names == set()


async def test_a_change_of_nothing_that_is_cached_calls_nobody(api: Scripted, watched: Watched) -> None:
    api.send("MODIFIED", an_object("a", 6))
    api.send("ADDED", an_object("c", 7))
    await wait_until_async("c is in the cache", lambda: "c" in watched.names)
    assert A not in watched.bells


@pytest.mark.parametrize("code", [410, 500, 504])
async def test_any_error_in_the_stream_leads_to_a_list_that_finds_missed_deletions(
    code: int, api: Scripted, watched: Watched
) -> None:
    api.listed, api.version = [an_object("b", 4), an_object("c", 20)], 21
    api.send("ERROR", {"kind": "Status", "code": code, "message": "too old resource version"})
    await wait_until_async("a second watch is open", lambda: api.watches == 2)
    assert watched.names == {"b", "c"}
    assert set(watched.bells) == {A, Key("default", "c")}


async def test_an_answer_of_410_leads_to_a_new_list(api: Scripted, watched: Watched) -> None:
    api.listed, api.version = [an_object("b", 4)], 30
    api.answers.append((410, {"message": "too old"}))
    api.hang_up()
    await wait_until_async("a second watch is open", lambda: api.watches == 2)
    assert watched.names == {"b"}


async def test_an_object_that_changes_hands_leaves_who_had_it(client: ApiClient) -> None:
    lens = WatchSpec[Object]("Pod", "", lambda o: Key("default", o["spec"]["of"]), lambda o: o["spec"])
    informer = Informer(client, lens, lambda _: None)
    informer.upsert(an_object("pod", 1, of="a"))
    informer.upsert(an_object("pod", 2, of="b"))
    assert informer.known_keys() == (B,)
    informer.remove_object("uid-pod")
    assert not informer.knows_any()


async def test_a_broken_stream_is_taken_up_again_without_a_list(api: Scripted, watched: Watched) -> None:
    api.send("ADDED", an_object("c", 6))
    api.hang_up()
    await wait_until_async("a second watch is open", lambda: api.watches == 2)
    api.send("ADDED", an_object("d", 7))
    await wait_until_async("d is in the cache", lambda: "d" in watched.names)
    assert watched.informer.lists == 1


async def test_server_errors_are_survived(api: Scripted, watched: Watched) -> None:
    api.answers += [(503, {"message": "overloaded"})] * 3
    api.hang_up()
    await wait_until_async("a second watch is open", lambda: api.watches == 2)
    assert watched.names == {"a", "b"}


async def test_what_we_wrote_is_known_at_once_and_an_older_echo_does_not_win(
    api: Scripted, watched: Watched
) -> None:
    watched.informer.upsert(an_object("c", 10, ours=True))
    assert watched.informer.values_of(Key("default", "c")) == ({"ours": True},)
    api.send("MODIFIED", an_object("c", 9, ours=False))
    api.send("ADDED", an_object("d", 11))
    await wait_until_async("d is in the cache", lambda: "d" in watched.names)
    assert watched.informer.values_of(Key("default", "c")) == ({"ours": True},)


async def test_a_late_answer_does_not_bring_back_what_was_deleted(api: Scripted, watched: Watched) -> None:
    api.send("ADDED", an_object("c", 6))
    api.send("DELETED", an_object("c", 7))
    api.send("ADDED", an_object("d", 8))
    await wait_until_async("d is in the cache", lambda: "d" in watched.names)
    watched.informer.upsert(an_object("c", 6))
    assert "c" not in watched.names


async def test_a_list_that_is_older_than_our_write_does_not_undo_it(api: Scripted, watched: Watched) -> None:
    watched.informer.upsert(an_object("c", 100))
    api.version = 50
    api.send("ERROR", {"kind": "Status", "code": 410})
    await wait_until_async("a second watch is open", lambda: api.watches == 2)
    assert watched.names == {"a", "b", "c"}
