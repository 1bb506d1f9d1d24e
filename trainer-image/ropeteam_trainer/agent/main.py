"""The agent's process: `python -m ropeteam_trainer.agent -- command`, or `python3 -I agent.pyz -- command`.

One loop. Whatever happens becomes an event of the machine; what the machine wants is carried out here, in
order. Promises: exit code 0 only when the coordinator released the job, 143 when asked to leave, 2 for an
environment that is not ours; nothing that was started lives on. Limits: SIGKILL of the agent kills ranks,
zygote and stores by their parent-death signal; what those have started dies with the container.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

from ropeteam_trainer.agent import checkpoints, machine, metrics, preflight, proc
from ropeteam_trainer.agent.environment import interface_names
from ropeteam_trainer.agent.http import Metrics
from ropeteam_trainer.agent.keeper import Keeper
from ropeteam_trainer.agent.launch import Run
from ropeteam_trainer.agent.link import Link
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.memory import make as make_memory
from ropeteam_trainer.agent.ranks import How, Ranks
from ropeteam_trainer.agent.reaper import Reaper
from ropeteam_trainer.agent.report import news, report
from ropeteam_trainer.agent.spawn import write_shims
from ropeteam_trainer.agent.state import (
    CloseStore,
    DropLink,
    Effect,
    Event,
    Exit,
    HostStore,
    KillRanks,
    ManifestFailed,
    ManifestWritten,
    ProblemFound,
    Prune,
    StartRanks,
    TellRank,
    Terminated,
    TerminateRanks,
    Tick,
    WarmUp,
    WriteManifest,
)
from ropeteam_trainer.agent.zygoteclient import ZygoteClient
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.messages import Grant, Problem
from ropeteam_trainer.contract.world import CheckpointRef, FailReason

TICK_SECONDS = 0.2
DYING_SECONDS = 0.01
"""Between two looks at whether a rank is dying: 15 microseconds per rank."""
EXIT_NOT_OURS = 2


class Agent:
    """`folder`: scratch, ours alone. `memory`: MEMORY of the ranks, where there are parameter servers."""

    def __init__(
        self,
        settings: WorkerConfig,
        identity: PodIdentity,
        command: tuple[str, ...],
        folder: Path,
        memory: Path | None,
    ) -> None:
        launch, python, problem = preflight.plan_launch(command, settings, os.environ)
        self._settings, self._python, self._problem = settings, python, problem
        self._torch = os.environ.get(config.STORE) != "none" and problem is None
        self._state = machine.initial(settings, identity, launch, time.monotonic())
        self._counts: metrics.Counts = {}
        self._metrics = Metrics(self._numbers)
        self._events: deque[Event] = deque()
        self._busy = False
        self._orders: asyncio.Queue[StartRanks | KillRanks | TerminateRanks | TellRank] = asyncio.Queue()
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._disk = concurrent.futures.ThreadPoolExecutor(1, "disk")
        self._tasks: set[asyncio.Future[None]] = set()
        self._news = news(report(self._state))
        self._sent_at = 0.0

        self._reaper = Reaper()
        shims = write_shims(folder)
        flags = launch.flags if launch.run is not Run.COMMAND else ()
        self._zygote = ZygoteClient(
            self._reaper, (python, *flags, shims.zygote), os.environ, self._zygote_is_broken
        )
        self._keeper = Keeper(identity.pod_ip, self._reaper, self._zygote if self._torch else None, self.post)
        interfaces = interface_names(identity.pod_ip, proc.interface_of(identity.pod_ip))
        base = interfaces | os.environ | ({config.MEMORY: str(memory)} if memory else {})
        how = How(settings, identity, launch, python, base, shims, folder, memory)
        self._ranks = Ranks(how, self._reaper, self._zygote, self._services, self.post)
        self._link = Link(settings.coordinator, identity.token, settings.timeouts.lost, self.post)
        self._imports_early = self._torch and (identity.slot == 0 or self._state.may_fork)

    async def run(self) -> int:
        """The exit code."""
        loop = asyncio.get_running_loop()
        self._reaper.install()
        loop.add_signal_handler(signal.SIGTERM, self.post, Terminated())
        if self._problem:
            log(f"{self._problem.reason.value}: {self._problem.message}")
            self.post(ProblemFound(self._problem))
        if self._imports_early:
            self._zygote.start()
        await self._metrics.listen(self._state.identity.pod_ip)
        tasks = [
            asyncio.ensure_future(job())
            for job in (self._link.run, self._clock, self._watch, self._world_worker)
        ]
        try:
            for task in tasks:
                task.add_done_callback(self._fail)
            return await self._done
        finally:
            for task in tasks:
                task.cancel()
            self._metrics.close()
            self._keeper.close_all()
            self._zygote.stop()
            self._disk.shutdown(wait=False)

    # ---- events in

    def post(self, event: Event) -> None:
        """Feed the machine. Events that effects cause on the spot wait for their turn."""
        self._events.append(event)
        if self._busy or self._done.done():
            return
        self._busy = True
        try:
            while self._events:
                self._state, effects = machine.step(self._state, self._events.popleft(), time.monotonic())
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._busy = False
        self._counts = metrics.count(self._counts, self._state)
        self._tell_coordinator()

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if beats := self._ranks.read_beats():
                self.post(beats)
            self.post(Tick())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(DYING_SECONDS)
            self._ranks.look_for_dying()

    def _tell_coordinator(self) -> None:
        """At once what cannot wait, all else with the lease. Long silence: ask for an answer."""
        now, lost = time.monotonic(), self._settings.timeouts.lost
        current = report(self._state)
        if not self._state.linked:
            self._sent_at = 0.0
            return
        fresh = news(current)
        if fresh == self._news and now - self._sent_at < lost / 5:
            return
        self._news, self._sent_at = fresh, now
        silent = self._link.silent_seconds()
        if silent > 3 * lost:
            self._link.drop(f"no answer for {silent:.0f} s")
        self._link.send(current if silent < lost else replace(current, orders_seen=0))

    # ---- effects out

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StartRanks() | KillRanks() | TerminateRanks() | TellRank():
                self._orders.put_nowait(effect)
            case HostStore(epoch):
                self._keeper.host(epoch)
            case CloseStore(epoch):
                self._keeper.close(epoch)
            case WarmUp():
                self._background(self._warm_up())
            case WriteManifest(grant):
                self._background(self._write_manifest(grant))
            case Prune(keep):
                self._background(self._prune(keep))
            case DropLink(why):
                self._link.drop(why)
            case Exit(code):
                self._done.set_result(code)

    async def _world_worker(self) -> None:
        """What concerns ranks happens strictly one after the other: a kill never overtakes a start."""
        while True:
            match await self._orders.get():
                case StartRanks(plan, fork):
                    await self._ranks.start(plan, fork)
                case KillRanks(epoch, ranks):
                    self._ranks.kill(epoch, ranks)
                case TerminateRanks(epoch, ranks):
                    self._ranks.terminate(epoch, ranks)
                case TellRank(epoch, rank, message):
                    self._ranks.tell(epoch, rank, message)

    async def _warm_up(self) -> None:
        try:
            if self._torch and not self._zygote.is_warm:
                await self._zygote.warm_up()
                log("ranks can be forked from now on")
        except OSError as error:
            log(f"ranks cannot be forked: {error}")

    async def _write_manifest(self, grant: Grant) -> None:
        loop = asyncio.get_running_loop()
        try:
            ref = await loop.run_in_executor(self._disk, checkpoints.write_manifest, self._settings, grant)
        except OSError as error:
            log(f"the manifest of step {grant.ref.step} cannot be written, trying again: {error}")
            self.post(ManifestFailed(grant.ref))
        else:
            self.post(ManifestWritten(ref))

    async def _prune(self, keep: tuple[CheckpointRef, ...]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, checkpoints.prune, self._settings, keep)
        except OSError as error:
            log(f"old checkpoints cannot be pruned: {error}")

    # ---- odds and ends

    def _numbers(self) -> str:
        return metrics.render(self._state, self._counts, time.time() - time.monotonic())

    def _services(self) -> set[int]:
        return self._keeper.pids() | ({self._zygote.pid} if self._zygote.pid else set())

    def _zygote_is_broken(self) -> None:
        text = f"{self._python} cannot import torch.distributed: see the traceback in the pod's log"
        self.post(ProblemFound(Problem(FailReason.INTERPRETER_WITHOUT_TORCH, text)))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._fail)

    def _fail(self, task: asyncio.Future[None]) -> None:
        """An exception that nobody expected ends the agent, loudly, instead of a part of it."""
        if not task.cancelled() and task.exception() and not self._done.done():
            self._done.set_exception(task.exception() or AssertionError)


def _scratch() -> str:
    """A new folder. Of a container with a read-only root only /dev/shm is sure to be writable, for ranks too:
    torch asks for a temporary folder.
    """
    try:
        return tempfile.mkdtemp(prefix="ropeteam-")
    except OSError:
        os.environ["TMPDIR"] = "/dev/shm"  # another one was tried just now
        return tempfile.mkdtemp(prefix="ropeteam-")


async def _run(
    settings: WorkerConfig,
    identity: PodIdentity,
    command: tuple[str, ...],
    folder: Path,
    memory: Path | None,
) -> int:
    return await Agent(settings, identity, command, folder, memory).run()


def main() -> int:
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
        return asyncio.run(_run(settings, identity, command, folder, memory))
    finally:
        for each in (memory, folder):
            if each:
                shutil.rmtree(each, ignore_errors=True)
