"""One operator acts at a time, on a real API (the local cluster's) and a clock that tests may move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from tests.controller.house import job
from tests.controller.waiting import until

from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient, Fenced, ObjectRef
from ropeteam.controller.client.coordinator import Coordinators, SignedAuth
from ropeteam.controller.election import Elector, LeadershipLost, ObservedLease, Timing, may_take, utc_now
from ropeteam.local.cluster import LocalCluster
from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.contract.signing import Keys

LEASE = ObjectRef("Lease", "default", "ropeteam")


class Clock:
    """The real one, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "home") as running:
        yield running


@asynccontextmanager
async def candidate(
    cluster: LocalCluster, name: str, clock: Clock, wall: Callable[[], datetime] = utc_now
) -> AsyncIterator[Elector]:
    async with ApiClient(partial(access.load, cluster.kubeconfig)) as client:
        yield Elector(client, LEASE, name, Timing(1), clock, wall)


async def holder(cluster: LocalCluster) -> str:
    async with ApiClient(partial(access.load, cluster.kubeconfig)) as client:
        return str((await client.get(LEASE))["spec"]["holderIdentity"])


@pytest.mark.parametrize(
    ("record", "waited", "may"),
    [
        ({}, 0, True),
        ({"holderIdentity": "", "leaseDurationSeconds": 1}, 0, True),
        ({"holderIdentity": "me", "leaseDurationSeconds": 15}, 0, True),
        ({"holderIdentity": "other", "leaseDurationSeconds": 15}, 14.9, False),
        ({"holderIdentity": "other", "leaseDurationSeconds": 15}, 15, True),
        ({"holderIdentity": "other"}, 0, True),
    ],
)
def test_a_lease_is_taken_when_its_holder_was_silent_for_as_long_as_it_said(record, waited, may):
    assert may_take(ObservedLease(record, 100.0), "me", 100.0 + waited) is may


async def test_one_leads_and_the_other_waits_until_it_is_given_back(cluster):
    clock = Clock()
    async with candidate(cluster, "a", clock) as a, candidate(cluster, "b", clock) as b:
        await a.win()
        keeping = asyncio.create_task(a.keep())
        waiting = asyncio.create_task(b.win())
        await asyncio.sleep(1.5)
        assert (a.may_write(), b.may_write(), waiting.done()) == (True, False, False)
        keeping.cancel()
        await a.release()
        assert not a.may_write()
        await waiting
        assert b.may_write()
        assert await holder(cluster) == "b"


async def test_who_stands_by_sees_how_far_the_clock_of_the_leader_is_ahead(cluster):
    clock = Clock()

    def an_hour_ahead() -> datetime:
        return utc_now() + timedelta(hours=1)

    async with candidate(cluster, "a", clock, an_hour_ahead) as a, candidate(cluster, "b", clock) as b:
        await a.win()
        keeping = asyncio.create_task(a.keep())
        waiting = asyncio.create_task(b.win())
        await until(lambda: b.ahead() != 0.0)
        keeping.cancel()
        await waiting
        assert (round(b.ahead() / 3600), a.ahead()) == (1, 0.0)


async def test_a_leader_that_dies_is_followed(cluster):
    clock = Clock()
    async with candidate(cluster, "a", clock) as a, candidate(cluster, "b", clock) as b:
        await a.win()
        await b.win()
        assert await holder(cluster) == "b"


async def test_a_leader_that_was_frozen_may_not_write_before_it_knows(cluster):
    mine, theirs = Clock(), Clock()
    async with candidate(cluster, "a", mine) as a, candidate(cluster, "b", theirs) as b:
        await a.win()
        await b.win()  # a renews nothing, as if stopped
        mine.ahead = 1.0
        assert not a.may_write()
        load = partial(access.load, cluster.kubeconfig)
        async with ApiClient(load, a.may_write) as client, Coordinators(may_write=a.may_write) as told:
            with pytest.raises(Fenced, match="does not lead"):
                await client.create(job())
            voice = SignedAuth(Keys(b"token", "uid", 1))
            with pytest.raises(Fenced, match="does not lead"):
                await told.tell("127.0.0.1", voice, Desired(1, 1, 1, {}))
            assert await client.items(ObjectRef("TrainingJob", "default")) == []
        with pytest.raises(LeadershipLost, match="b leads now"):
            await a.keep()
        await a.release()
        assert await holder(cluster) == "b"


async def test_a_leader_without_an_api_server_stops_before_the_lease_ends(tmp_path):
    clock = Clock()
    async with LocalCluster(tmp_path / "home") as cluster, candidate(cluster, "a", clock) as a:
        await a.win()
        await cluster.__aexit__(None, None, None)
        with pytest.raises(LeadershipLost, match="could not be renewed"):
            await a.keep()
        assert not a.may_write()


async def test_two_that_start_together_do_not_both_lead(cluster):
    clock = Clock()
    async with candidate(cluster, "a", clock) as a, candidate(cluster, "b", clock) as b:
        first = [asyncio.create_task(each.win()) for each in (a, b)]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        assert a.may_write() is not b.may_write()
        for task in first:
            task.cancel()
