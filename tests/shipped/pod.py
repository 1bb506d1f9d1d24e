"""A worker pod around the shipped agent: what agent/pod.py calls a Pod, with simulated ranks and stores.

Ranks are those of tests/sim/ranks.py: they compute in lockstep, save, restore, pause and die as the trainer
library does. They live as long as their agent, also while the agent's process is stopped.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tests.shipped.loop import Process
from tests.sim.ranks import Rank

from ropeteam_trainer.agent.machine.events import (
    Event,
    HeartbeatsRead,
    RankDying,
    RankExited,
    RankMessage,
    RanksStarted,
    StackShown,
    StoreDown,
    StoreUp,
)
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.messages import Hang, StoreOffer
from ropeteam_trainer.contract.world import Plan, ProcessExit, WorldId
from ropeteam_trainer.data.decisions.plan import Position

if TYPE_CHECKING:
    from tests.shipped.nodes import Pod
    from tests.shipped.site import Site


class SimPod:
    """`post`: the agent's. Also the parent of its ranks, and its stores."""

    def __init__(
        self,
        site: Site,
        process: Process,
        pod: Pod,
        settings: tuple[WorkerConfig, PodIdentity],
        post: Callable[[Event], None],
    ) -> None:
        self._site, self.process, self.pod, self._post = site, process, pod, post
        self.config, self.identity = settings
        self.site = pod.uid
        self.memory = None
        self.disk = cast(concurrent.futures.Executor, self)
        self.alive: dict[int, Rank] = {}
        self.every_rank: list[Rank] = []
        self.open: dict[WorldId, int] = {}
        self.stopped = False
        """The whole container is (a paused machine), ranks too."""
        self._number = 30000
        process.at_end.append(self._agent_died)
        site.pods[pod.uid] = self

    @property
    def frozen(self) -> bool:
        return self.stopped

    # ---- agent/pod.py: Pod

    @property
    def ranks(self) -> SimPod:
        return self

    @property
    def stores(self) -> Stores:
        return Stores(self)

    def begin(self, may_fork: bool) -> None:
        """Nothing to prepare."""

    async def watch(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def warm_up(self) -> None:
        """Always warm."""

    def end(self) -> None:
        """Ranks die with the agent: see _agent_died."""

    # ---- agent/pod.py: RankProcesses

    async def start(self, plan: Plan, ranks: Sequence[int], fork: bool) -> None:
        random = self._site.random
        await asyncio.sleep(0.05 if fork else 0.3 + random.random())
        self.alive, self.restore = {}, plan.restore
        for number in ranks:
            self.alive[number] = rank = SiteRank(cast(Any, self._site), cast(Any, self), plan, number)
            self._site.loop.after(0.1 + 0.5 * random.random(), rank.when_awake, rank.boot)
        self.every_rank = [*(rank for rank in self.every_rank if rank.alive), *self.alive.values()]
        self._site.checks.ranks_live(cast(Any, self))
        self._post(RanksStarted(plan.world_id))

    def kill(self, world_id: WorldId, ranks: Iterable[int]) -> None:
        for number in ranks:
            self._site.loop.after(0.01 + 0.2 * self._site.random.random(), self._signal, world_id, number, 9)

    def terminate(self, world_id: WorldId, ranks: Iterable[int]) -> None:
        for number in ranks:
            self._signal(world_id, number, 15)

    def show_stacks(self, world_id: WorldId, ranks: Iterable[int]) -> None:
        for number in ranks:
            self._post(StackShown(world_id, number, Hang()))

    def send(self, world_id: WorldId, number: int, message: ToRank) -> None:
        rank = self.alive.get(number)
        if rank and rank.plan.world_id == world_id:
            self._site.loop.after(0.001, rank.receive, message)

    def read_heartbeats(self) -> HeartbeatsRead | None:
        heartbeats = {
            number: heartbeat
            for number, rank in self.alive.items()
            if rank.alive and (heartbeat := rank.send_heartbeat())
        }
        world_id = next((rank.plan.world_id for rank in self.alive.values()), None)
        return HeartbeatsRead(world_id, heartbeats) if world_id and heartbeats else None

    @property
    def pod_slot(self) -> int:
        return self.identity.slot

    def _signal(self, world_id: WorldId, number: int, signal: int) -> None:
        rank = self.alive.get(number)
        if rank is not None and rank.plan.world_id == world_id and self.process.alive:
            rank.signalled(signal)

    # ---- the parent of ranks (tests/sim/ranks.py)

    def on_message(self, rank: Rank, text: FromRank) -> None:
        self.process.call(self._post, RankMessage(rank.plan.world_id, rank.number, text))

    def reaped(self, rank: Rank, exit: ProcessExit) -> None:
        world_id, heartbeat, random = rank.plan.world_id, rank.send_heartbeat(), self._site.random
        if heartbeat:
            self.process.call(self._post, HeartbeatsRead(world_id, {rank.number: heartbeat}))
        if exit.signal is not None and not rank.finished and random.random() < 0.7:
            self.process.call(self._post, RankDying(world_id, rank.number, exit))
        event = RankExited(world_id, rank.number, replace(exit, reached_end=rank.finished))
        self._site.loop.after(0.01 + 0.1 * random.random(), self.process.call, self._post, event)

    def _agent_died(self, silent: bool) -> None:
        """PR_SET_PDEATHSIG; a machine without power says nothing."""
        self.open.clear()
        for rank in list(self.alive.values()):
            rank.silent = silent
            rank.die(ProcessExit(None, 9))

    # ---- keeper

    def opened(self, world_id: WorldId) -> None:
        if not self.process.alive:
            return
        chance = self._site.random.random()
        if chance < 0.03:
            self._post(StoreDown(world_id))
            return
        if chance < 0.06 and not self.config.servers:  # theirs would end slot 0 alone
            self._site.loop.after(100 * (chance - 0.03), self.process.call, self._store_dies, world_id)
        self._number += 1
        self.open[world_id] = self._number
        self._post(StoreUp(StoreOffer(world_id, self.identity.pod_ip, self._number)))

    def _store_dies(self, world_id: WorldId) -> None:
        """Maybe before its plan comes, maybe while ranks wait in it, maybe after."""
        if world_id in self.open:
            del self.open[world_id]
            self._post(StoreDown(world_id))


class SiteRank(Rank):
    """The volume can break: that is an exception in the script, as with the real writer."""

    def save(self, then: Callable[[], None] = lambda: None, whole: bool = False) -> None:
        step, position = self.step, self.gang.position if self.gang else Position()
        disk = self._world.disk

        def written() -> None:
            self.writing = False
            try:
                cast(Any, disk).check(cast(SimPod, self.parent).process.node)
                files = disk.write_shard(step, self.plan.world_id, self.number, position, whole)
            except OSError as error:
                self.raises("OSError writer.py", f"OSError: {error}")
                return
            self.send(FromRank(shard_step=step, shard_files=files, shard_whole=whole))
            then()

        self.writing = True
        self._world.clock.after(disk.write_seconds(), self.when_awake, written)


class Stores:
    def __init__(self, pod: SimPod) -> None:
        self._pod = pod

    def host(self, world_id: WorldId) -> None:
        loop = self._pod.process.loop
        loop.after(0.05 + 0.2 * loop.random.random(), self._pod.process.call, self._pod.opened, world_id)

    def close(self, world_id: WorldId) -> None:
        self._pod.open.pop(world_id, None)
