"""Leader election, one operator acts at a time: a Lease of coordination.k8s.io/v1, kept as client-go
keeps it.

A candidate takes the lease when its record has not changed for `duration` seconds of the candidate's own
clock; clocks of two machines are never compared. The leader renews every `retry` seconds, and may write for
`renew` seconds after it *began* its last successful renewal: that deadline passes before another operator can
take the lease, also for a process that was frozen meanwhile and did not notice. `ApiClient` calls `may_write`
before every write.
Limits: a request that has been sent cannot be cancelled; preconditions (UID, resourceVersion) stop it at the
server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from ropeteam.controller.client.apiclient import (
    ApiClient,
    ApiError,
    Conflict,
    NotFound,
    Object,
    ObjectRef,
    OwnedObjectExists,
)
from ropeteam.errors import CannotRun
from ropeteam_trainer.system.clocks import boot_seconds

log = logging.getLogger(__name__)

_API_ERRORS = (ApiError, aiohttp.ClientError, OSError, TimeoutError)


class LeadershipLost(CannotRun):
    """Another operator may act now; this process must not."""


@dataclass(frozen=True)
class Timing:
    """Seconds, in the proportions of Kubernetes' own components: 15, 10 and 2."""

    duration: int = 15

    @property
    def renew(self) -> float:
        return self.duration * 2 / 3

    @property
    def retry(self) -> float:
        return self.duration * 2 / 15

    @property
    def poll(self) -> float:
        """Poll interval of standby operators, short so that a released lease is taken at once."""
        return self.duration / 30


@dataclass(frozen=True)
class ObservedLease:
    """The lease's record as last read, and since when it has been unchanged."""

    record: Object
    since: float


def may_take(lease: ObservedLease, me: str, now: float) -> bool:
    """Whether the lease has no holder, is ours, or was not renewed for its `leaseDurationSeconds`."""
    holder = lease.record.get("holderIdentity") or ""
    return holder in ("", me) or now - lease.since >= float(lease.record.get("leaseDurationSeconds") or 0)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Elector:
    """A candidate. `ref`: the Lease; `me`: unique to this process. `client` has no other user."""

    def __init__(
        self,
        client: ApiClient,
        ref: ObjectRef,
        me: str,
        timing: Timing = Timing(),
        clock: Callable[[], float] = boot_seconds,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._client, self._ref, self.me, self._timing = client, ref, me, timing
        self._clock, self._wall = clock, wall
        self._observed = ObservedLease({}, clock())
        self._lease: Object = {}
        self._deadline = float("-inf")
        self._ahead = 0.0

    def ahead(self) -> float:
        """Seconds by which the wall clock of the holder before us was ahead of ours: measured while on
        standby, with an error of up to the poll interval. 0.0: not measured."""
        return self._ahead

    def may_write(self) -> bool:
        return self._clock() < self._deadline

    async def acquire(self) -> None:
        """Wait until this process leads."""
        logged = ""
        while not await self._acquire_or_renew():
            holder = str(self._observed.record.get("holderIdentity") or "")
            if holder != logged:
                log.info("standby: the leader is %s", holder or "unknown")
                logged = holder
            await self._pause(self._timing.poll)
        log.info("leading as %s", self.me)

    async def renew(self) -> None:
        """Renew until that fails for too long. Raises LeadershipLost; never returns."""
        while True:
            await self._pause(self._timing.retry)
            renewed = await self._acquire_or_renew()
            taken = not renewed and self._observed.record.get("holderIdentity") != self.me
            if taken or not self.may_write():
                self._deadline = float("-inf")
                by = self._observed.record.get("holderIdentity") if taken else ""
                raise LeadershipLost(f"{by} leads now" if by else "the lease could not be renewed in time")

    async def release(self) -> None:
        """Release the lease, so that another operator leads at once. Does nothing if we do not lead."""
        leads, self._deadline = self.may_write(), float("-inf")
        if not leads:
            return
        try:
            await self._put({**self._observed.record, "holderIdentity": "", "leaseDurationSeconds": 1})
        except (*_API_ERRORS, OwnedObjectExists) as error:
            log.warning("the lease could not be released: %s", error)

    async def _acquire_or_renew(self) -> bool:
        """One attempt to take or renew the lease. The deadline counts from its start."""
        begin = self._clock()
        try:
            async with asyncio.timeout(self._timing.renew / 2):
                await self._read()
                if not may_take(self._observed, self.me, self._clock()):
                    return False
                await self._put(self._record())
        except (Conflict, OwnedObjectExists):
            return False  # another candidate wrote: the next attempt reads its name
        except _API_ERRORS as error:
            log.warning("the lease could not be read or written: %s: %s", type(error).__name__, error)
            return False
        self._deadline = begin + self._timing.renew
        return True

    async def _read(self) -> None:
        try:
            self._lease = await self._client.get(self._ref)
        except NotFound:
            self._lease = {}
        self._observe()

    def _observe(self) -> None:
        record = dict(self._lease.get("spec") or {})
        if record != self._observed.record:
            self._compare_clocks(record)
            self._observed = ObservedLease(record, self._clock())

    def _compare_clocks(self, record: Object) -> None:
        """Measure the other holder's clock: a renewal that is new to us is not older than our last poll."""
        holder, before = record.get("holderIdentity"), self._observed.record.get("holderIdentity")
        if holder == before and holder not in ("", None, self.me):
            self._ahead = (datetime.fromisoformat(record["renewTime"]) - self._wall()).total_seconds()

    def _record(self) -> Object:
        old = self._observed.record
        now = self._wall().isoformat(timespec="microseconds").replace("+00:00", "Z")
        is_ours = old.get("holderIdentity") == self.me
        return {
            "holderIdentity": self.me,
            "leaseDurationSeconds": self._timing.duration,
            "acquireTime": old.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (not is_ours),
        }

    async def _put(self, record: Object) -> None:
        if self._lease:
            self._lease = await self._client.replace({**self._lease, **_kind(), "spec": record})
        else:
            metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
            self._lease = await self._client.create({**_kind(), "metadata": metadata, "spec": record})
        self._observe()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._client.chance.uniform(1.0, 1.2))


def _kind() -> Object:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
