"""Coordinators that say that a world has formed: one server for all jobs.

KWOK's pods run nothing, so this listens on every Service address, as the coordinators would. It decodes
`Desired` and answers a JobReport as a coordinator does whose agents come as soon as their pods run: their
slots are registered, and with all of them the world runs. The address that
was called identifies the job.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from ropeteam_trainer.contract import codec, signing, wire
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotReport, WorldPhase
from ropeteam_trainer.contract.messages import Progress
from ropeteam_trainer.contract.world import WorldId

OPERATOR_KEY = b"benchmark" * 4
"""Of which the tokens come, that answers are signed with."""


@dataclass
class Worlds:
    """State of all jobs and pods, as the watch reports it, and requests to all coordinators."""

    uids: dict[str, str] = field(default_factory=dict)
    """Job by address."""
    running: set[str] = field(default_factory=set)
    """UIDs of pods that run."""
    progress: bool = False
    """Whether jobs make ten steps a second."""
    complete: set[str] = field(default_factory=set)
    """UIDs of jobs whose ranks are done."""
    calls: int = 0
    _gates: dict[tuple[str, int], signing.Server] = field(default_factory=dict)
    """By UID of the job, and term."""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.calls += 1
        desired = codec.decode(Desired, await request.read())
        assert request.transport is not None
        uid = await self._job(request.transport.get_extra_info("sockname")[0])
        gate, given = self._gate(uid, desired.term), request.headers.get(signing.HEADER, "")
        now = time.monotonic()
        admitted = gate.admit("PUT /desired", given, now)
        status, body = (200, codec.encode(self._report(uid, desired))) if admitted else (401, b"")
        headers = {signing.HEADER: gate.sign(given, status, body, now)}
        return web.Response(status=status, body=body, headers=headers, content_type="application/json")

    def _gate(self, uid: str, term: int) -> signing.Server:
        if (uid, term) not in self._gates:
            keys = signing.Keys(wire.job_token(OPERATOR_KEY, uid), uid, term)
            self._gates[uid, term] = signing.Server(keys, os.urandom, time.monotonic())
        return self._gates[uid, term]

    async def _job(self, address: str) -> str:
        """The watch that fills `uids` may be a moment behind the operator."""
        for _ in range(100):
            if address in self.uids:
                break
            await asyncio.sleep(0.02)
        return self.uids.get(address, "")

    def _report(self, uid: str, desired: Desired) -> JobReport:
        slots = {
            number: SlotReport(slot.incarnation, slot.pod_uid, registered=True)
            for number, slot in desired.slots.items()
            if slot.pod_uid in self.running
        }
        full = len(slots) == len(desired.slots)
        phase = WorldPhase.RUNNING if full else WorldPhase.FORMING
        world = WorldId(desired.term, 1, 1)
        return JobReport(
            job_uid=uid,
            term=desired.term,
            boot=0,
            phase=WorldPhase.COMPLETE if uid in self.complete else phase,
            why=f"world {world} runs with {len(slots)} ranks" if full else "waiting for the agents",
            world_id=world if full else None,
            world_size=len(slots) if full else 0,
            slots=slots,
            launcher="torchrun",
            progress=Progress(step=int(time.time() * 10)) if self.progress and full else Progress(),
            observed_generation=desired.generation,
        )


@asynccontextmanager
async def coordinators(addresses: list[str]) -> AsyncIterator[Worlds]:
    worlds = Worlds()
    server = web.Server(worlds.answer, access_log=None)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(server, addresses, COORDINATOR_HTTP_PORT, backlog=32)
    try:
        yield worlds
    finally:
        listening.close()
        await server.shutdown(1)
