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
from lab.waiting import wait_until_async
from tests.controller.house import job

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


class Unhurried(Timing):
    """A lease that is looked at as often as a short one."""

    @property
    def retry_period(self) -> float:
        return 0.2

    @property
    def poll_period(self) -> float:
        return 0.03


LONG = Unhurried(600)
"""No stall of the machine ends such a lease, only a test's clock."""
SHORT = Timing(1)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "home") as running:
        yield running


@asynccontextmanager
async def candidate(
    cluster: LocalCluster,
    name: str,
    clock: Clock,
    wall: Callable[[], datetime] = utc_now,
    timing: Timing = LONG,
) -> AsyncIterator[Elector]:
    async with ApiClient(partial(access.load, cluster.kubeconfig)) as client:
        yield Elector(client, LEASE, name, timing, clock, wall)


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
def test_a_lease_is_taken_when_its_holder_was_silent_for_as_long_as_it_declared(record, waited, may):
    assert may_take(ObservedLease(record, 100.0), "me", 100.0 + waited) is may


def is_renewed(leader: Elector, other: Elector, since: float) -> bool:
    """The leader has begun to renew its lease after `since`, and the other has seen it renewed."""
    return leader._deadline >= since + LONG.renew_deadline and other._observed.since >= since


async def test_one_leads_and_the_other_waits_until_it_is_given_back(cluster):
    clock = Clock()
    async with candidate(cluster, "a", clock) as a, candidate(cluster, "b", clock) as b:
        await a.acquire()
        keeping = asyncio.create_task(a.renew())
        waiting = asyncio.create_task(b.acquire())
        for _ in range(3):  # longer than a lease lasts
            clock.ahead += LONG.lease_duration / 2
            await wait_until_async(
                "the standby has seen the renewed Lease", partial(is_renewed, a, b, clock())
            )
        assert (a.may_write(), b.may_write(), waiting.done()) == (True, False, False)
        # and nothing that it wrote is on its way
        await wait_until_async("the leader has renewed its own Lease", partial(is_renewed, a, a, clock()))
        keeping.cancel()
        await a.release()
        assert not a.may_write()
        await waiting
        assert b.may_write()
        assert await holder(cluster) == "b"


async def test_a_standby_sees_how_far_the_clock_of_the_leader_is_ahead(cluster):
    clock = Clock()

    def an_hour_ahead() -> datetime:
        return utc_now() + timedelta(hours=1)

    async with candidate(cluster, "a", clock, an_hour_ahead) as a, candidate(cluster, "b", clock) as b:
        await a.acquire()
        keeping = asyncio.create_task(a.renew())
        waiting = asyncio.create_task(b.acquire())
        await wait_until_async(
            "the difference of the clocks is known", lambda: b.predecessor_ahead_seconds() != 0.0
        )
        keeping.cancel()
        while not waiting.done():  # what the leader wrote last may still be on its way
            clock.ahead += LONG.lease_duration
            await asyncio.sleep(0.05)
        await waiting
        assert (round(b.predecessor_ahead_seconds() / 3600), a.predecessor_ahead_seconds()) == (1, 0.0)


async def test_a_holder_that_writes_no_renew_time_does_not_end_a_standby(cluster):
    """renewTime is optional in the API."""
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE.name, "namespace": LEASE.namespace},
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 600},
    }
    async with candidate(cluster, "b", Clock()) as b:
        await b._client.create(lease)
        waiting = asyncio.create_task(b.acquire())
        await wait_until_async("the standby knows the holder", lambda: b._observed_holder() == "other")
        await b._client.merge(LEASE, {"spec": {"leaseTransitions": 1}})
        await wait_until_async(
            "the standby has read the change",
            lambda: waiting.done() or b._observed.record.get("leaseTransitions") == 1,
        )
        assert not waiting.done()
        waiting.cancel()


async def test_a_leader_that_dies_is_followed(cluster):
    some = partial(candidate, cluster, clock=Clock(), timing=SHORT)
    async with some("a") as a, some("b") as b:
        await a.acquire()
        await b.acquire()
        assert await holder(cluster) == "b"


async def test_a_leader_that_was_frozen_may_not_write_before_it_knows(cluster):
    mine, theirs = Clock(), Clock()
    async with candidate(cluster, "a", mine) as a, candidate(cluster, "b", theirs) as b:
        await a.acquire()
        winning = asyncio.create_task(b.acquire())
        await wait_until_async("the Lease is read", lambda: b._observed.record)
        theirs.ahead = LONG.lease_duration
        await winning  # a renews nothing, as if stopped
        mine.ahead = LONG.renew_deadline
        assert not a.may_write()
        load = partial(access.load, cluster.kubeconfig)
        async with (
            ApiClient(load, a.may_write) as client,
            Coordinators(may_write=a.may_write) as coordinators,
        ):
            with pytest.raises(Fenced, match="no longer the leader"):
                await client.create(job())
            voice = SignedAuth(Keys(b"token", "uid", 1))
            with pytest.raises(Fenced, match="no longer the leader"):
                await coordinators.send_desired("127.0.0.1", voice, Desired(1, 1, 1, {}))
            assert await client.items(ObjectRef("TrainingJob", "default")) == []
        with pytest.raises(LeadershipLost, match="b leads now"):
            await a.renew()
        await a.release()
        assert await holder(cluster) == "b"


async def test_a_leader_without_an_api_server_stops_before_the_lease_ends(tmp_path):
    async with (
        LocalCluster(tmp_path / "home") as cluster,
        candidate(cluster, "a", Clock(), timing=SHORT) as a,
    ):
        await a.acquire()
        await cluster.__aexit__(None, None, None)
        with pytest.raises(LeadershipLost, match="could not be renewed"):
            await a.renew()
        assert not a.may_write()


async def test_two_that_start_at_once_do_not_both_lead(cluster):
    clock = Clock()
    async with candidate(cluster, "a", clock) as a, candidate(cluster, "b", clock) as b:
        first = [asyncio.create_task(each.acquire()) for each in (a, b)]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        assert a.may_write() is not b.may_write()
        for task in first:
            task.cancel()
