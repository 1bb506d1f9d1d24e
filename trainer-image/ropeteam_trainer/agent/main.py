"""The agent's process: `python -m ropeteam_trainer.agent -- command`, or `python3 -I agent.pyz -- command`.

One loop. Whatever happens becomes an event of the machine; what the machine wants is carried out here, in
order. Promises: exit code 0 only when the coordinator released the job, 4 when it says that the job has
failed, 143 when asked to leave, 2 for an environment that is not ours, 3 when something of a rank cannot be
killed; else nothing that was started lives on. Limits: SIGKILL of the agent kills ranks, zygote and stores by
their parent-death signal; what those have started dies with the container.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar

from ropeteam_trainer.agent import checkpoints, preflight
from ropeteam_trainer.agent.http import Metrics
from ropeteam_trainer.agent.lane import Lane
from ropeteam_trainer.agent.link import Link
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine import metrics
from ropeteam_trainer.agent.machine import step as machine
from ropeteam_trainer.agent.machine.effects import (
    ClaimRun,
    CloseStore,
    DropLink,
    Effect,
    Exit,
    HostStore,
    KillRanks,
    Prune,
    SendToRank,
    ShowStacks,
    StartRanks,
    TerminateRanks,
    WarmUp,
    WriteManifest,
)
from ropeteam_trainer.agent.machine.environment import interface_names
from ropeteam_trainer.agent.machine.report import news, report, steps_matter
from ropeteam_trainer.agent.machine.state import (
    ClaimFailed,
    Event,
    ManifestFailed,
    ManifestWritten,
    RunClaimed,
    RunSuperseded,
    Terminated,
    Tick,
)
from ropeteam_trainer.agent.pod import Pod, Processes
from ropeteam_trainer.agent.processes import proc
from ropeteam_trainer.agent.processes.memory import make as make_memory
from ropeteam_trainer.agent.processes.ranks import How
from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.checkpoint.decisions.journal import Held, Superseded
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.fence import TICK_SECONDS, renew_seconds
from ropeteam_trainer.contract.messages import EXIT_FAILED, Grant, Problem
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.launchers import Launch
from ropeteam_trainer.system.background import background, end_loudly
from ropeteam_trainer.system.clocks import asleep_seconds
from ropeteam_trainer.system.lines import take_over

EXIT_NOT_OURS = 2
T = TypeVar("T")
_CHANCE = SystemRandom()


class Agent:
    """`make_pod` is given where events go. `clock` is that of the ranks' heartbeats; `asleep` tells what it
    leaves out: for how long the machine has been suspended."""

    def __init__(
        self,
        settings: WorkerConfig,
        identity: PodIdentity,
        launch: Launch,
        make_pod: Callable[[Callable[[Event], None]], Pod],
        clock: Callable[[], float] = time.monotonic,
        chance: Random = _CHANCE,
        asleep: Callable[[], float] = asleep_seconds,
    ) -> None:
        self._settings, self._now = settings, clock
        self._asleep, self._asleep_before = asleep, asleep()
        self._state = machine.initial(settings, identity, launch, clock())
        self._counts: metrics.Counts = {}
        self._metrics = Metrics(self._numbers)
        self._events: deque[Event] = deque()
        self._busy = False
        self._orders: asyncio.Queue[StartRanks | KillRanks | TerminateRanks | SendToRank] = asyncio.Queue()
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._news = news(report(self._state))
        self._sent_at = 0.0
        self._pod = make_pod(self.post)
        self._pruning, self._to_prune = Lane("prune"), deque[Prune](maxlen=1)
        """Of the wishes that come while one is carried out, the newest."""
        self._pruner: asyncio.Task[None] | None = None
        lost = settings.timeouts.lost
        self._link = Link(
            settings.coordinator, identity.token, lost, self.post, chance, lambda: clock() + asleep()
        )

    async def run(self) -> int:
        """The exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.post, Terminated())
        self._pod.begin(self._state.may_fork)
        await self._metrics.listen(self._state.identity.pod_ip)
        jobs = (self._link.run, self._clock, self._pod.watch, self._world_worker)
        tasks = [self._background(job()) for job in jobs]
        try:
            return await self._done
        finally:
            for task in tasks:
                task.cancel()
            self._metrics.close()
            self._pod.end()

    # ---- events in

    def post(self, *events: Event) -> None:
        """Feed the machine. Events that effects cause on the spot wait for their turn."""
        self._events.extend(events)
        if self._busy or self._done.done():
            return
        self._busy = True
        try:
            while self._events:
                self._state, effects = machine.step(self._state, self._events.popleft(), self._now())
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._busy = False
        self._counts = metrics.count(self._counts, self._state)
        self._tell_coordinator()

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            beats, tick = self._pod.ranks.read_beats(), Tick(self._asleep() - self._asleep_before)
            self.post(*((beats, tick) if beats else (tick,)))

    def _tell_coordinator(self) -> None:
        """At once what cannot wait, all else with the lease. Long silence: ask for an answer."""
        now, lost = self._now(), self._settings.timeouts.lost
        if not self._state.linked:
            self._sent_at = 0.0
            return
        current = report(self._state)
        fresh = news(current)
        same = fresh == self._news
        if same and now - self._sent_at < renew_seconds(lost):
            return
        self._news, self._sent_at = fresh, now
        silent = self._link.silent_seconds()
        if silent > 3 * lost:
            self._link.drop(f"no answer for {silent:.0f} s")
        if same and silent < lost and not steps_matter(self._state) and self._link.renew():
            return
        self._link.send(current if silent < lost else replace(current, orders_seen=0))

    # ---- effects out

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StartRanks() | TerminateRanks() | SendToRank():
                self._orders.put_nowait(effect)
            case KillRanks(epoch, ranks):
                self._pod.ranks.kill(epoch, ranks)  # what has started: a start can take a minute
                self._orders.put_nowait(effect)
            case ShowStacks(epoch, ranks):
                self._pod.ranks.show_stacks(epoch, ranks)
            case HostStore(epoch):
                self._pod.stores.host(epoch)
            case CloseStore(epoch):
                self._pod.stores.close(epoch)
            case WarmUp():
                self._background(self._pod.warm_up())
            case ClaimRun(plan):
                self._background(self._claim(plan))
            case WriteManifest(held, grant):
                self._background(self._write_manifest(held, grant))
            case Prune():
                self._to_prune.append(effect)
                if self._pruner is None or self._pruner.done():
                    self._pruner = self._background(self._prune())
            case DropLink(why):
                self._link.drop(why)
            case Exit(code):
                if code == EXIT_FAILED and self._state.orders:
                    log(f"the job has failed: {self._state.orders.failed}")
                self._done.set_result(code)

    async def _world_worker(self) -> None:
        """What concerns ranks happens strictly one after the other: what starts late is killed, too."""
        while True:
            match await self._orders.get():
                case StartRanks(plan, fork, restore):
                    await self._pod.ranks.start(replace(plan, restore=restore), fork)
                case KillRanks(epoch, ranks):
                    self._pod.ranks.kill(epoch, ranks)
                case TerminateRanks(epoch, ranks):
                    self._pod.ranks.terminate(epoch, ranks)
                case SendToRank(epoch, rank, message):
                    self._pod.ranks.tell(epoch, rank, message)

    async def _claim(self, plan: Plan) -> None:
        me = self._state.identity
        try:
            claimed = await self._on_disk(checkpoints.claim, self._settings, me.pod_uid, plan, me.keys)
        except OSError as error:
            log(f"the folder of checkpoints cannot be claimed for world {plan.epoch}, trying again: {error}")
            self.post(ClaimFailed(plan.epoch))
        except Superseded as found:
            self._stop_for(found)
        else:
            self.post(RunClaimed(plan.epoch, claimed.held, claimed.restore, claimed.pasts))

    async def _write_manifest(self, held: Held, grant: Grant) -> None:
        keys = self._state.identity.keys
        try:
            ref = await self._on_disk(checkpoints.write_manifest, self._settings, held, grant, keys)
        except OSError as error:
            log(f"the manifest of step {grant.ref.step} cannot be written, trying again: {error}")
            self.post(ManifestFailed(grant.ref))
        except Superseded as found:
            self._stop_for(found)
        else:
            self.post(ManifestWritten(ref))

    async def _prune(self) -> None:
        """In a lane of its own: to delete terabytes takes a while, and the next manifest does not wait."""
        run = asyncio.get_running_loop().run_in_executor
        while self._to_prune:
            wanted = self._to_prune.pop()
            try:
                await run(self._pruning, checkpoints.prune, self._settings, wanted.held, wanted.keep)
            except OSError as error:
                log(f"old checkpoints cannot be pruned: {error}")
            except Superseded as found:
                self._stop_for(found)

    def _stop_for(self, found: Superseded) -> None:
        log(f"no rank may live here any more: {found}")
        self.post(RunSuperseded(found.by))

    async def _on_disk(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pod.disk, work, *arguments)

    # ---- odds and ends

    def _numbers(self) -> str:
        return metrics.render(self._state, self._counts, time.time() - self._now())

    def _background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = background(work)
        task.add_done_callback(self._look)
        return task

    def _look(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """What nobody expected ends the agent, loudly, instead of a part of it."""
        if not self._done.done():
            self._done.set_exception(error)


def _scratch() -> str:
    """A new folder. Of a container with a read-only root only /dev/shm is sure to be writable, for ranks too:
    torch asks for a temporary folder.
    """
    try:
        return tempfile.mkdtemp(prefix="ropeteam-")
    except OSError:
        os.environ["TMPDIR"] = "/dev/shm"  # another one was tried just now
        return tempfile.mkdtemp(prefix="ropeteam-")


def _prepare(
    settings: WorkerConfig,
    identity: PodIdentity,
    command: tuple[str, ...],
    folder: Path,
    memory: Path | None,
) -> tuple[How, Problem | None]:
    """How ranks are started in this pod, and why they cannot, if they cannot."""
    identity, unsigned = preflight.signer(settings, identity)
    launch, python, problem = preflight.plan_launch(command, settings, os.environ)
    interfaces = interface_names(identity.pod_ip, proc.interface_of(identity.pod_ip))
    ours = {config.MEMORY: str(memory)} if memory else {}
    base = interfaces | os.environ | dict(launch.env) | ours
    return How(
        settings, identity, launch, python, base, write_shims(folder), folder, memory
    ), unsigned or problem


async def _run(how: How, problem: Problem | None) -> int:
    agent = Agent(how.settings, how.identity, how.launch, partial(Processes, how, problem))
    end_loudly(log, agent.fail)
    return await agent.run()


def main() -> int:
    take_over("the agent")
    arguments = sys.argv[1:]
    command = tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)
    try:
        settings, identity = config.read_worker(os.environ)
    except (KeyError, ValueError, OSError) as error:
        log(f"this is not the environment of a worker pod: {type(error).__name__}: {error}")
        return EXIT_NOT_OURS
    # Until the loop takes over: the first process of a container has no default action.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(machine.EXIT_LEFT))
    proc.become_subreaper()
    folder = Path(os.environ.get(config.AGENT_STATE_DIR) or _scratch())
    folder.mkdir(parents=True, exist_ok=True)
    memory = make_memory(identity.pod_uid, folder) if settings.servers else None
    try:
        return asyncio.run(_run(*_prepare(settings, identity, command, folder, memory)))
    finally:
        for each in (memory, folder):
            if each:
                shutil.rmtree(each, ignore_errors=True)
