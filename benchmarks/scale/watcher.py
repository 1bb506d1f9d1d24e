"""Jobs and pods that run as a user of the API server sees them, with the time at which they were seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lab.waiting import NotYet

from benchmarks.scale.worlds import Worlds
from ropeteam.controller.cache.informer import Informer, Key, WatchSpec
from ropeteam.controller.cache.parsing import own_key
from ropeteam.controller.client.apiclient import ApiClient

Object = dict[str, Any]


@dataclass
class Watched:
    """Times are time.monotonic()."""

    jobs: dict[str, float] = field(default_factory=dict)
    """Name -> when its state was Running first."""
    pods: dict[str, float] = field(default_factory=dict)
    """UID -> when its phase was Running first."""
    uids: dict[str, str] = field(default_factory=dict)
    """Name of a job -> its UID."""
    ended: set[str] = field(default_factory=set)
    """Jobs that are Complete."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def see_job(self, obj: Object, worlds: Worlds) -> str:
        meta, status = obj["metadata"], obj.get("status") or {}
        self.uids[meta["name"]] = meta["uid"]
        if address := (status.get("coordinator") or {}).get("address"):
            worlds.uids[address] = meta["uid"]
        if status.get("state") == "Running":
            self.jobs.setdefault(meta["name"], time.monotonic())
        if status.get("state") == "Complete":
            self.ended.add(meta["name"])
        self._changed.set()
        return str(status.get("state"))

    def see_pod(self, obj: Object, worlds: Worlds) -> str:
        phase = str((obj.get("status") or {}).get("phase"))
        if phase == "Running":
            self.pods.setdefault(obj["metadata"]["uid"], time.monotonic())
            worlds.running.add(obj["metadata"]["uid"])
            self._changed.set()
        return phase

    def all_run(self, jobs: int, pods: int) -> bool:
        return len(self.jobs) >= jobs and len(self.pods) >= pods

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = 1800) -> None:
        """NotYet after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            seen = f"{len(self.jobs)} jobs and {len(self.pods)} pods have run"
            raise NotYet(f"{what}: not within {seconds:.0f} s; {seen}") from None


@asynccontextmanager
async def watching(client: ApiClient, worlds: Worlds) -> AsyncIterator[Watched]:
    watched = Watched()

    def nobody(_: Key) -> None:
        return

    jobs = WatchSpec("TrainingJob", "", own_key, lambda obj: watched.see_job(obj, worlds))
    pods = WatchSpec("Pod", "", own_key, lambda obj: watched.see_pod(obj, worlds))
    parts: list[Informer[Any]] = [
        Informer(client, jobs, nobody),
        Informer(client, pods, nobody),
    ]
    tasks = [asyncio.create_task(part.run()) for part in parts]
    await asyncio.gather(*(part.synced.wait() for part in parts))
    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
