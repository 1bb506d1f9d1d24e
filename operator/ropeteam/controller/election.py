"""Leader election, one operator acts at a time: a Lease of coordination.k8s.io/v1, kept as client-go
keeps it.

A candidate takes the lease when its record has not changed for `lease_duration` seconds of the candidate's
own clock; whether it may is never decided by comparing clocks of two machines. The leader renews every
`retry_period` seconds, and may write for `renew_deadline` seconds after it *began* its last successful
renewal: that deadline passes before another operator can take the lease, also for a process that was frozen
meanwhile and did not notice. `ApiClient` calls `may_write` before every write.
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
_NEVER = float("-inf")
_TYPE_META = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}


class LeadershipLost(CannotRun):
    """Another operator may act now; this process must not."""


@dataclass(frozen=True)
class Timing:
    """Seconds, with client-go's names and in the proportions of Kubernetes' own components: 15, 10 and 2."""

    lease_duration: int = 15
    """For how long a lease is valid without a renewal."""

    @property
    def renew_deadline(self) -> float:
        """For how long the leader may write after the begin of its last successful renewal."""
        return self.lease_duration * 2 / 3

    @property
    def retry_period(self) -> float:
        """Pause of the leader between two renewals, also after one that failed."""
        return self.lease_duration * 2 / 15

    @property
    def poll_period(self) -> float:
        """Pause of a standby operator between two reads, short so that a released lease is taken at once."""
        return self.lease_duration / 30


@dataclass(frozen=True)
class ObservedLease:
    """The lease's record (its `spec`) as last read, and since when it has been unchanged."""

    record: Object
    """Empty: there is no such Lease."""
    since: float
    """By the candidate's own clock."""


def may_take(lease: ObservedLease, me: str, now: float) -> bool:
    """Whether the lease has no holder, is ours, or was not renewed for its `leaseDurationSeconds`. `now`: by
    the clock of `lease.since`."""
    holder = lease.record.get("holderIdentity") or ""
    return holder in ("", me) or now - lease.since >= float(lease.record.get("leaseDurationSeconds") or 0)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Elector:
    """A candidate: first `acquire`, then `renew` beside all other work, at the end `release`.

    `ref`: the Lease. `me`: the holder's name, unique to this process. `client`: a client without `may_write`,
    since a standby operator has to write the lease. `clock`: seconds, for deadlines. `wall`: for the times in
    the record.
    """

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
        """The Lease as last read or written, with the resourceVersion that the next write needs."""
        self._deadline = _NEVER
        """Time by `clock` until which this process may write."""
        self._predecessor_ahead_seconds = 0.0

    def predecessor_ahead_seconds(self) -> float:
        """Seconds by which the wall clock of the holder before us was ahead of ours: measured while on
        standby, with an error of up to the poll period. 0.0: not measured."""
        return self._predecessor_ahead_seconds

    def may_write(self) -> bool:
        """Whether this process leads, and no other operator can have taken the lease yet."""
        return self._clock() < self._deadline

    async def acquire(self) -> None:
        """Wait until this process leads. Errors of the API server are logged, and it is tried again."""
        logged = ""
        while not await self._acquire_or_renew():
            holder = self._observed_holder()
            if holder != logged:
                log.info("standby: the leader is %s", holder or "unknown")
                logged = holder
            await self._pause(self._timing.poll_period)
        log.info("leading as %s", self.me)

    async def renew(self) -> None:
        """Renew until another operator holds the lease, or no renewal has succeeded before the deadline. Then
        `may_write` is false. Raises LeadershipLost; never returns.
        """
        while True:
            await self._pause(self._timing.retry_period)
            if not await self._acquire_or_renew() and self._observed_holder() != self.me:
                self._deadline = _NEVER
                holder = self._observed_holder() or "nobody"
                raise LeadershipLost(
                    f"{holder} leads now, as the leader election Lease {self._lease_name} shows; this "
                    "operator stops, and is on standby once it is restarted"
                )
            if not self.may_write():
                self._deadline = _NEVER
                seconds = self._timing.renew_deadline
                raise LeadershipLost(
                    f"the leader election Lease {self._lease_name} could not be renewed within "
                    f"{seconds:.0f} s (the log says why); this operator stops, so that another one can lead"
                )

    async def release(self) -> None:
        """Release the lease, so that another operator leads at once. Does nothing if we do not lead. An error
        is only logged: the lease then expires.
        """
        leads, self._deadline = self.may_write(), _NEVER
        if not leads:
            return
        try:  # as client-go releases: without a holder, and valid for one more second
            await self._write({**self._observed.record, "holderIdentity": "", "leaseDurationSeconds": 1})
        except (*_API_ERRORS, OwnedObjectExists) as error:
            log.warning(
                "the leader election Lease %s could not be released, so another operator takes over in %d s: "
                "%s: %s",
                self._lease_name,
                self._timing.lease_duration,
                type(error).__name__,
                error,
            )

    async def _acquire_or_renew(self) -> bool:
        """Try once to take or renew the lease. Returns whether we hold it; if so, the deadline is moved.

        The new deadline counts from before the first request. An attempt ends after half of `renew_deadline`,
        so that another one fits in. Observes the lease's record in any case, so that after False
        `_observed_holder` is the latest holder that could be read.
        """
        begin = self._clock()
        try:
            async with asyncio.timeout(self._timing.renew_deadline / 2):
                await self._read()
                if not may_take(self._observed, self.me, self._clock()):
                    return False
                await self._write(self._renewed_record())
        except (Conflict, OwnedObjectExists):
            return False  # another candidate wrote: the next attempt reads its name
        except _API_ERRORS as error:
            log.warning(
                "the leader election Lease %s could not be read or written, trying again: %s: %s",
                self._lease_name,
                type(error).__name__,
                error,
            )
            return False
        self._deadline = begin + self._timing.renew_deadline
        return True

    @property
    def _lease_name(self) -> str:
        return f"{self._ref.namespace}/{self._ref.name}"

    def _observed_holder(self) -> str:
        """The holder in the record that was last read or written; "": none."""
        return str(self._observed.record.get("holderIdentity") or "")

    async def _read(self) -> None:
        """Read the Lease. One that does not exist is an empty one. Raises ApiError, connection errors."""
        try:
            self._lease = await self._client.get(self._ref)
        except NotFound:
            self._lease = {}
        self._update_observed()

    def _update_observed(self) -> None:
        """Take the record of `_lease` over, and the time, if the record differs from the observed one."""
        record = dict(self._lease.get("spec") or {})
        if record != self._observed.record:
            self._measure_holders_clock(record)
            self._observed = ObservedLease(record, self._clock())

    def _measure_holders_clock(self, record: Object) -> None:
        """Compare the wall clock of another holder with ours. `record`: just read, with a renewal that is new
        to us, and so is not older than our last poll. Not the first record of a holder: its age is unknown.
        Nor one without `renewTime`, which the API allows.
        """
        holder, renewed = record.get("holderIdentity"), record.get("renewTime")
        if renewed and holder == self._observed_holder() and holder not in ("", self.me):
            ahead = datetime.fromisoformat(renewed) - self._wall()
            self._predecessor_ahead_seconds = ahead.total_seconds()

    def _renewed_record(self) -> Object:
        """The record to write, as client-go writes it: with us as the holder, and renewed now."""
        old = self._observed.record
        now = self._wall().isoformat(timespec="microseconds").replace("+00:00", "Z")
        is_ours = old.get("holderIdentity") == self.me
        return {
            "holderIdentity": self.me,
            "leaseDurationSeconds": self._timing.lease_duration,
            "acquireTime": old.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (not is_ours),
        }

    async def _write(self, record: Object) -> None:
        """Write the record: replace the Lease as it was read, or create it. Raises Conflict or
        OwnedObjectExists (another candidate wrote since), ApiError, connection errors.
        """
        if self._lease:
            self._lease = await self._client.replace({**self._lease, **_TYPE_META, "spec": record})
        else:
            metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
            self._lease = await self._client.create({**_TYPE_META, "metadata": metadata, "spec": record})
        self._update_observed()

    async def _pause(self, seconds: float) -> None:
        """Sleep, with jitter: candidates that were started together do not write together."""
        await asyncio.sleep(seconds * self._client.chance.uniform(1.0, 1.2))
