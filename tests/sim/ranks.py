"""The user's processes: ranks that compute in lockstep, as a synchronous all-reduce makes them.

A Gang is all ranks of one world. It makes a step only while every one of them lives, is not stuck, and
reaches the others. When one dies, the others fail with a reset connection, or hang in the all-reduce until
somebody kills them. A rank restores (rank 0 chooses), writes its shard, pauses, drains and ends as the
trainer library does. Scripts below feature level 2 keep their own checkpoint, one for all, without a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ropeteam_trainer.agent.machine.environment import rank_plan
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointNotFound, CheckpointUnavailable, choose
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.local import Beat, FromRank, ToRank
from ropeteam_trainer.contract.world import CheckpointRef, Plan, ProcessExit, WorldId
from ropeteam_trainer.data.decisions.plan import DataPlan, Position

if TYPE_CHECKING:
    from tests.sim.servers import Memory
    from tests.sim.world import World

TIMEOUT_SECONDS = 20.0
"""As in agreement.py, shorter: how long ranks wait for the volume."""
CONSEQUENCE = "torch.distributed.DistBackendError: Connection closed by peer [10.0.0.2]:34567"


@dataclass(frozen=True)
class Script:
    """The user's script."""

    feature_level: int
    total_steps: int
    step_seconds: float
    every_steps: int
    data: DataPlan
    bug_at: int | None = None
    """This step raises, always the same."""
    ignores_sigterm: bool = False


class Parent(Protocol):
    """The agent's side: it receives from the ranks and reaps them."""

    site: str
    config: WorkerConfig
    identity: PodIdentity
    frozen: bool
    memory: Memory | None
    restore: tuple[CheckpointRef, ...]

    def on_message(self, rank: Rank, message: FromRank) -> None: ...

    def reaped(self, rank: Rank, exit: ProcessExit) -> None: ...


class Rank:
    """One process. `step` and `position` are its training state."""

    work = "train"
    """The phase in its heartbeats."""

    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        self._world, self.parent, self.plan, self.number = world, parent, plan, number
        self.started_in = plan.started_in(parent.identity.slot)
        """The world by which its agent names it."""
        self.alive, self.hung, self.finished = True, False, False
        self.silent = False
        """The machine lost power: no report of the end is received."""
        self.joined = self.waiting = self.drained = False
        self.orders = ToRank()
        self.step = self.base = 0
        self.beaten_at = 0.0
        self.writing = False
        self.gang: Gang | None = None

    @property
    def saves_as(self) -> WorldId | None:
        """World under whose name it saves. None: the one that started it."""
        return None

    @property
    def settled(self) -> bool:
        """The rank makes steps, and will."""
        return self.alive and not self.stuck and not self.waiting

    @property
    def hangs(self) -> bool:
        """For good."""
        return self.hung or (self.gang is not None and self.gang.deserted)

    @property
    def stuck(self) -> bool:
        """Whether the rank computes nothing now: hung for good, or its whole pod is frozen."""
        return self.hung or self.parent.frozen

    def when_awake(self, call: Callable[[], None]) -> None:
        """Continue with `call`, once not stuck, if still alive."""
        if not self.alive:
            return
        if self.stuck:
            self._world.clock.after(0.5, self.when_awake, call)
        else:
            call()

    # ---- what the agent sees and does

    def send_heartbeat(self) -> Beat | None:
        if self._world.script.feature_level < 1 or not self.beaten_at:
            return None
        phase = "paused" if self.waiting else self.work
        here = self.step - self.base
        return Beat(self.step, here, int(self.beaten_at * 1e9), phase, here * 4.0, self.finished)

    def receive(self, message: ToRank) -> None:
        self.take(message)
        if self.waiting:
            self.when_awake(self._go_on)

    def take(self, message: ToRank) -> None:
        """Apply a line of the agent."""
        begins, self.orders = message.pause and not self.orders.pause, message
        if begins and self._world.setup.acknowledges_pause:
            self.send(FromRank(pause_received=self.step))

    def register(self, joins: bool | None = None) -> None:
        level, acknowledges = self._world.script.feature_level, self._world.setup.acknowledges_pause
        hello = FromRank(1000 + self.number, self.number, level, acknowledges_pause=acknowledges, joins=joins)
        self.send(hello)

    def _go_on(self) -> None:
        if self.waiting:
            self.waiting = False
            self.report()

    def send(self, message: FromRank) -> None:
        if self.alive and self._world.script.feature_level >= 1:
            self.parent.on_message(self, message)

    # ---- its life

    def boot(self) -> None:
        """Imports are done; join the others."""
        self.register()
        self._world.gang(self).join(self)

    def go_on_from(self, step: int) -> None:
        self.step = self.base = step
        self.touch()

    def touch(self) -> None:
        self.beaten_at = self._world.clock.now

    def report(self) -> None:
        """job.report(): after each step, the only place where a rank can be paused."""
        script, reported = self._world.script, self.orders
        if self.drained:
            self.waiting = True
            return
        if reported.pause and script.feature_level >= 1:
            if reported.stop_at is None:
                self.waiting = True
                self.send(FromRank(paused=self.step))
                return
            if self.step >= reported.stop_at:
                self._drain()
                return
        self.next_step()

    def next_step(self) -> None:
        if self.gang:
            self.gang.willing()

    def _drain(self) -> None:
        self.waiting = self.drained = True
        if self._world.script.feature_level >= 2:
            self.save(lambda: self.send(FromRank(drained=self.step)))
        else:
            self.send(FromRank(drained=self.step))

    def save(self, then: Callable[[], None] = lambda: None, whole: bool = False) -> None:
        """Write the shard in the background, then report it. whole: for all ranks."""
        step, position, world_id = self.step, self.gang.position if self.gang else Position(), self.saves_as
        place = step, world_id or self.plan.world_id, self.number, position

        def written() -> None:
            self.writing = False
            files = self._world.disk.write_shard(*place, whole)
            self.send(FromRank(shard_step=step, shard_files=files, shard_world=world_id, shard_whole=whole))
            then()

        self.writing = True
        self._world.disk.begin_shard(step, place[1], self.number, whole)
        self._world.clock.after(self._world.disk.write_seconds(), self.when_awake, written)

    def end(self) -> None:
        """The script is over: a last breath, then exit 0; now and then gloo aborts on the way out."""
        self.finished = True
        self.touch()
        random = self._world.random
        aborts = random.random() < 0.1
        exit = ProcessExit(None, 6) if aborts else ProcessExit(0, None)
        self._world.clock.after(0.02 + 0.5 * random.random(), self.die, exit)

    def raises(self, fingerprint: str, message: str, code: int = 1) -> None:
        name = message.split(":")[0]
        error_class = f"ropeteam_trainer.checkpoint.decisions.restore.{name}"
        self.send(
            FromRank(error_type=name, error_class=error_class, fingerprint=fingerprint, message=message)
        )
        if self.alive and self._world.script.feature_level >= 1:
            self._world.checks.status.raised(self, message)
        self.die(ProcessExit(code, None))

    def signalled(self, number: int) -> None:
        """SIGTERM: the default action ends it; a script that saves by itself saves first. SIGKILL just
        kills.
        """
        if number == 9:
            self.die(ProcessExit(None, 9))
        elif not self.stuck and not self._world.script.ignores_sigterm:
            self._world.clock.after(0.2, self.die, ProcessExit(None, number))

    def die(self, exit: ProcessExit) -> None:
        if not self.alive:
            return
        self.alive = False
        self._world.film.write(
            f"rank {self.number}", f"ends: {exit.code=} {exit.signal=} at step {self.step}"
        )
        self._world.checks.rank_ended(self, exit)
        self.parent.reaped(self, exit)
        if self.gang:
            self.gang.deserted |= exit.clean and not self.finished
            self.gang.lost(self)


class Gang:
    """All ranks of one world that found each other."""

    lives_on = False
    """Other worlds may continue it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world, self.plan, self.size = world, plan, plan.world_size
        self.ranks: dict[int, Rank] = {}
        self.position = Position()
        self.restored: CheckpointRef | None = None
        self.begun = self.broken = False
        self.deserted = False
        """A rank ended with 0 in the midst of the script: the others may wait for it."""
        self.stepped_at = 0.0
        self._waited = 0.0
        self._stepping = False

    def join(self, rank: Rank) -> None:
        rank.gang = self
        if not self._world.store_answers(self.plan):
            # torch tries for as long as its timeout is, 30 minutes.
            self._world.clock.after(0.5, rank.when_awake, lambda: self.join(rank))
            return
        self.ranks[rank.number] = rank
        rank.joined = True
        if len(self.ranks) == self.size:
            self._world.clock.after(0.05, self._begin)

    def _begin(self) -> None:
        """init_process_group has returned on all ranks; rank 0 chooses where to continue."""
        if self.broken or not self._all_there() or any(rank.stuck for rank in self.ranks.values()):
            if not self.broken:
                self._world.clock.after(0.5, self._begin)
            return
        script = self._world.script
        step = self._world.own_checkpoint
        if script.feature_level >= 2:
            try:
                step = self._restore(self.ranks[0])
            except CheckpointUnavailable as error:
                self._wait_for_the_volume(str(error))
                return
            except CheckpointNotFound as error:
                self.ranks[0].raises("CheckpointNotFound", f"CheckpointNotFound: {error}")
                return
        self.begun = True
        self._world.film.write(
            f"world {self.plan.world_id}", f"{len(self.ranks)} ranks go on from step {step}"
        )
        self._world.checks.began(self, step)
        for rank in self.ranks.values():
            rank.go_on_from(step)
        if step >= script.total_steps:
            self._end()
        else:
            self.willing()

    def _wait_for_the_volume(self, why: str) -> None:
        """As agreement.py does it, in the pods of a whole job."""
        self._waited += 1.0
        if self._waited < TIMEOUT_SECONDS:
            self._world.clock.after(1.0, self._begin)
            return
        for rank in tuple(self.ranks.values()):
            rank.raises("UnavailableEverywhere", f"UnavailableEverywhere: {why}")

    def _restore(self, first: Rank) -> int:
        reported = replace(self.plan, restore=first.parent.restore)
        disk, plan = self._world.disk, rank_plan(first.parent.config, reported, first.parent.identity)
        chosen = choose(plan, disk.found(), disk.look).manifest
        if chosen is None:
            return 0
        self.restored = chosen.ref
        self.position = disk.position(chosen.ref)
        first.send(FromRank(restored=chosen.ref))
        return chosen.step

    @property
    def line(self) -> WorldId:
        """The first of the worlds that it continues."""
        return self.plan.world_id

    # ---- steps

    def willing(self) -> None:
        """A rank entered the next step; the last one lets it happen."""
        if self.begun and not self.broken and not self._stepping:
            self._stepping = True
            rate = 0.8 + 0.4 * self._world.random.random()
            self._world.clock.after(self._world.script.step_seconds * rate, self._step)

    def _step(self) -> None:
        self._stepping = False
        if self.broken or not self._all_there():
            return
        ranks = self.ranks.values()
        if any(rank.waiting or rank.finished for rank in ranks):
            return  # blocked in the all-reduce until the waiting ones continue
        if any(rank.stuck for rank in ranks) or not self._connected():
            self._stepping = True
            self._world.clock.after(0.5, self._step)
            return
        step = self.ranks[0].step + 1
        if step == self._world.script.bug_at:
            self.ranks[len(self.ranks) - 1].raises(
                "ValueError train.py:31", "ValueError: bad sample (train.py:31)"
            )
            return
        self._world.checks.stepped(self, step)
        self.stepped_at = self._world.clock.now
        self.position = self._world.script.data.after(self.position)
        for rank in ranks:
            rank.step = step
            rank.touch()
        self._after_step(step)

    def _after_step(self, step: int) -> None:
        script = self._world.script
        if step >= script.total_steps:
            self._end()
            return
        saves = step % script.every_steps == 0 and step > self.ranks[0].base
        if saves and script.feature_level < 2:
            self._world.own_checkpoint = step
        for rank in list(self.ranks.values()):
            if saves and script.feature_level >= 2 and not rank.writing:
                rank.save()
            rank.report()

    def _end(self) -> None:
        for rank in list(self.ranks.values()):
            rank.end()

    def _all_there(self) -> bool:
        return len(self.ranks) == self.size and all(rank.alive for rank in self.ranks.values())

    def _connected(self) -> bool:
        sites = {rank.parent.site for rank in self.ranks.values()}
        reaches = self._world.network.reaches
        return all(reaches(one, other) for one in sites for other in sites if one < other)

    def lost(self, dead: Rank) -> None:
        """A connection was reset. A rank inside an all-reduce fails, or hangs there."""
        if dead.finished:
            return
        self.broken = True
        if dead.silent:
            return
        for rank in self.ranks.values():
            if rank.alive and not rank.finished and not rank.waiting and self._world.random.random() < 0.7:
                seconds = 0.02 + 0.5 * self._world.random.random()
                fail = partial(rank.raises, "DistBackendError", CONSEQUENCE)
                self._world.clock.after(seconds, rank.when_awake, fail)


def with_bug(script: Script, step: int | None) -> Script:
    return replace(script, bug_at=step)
