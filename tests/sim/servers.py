"""Ranks of a job with parameter servers: workers that step alone, and servers that remember their steps.

A step of a worker is acknowledged by all servers in one moment, and each has it in its pod's memory. There is
no collective: a worker without a server, or too far ahead of the slowest, waits. The first server chooses
the checkpoint that a line of worlds begins with, and saves. A server serves only ranks of its own line, and
of two pods in one slot the one that was started later. A worker that waits says so: it is not taken for hung.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.sim.ranks import Parent, Rank

from ropeteam_trainer.agent.machine.environment import rank_plan
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointNotFound, CheckpointUnavailable, choose
from ropeteam_trainer.contract.local import Beat, FromRank, ToRank
from ropeteam_trainer.contract.world import CheckpointRef, Plan, WorldId

if TYPE_CHECKING:
    from tests.sim.world import World

LOOK_SECONDS = 0.5


@dataclass
class Memory:
    """A server's folder in /dev/shm."""

    line: WorldId
    steps: dict[int, int]
    """Acknowledged, by worker rank."""
    sessions: dict[int, WorldId] = field(default_factory=dict)
    """The newest world that a worker rank came with."""
    left: set[int] = field(default_factory=set)
    """Workers whose script is over."""
    stopped: set[int] = field(default_factory=set)
    """Workers that wait where the drain stops them."""


@dataclass
class ServerConnection:
    """The truth about a line of worlds: what servers acknowledged while it lasted."""

    world_id: WorldId
    begun: bool = False
    restored: CheckpointRef | None = None
    steps: dict[int, int] = field(default_factory=dict)
    base: dict[int, int] = field(default_factory=dict)


class ServedRank(Rank):
    """Behaviour that workers and servers have in common."""

    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        super().__init__(world, parent, plan, number)
        self.line = world.line(plan)
        config = parent.config
        self._first_server = config.workers * config.processes
        self._server_pods = [m.pod_uid for m in plan.members if config.is_server(m.slot)]

    def boot(self) -> None:
        self.register()
        self.when_awake(self.begin)

    def begin(self) -> None:
        raise NotImplementedError

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._world.clock.after(seconds, self.when_awake, call)


class Worker(ServedRank):
    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        super().__init__(world, parent, plan, number)
        self.blocked = False

    def send_heartbeat(self) -> Beat | None:
        """While it waits for servers it sends heartbeats as long as it lives."""
        if self.blocked and not self.stuck:
            self.touch()
        heartbeat = super().send_heartbeat()
        if heartbeat is None or not self.blocked:
            return heartbeat
        return Beat(
            heartbeat.step,
            heartbeat.steps_here,
            heartbeat.monotonic_ns,
            "serve",
            heartbeat.samples,
            heartbeat.reached_end,
        )

    def begin(self) -> None:
        """Register with the servers; they return how far this rank had come."""
        memories = self._servers()
        if memories is None or any(self._refuses(memory) for memory in memories):
            self.later(LOOK_SECONDS, self.begin)
            return
        for memory in memories:
            memory.sessions[self.number] = self.plan.world_id
        self.go_on_from(min(memory.steps[self.number] for memory in memories))
        self._world.checks.lines.rejoined(self)
        self._next()

    def _refuses(self, memory: Memory) -> bool:
        newest = memory.sessions.get(self.number)
        return memory.line != self.plan.server_generation or (
            newest is not None and newest > self.plan.world_id
        )

    def _servers(self) -> list[Memory] | None:
        """Of all servers; None if one of them does not answer."""
        found = []
        for offset, uid in enumerate(self._server_pods):
            agent = self._world.agents[uid]
            server = agent.ranks.get(self._first_server + offset)
            reached = self._world.network.reaches(self.parent.site, agent.site)
            if not isinstance(server, Server) or not server.serves or not reached:
                return None
            assert agent.memory is not None
            found.append(agent.memory)
        return found

    def _next(self) -> None:
        script = self._world.script
        if self.step >= script.total_steps:
            self._leave()
            return
        self.later(script.step_seconds * (0.8 + 0.4 * self._world.random.random()), self._push)

    def _push(self) -> None:
        """The gradient is there: have it applied, by all servers."""
        memories, script = self._servers(), self._world.script
        if memories is None or any(map(self._refuses, memories)) or self._is_ahead(memories[0]):
            self._block(self._push)
            return
        if self.step + 1 == script.bug_at and self.number == self._first_server - 1:
            self.raises("ValueError train.py:31", "ValueError: bad sample (train.py:31)")
            return
        self.blocked = False
        self.step += 1
        for memory in memories:
            memory.steps[self.number] = max(memory.steps[self.number], self.step)
        self._world.checks.lines.acknowledged(self)
        self.touch()
        if self.step >= script.total_steps:
            self._leave()
        else:
            self.report()

    def _is_ahead(self, memory: Memory) -> bool:
        others = [step for rank, step in memory.steps.items() if rank not in memory.left]
        return self.step - min(others, default=self.step) > self._world.setup.seed % 4

    def _block(self, call: Callable[[], None]) -> None:
        self.blocked = True
        self.later(LOOK_SECONDS, call)

    def _leave(self) -> None:
        memories = self._servers()
        if memories is None or any(map(self._refuses, memories)):
            self._block(self._leave)
            return
        for memory in memories:
            memory.left.add(self.number)
        self.end()

    # ---- pauses

    def report(self) -> None:
        super().report()
        if not self.waiting:
            for memory in self._servers() or ():
                memory.stopped.discard(self.number)
            self._next()

    def _drain(self) -> None:
        self.waiting = self.drained = True
        self._stop()

    def _stop(self) -> None:
        memories = self._servers()
        if memories is None:
            self.later(LOOK_SECONDS, self._stop)
            return
        for memory in memories:
            memory.stopped.add(self.number)
        self.send(FromRank(drained=self.step))


class Server(ServedRank):
    work = "serve"

    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        super().__init__(world, parent, plan, number)
        self.ready = False
        self.saved = 0

    @property
    def serves(self) -> bool:
        return self.alive and self.ready and not self.stuck

    @property
    def leads(self) -> bool:
        return self.number == self._first_server

    @property
    def memory(self) -> Memory:
        memory = self.parent.memory
        assert memory is not None
        return memory

    def begin(self) -> None:
        """Continue from what is in memory, or with the line's first state."""
        if self.parent.memory is None and not self.line.begun:
            if not self.leads:
                self.later(LOOK_SECONDS, self.begin)
                return
            if not self._choose():
                return
        if self.parent.memory is None:
            self.parent.memory = Memory(self.plan.server_generation, dict(self.line.base))
        self._world.checks.lines.remembers(self)
        self.ready = True
        self.go_on_from(self._slowest())
        self.saved = self.step
        self._look()

    def _choose(self) -> bool:
        disk, workers = self._world.disk, range(self._first_server)
        try:
            wanted = replace(self.plan, restore=self.parent.restore)
            reported = rank_plan(self.parent.config, wanted, self.parent.identity)
            chosen = choose(reported, disk.found(), disk.look).manifest
        except CheckpointUnavailable:
            self.later(LOOK_SECONDS, self.begin)
            return False
        except CheckpointNotFound as error:
            self.raises("CheckpointNotFound", f"CheckpointNotFound: {error}")
            return False
        steps = dict.fromkeys(workers, 0)
        if chosen is not None:
            steps = dict(self._world.saved_steps[chosen.ref.step, chosen.ref.world_id])
            self.send(FromRank(restored=chosen.ref))
        self.line.begun, self.line.restored = True, chosen.ref if chosen else None
        self.line.base, self.line.steps = dict(steps), dict(steps)
        self._world.checks.lines.began(self)
        return True

    def _slowest(self) -> int:
        return min(self.memory.steps.values())

    def _look(self) -> None:
        """Live, serve, and save now and then."""
        script, memory = self._world.script, self.memory
        self.step = self._slowest()
        self.touch()
        if len(memory.left) == self._first_server:
            self.send(FromRank(left=True))
            self.end()
            return
        if self.leads and not self.writing and self.step >= self.saved + script.every_steps:
            self.save()
        if self.orders.stop_at is not None and not self.drained:
            self._stop_when_all_have(memory)
        self.later(LOOK_SECONDS, self._look)

    def _stop_when_all_have(self, memory: Memory) -> None:
        if self.writing or len(memory.stopped | memory.left) < self._first_server:
            return
        self.drained = True
        if self.leads and self.step > self.saved:
            self.save(lambda: self.send(FromRank(drained=self.step)))
        else:
            self.send(FromRank(drained=self.step))

    def save(self, then: Callable[[], None] = lambda: None, whole: bool = False) -> None:
        self.saved = self.step
        self._world.saved_steps[self.step, self.plan.world_id] = dict(self.memory.steps)
        super().save(then, whole)

    def receive(self, message: ToRank) -> None:
        """A pause does not keep it from serving."""
        paused = message.pause and not self.orders.pause
        self.take(message)
        if paused and self.ready:
            self.send(FromRank(paused=self.step))
