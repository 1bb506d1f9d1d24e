"""The agent's process: `python -m ropeteam_trainer.agent -- command`, or `python3 -I agent.pyz -- command`.

One loop. Whatever happens becomes an event of the state machine; its effects are carried out here, in order.
Promises: exit code 0 only when the coordinator released the job, 4 when the coordinator reports that the job
has failed, 143 when terminated, 2 for an environment that is no worker pod's, 3 when a process of a rank
cannot be killed. Except with code 3, no process that the agent started outlives it. Limits: SIGKILL of the
agent kills ranks, zygote and stores by their parent-death signal; their descendants die with the container.
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
from ropeteam_trainer.agent.executor import DaemonThreadExecutor
from ropeteam_trainer.agent.http import MetricsServer
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
from ropeteam_trainer.agent.machine.environment import interface_variables
from ropeteam_trainer.agent.machine.events import (
    ClaimFailed,
    Event,
    ManifestFailed,
    ManifestWritten,
    RunClaimed,
    RunSuperseded,
    Terminated,
    Tick,
)
from ropeteam_trainer.agent.machine.report import agent_report, needs_current_steps, urgent_part
from ropeteam_trainer.agent.pod import Pod, RealPod
from ropeteam_trainer.agent.processes import proc
from ropeteam_trainer.agent.processes.launchsettings import LaunchSettings
from ropeteam_trainer.agent.processes.memory import create_memory_folder
from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.checkpoint.decisions.journal import Held, Superseded
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.fence import TICK_SECONDS, renew_seconds
from ropeteam_trainer.contract.messages import EXIT_FAILED, Grant, Problem
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.launchers import Launch
from ropeteam_trainer.system.background import install_exception_handler, start_task
from ropeteam_trainer.system.clocks import asleep_seconds
from ropeteam_trainer.system.lines import replace_standard_streams

EXIT_NOT_A_WORKER = 2
T = TypeVar("T")
_RANDOM = SystemRandom()


class Agent:
    """The loop around the state machine: posts events to it, and carries out its effects.

    `make_pod` receives the function that posts events. `clock` is that of the ranks' heartbeats; `asleep`
    returns the time that it leaves out: seconds for which the machine has been suspended. `chance`: for
    jitter and nonces. Create it inside the running loop.
    """

    def __init__(
        self,
        settings: WorkerConfig,
        identity: PodIdentity,
        launch: Launch,
        make_pod: Callable[[Callable[[Event], None]], Pod],
        clock: Callable[[], float] = time.monotonic,
        chance: Random = _RANDOM,
        asleep: Callable[[], float] = asleep_seconds,
    ) -> None:
        self._settings, self._now = settings, clock
        self._asleep, self._asleep_before = asleep, asleep()
        self._state = machine.initial_state(settings, identity, launch, clock())
        self._counts: metrics.Counts = {}
        self._metrics = MetricsServer(self._metrics_text)
        self._events: deque[Event] = deque()
        self._busy = False
        """Events are being applied: those that are posted meanwhile wait in `_events`."""
        self._rank_effects: asyncio.Queue[StartRanks | KillRanks | TerminateRanks] = asyncio.Queue()
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit code."""
        self._sent_urgent = urgent_part(agent_report(self._state))
        """Urgent part of the report that was last sent."""
        self._sent_at = 0.0
        """Time at which a report or a lease was last sent; 0: not on this connection."""
        self._pod = make_pod(self.post)
        self._prune_thread, self._pending_prune = DaemonThreadExecutor("prune"), deque[Prune](maxlen=1)
        """The newest of the requests that arrive while another is carried out."""
        self._pruner: asyncio.Task[None] | None = None
        lost = settings.timeouts.lost
        self._link = Link(
            settings.coordinator,
            identity.token,
            lost,
            self._post_with_heartbeats,
            chance,
            lambda: clock() + asleep(),
        )

    async def run(self) -> int:
        """Run until the state machine exits, and return the exit code. At the end stores and zygote are
        killed; the ranks are dead then. Raises the error of a task that failed (`fail`)."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.post, Terminated())
        self._pod.begin(self._state.may_fork)
        await self._metrics.listen(self._state.identity.pod_ip)
        loops = (self._link.run, self._post_ticks, self._pod.watch, self._run_rank_effects)
        tasks = [self._background(loop()) for loop in loops]
        try:
            return await self._done
        finally:
            for task in tasks:
                task.cancel()
            self._metrics.close()
            self._pod.end()

    # ---- events in

    def post(self, *events: Event) -> None:
        """Apply events to the state machine, carry out the effects, then send a report if one is due. Events
        that effects cause at once are queued behind the others. Ignored once the agent exits."""
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
        self._counts = metrics.updated_counts(self._counts, self._state)
        self._send_report()

    async def _post_ticks(self) -> None:
        """Post a Tick every TICK_SECONDS, for ever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._post_with_heartbeats(Tick(self._asleep() - self._asleep_before))

    def _post_with_heartbeats(self, *events: Event) -> None:
        """Post the newest heartbeats, then events. Those of the connection too: the report that acknowledges
        a pause must show the steps that were made before it."""
        heartbeats = self._pod.ranks.read_heartbeats()
        self.post(*((heartbeats,) if heartbeats else ()), *events)

    def _send_report(self) -> None:
        """Send a report, or renew the lease, if that is due.

        Without a connection nothing is sent. Urgent changes are sent at once, all else when the lease must be
        renewed, by a report only if it says more than the lease. After lostSeconds of silence a report has
        `applied_orders` 0, which requests orders; after three times as long the connection is dropped.
        """
        now, lost = self._now(), self._settings.timeouts.lost
        if not self._state.linked:
            self._sent_at = 0.0
            return
        current = agent_report(self._state)
        urgent = urgent_part(current)
        unchanged = urgent == self._sent_urgent
        if unchanged and now - self._sent_at < renew_seconds(lost):
            return
        self._sent_urgent, self._sent_at = urgent, now
        silence = self._link.silent_seconds()
        if silence > 3 * lost:
            self._link.drop(f"no answer for {silence:.0f} s")
        if unchanged and silence < lost and not needs_current_steps(self._state) and self._link.renew():
            return
        self._link.send(current if silence < lost else replace(current, applied_orders=0))

    # ---- effects out

    def _carry_out(self, effect: Effect) -> None:
        """Begin to carry out an effect, without waiting: its result is another event. Effects on ranks are
        queued for `_run_rank_effects`. A kill is carried out now, too: a start that is under way can take a
        minute."""
        match effect:
            case StartRanks() | TerminateRanks():
                self._rank_effects.put_nowait(effect)
            case SendToRank(world_id, rank, message):
                self._pod.ranks.send(world_id, rank, message)
            case KillRanks(world_id, ranks):
                self._pod.ranks.kill(world_id, ranks)
                self._rank_effects.put_nowait(effect)
            case ShowStacks(world_id, ranks):
                self._pod.ranks.show_stacks(world_id, ranks)
            case HostStore(world_id):
                self._pod.stores.host(world_id)
            case CloseStore(world_id):
                self._pod.stores.close(world_id)
            case WarmUp():
                self._background(self._pod.warm_up())
            case ClaimRun(plan):
                self._background(self._claim(plan))
            case WriteManifest(held, grant):
                self._background(self._write_manifest(held, grant))
            case Prune():
                self._pending_prune.append(effect)
                if self._pruner is None or self._pruner.done():
                    self._pruner = self._background(self._prune())
            case DropLink(why):
                self._link.drop(why)
            case Exit(code):
                if code == EXIT_FAILED and self._state.orders:
                    log(f"the job has failed: {self._state.orders.failed}")
                self._done.set_result(code)

    async def _run_rank_effects(self) -> None:
        """Carry out the queued effects on ranks, for ever, one after the other: a kill that was requested
        during a start reaches the ranks that start last, too."""
        while True:
            match await self._rank_effects.get():
                case StartRanks(plan, ranks, fork, restore):
                    await self._pod.ranks.start(replace(plan, restore=restore), ranks, fork)
                case KillRanks(world_id, ranks):
                    self._pod.ranks.kill(world_id, ranks)
                case TerminateRanks(world_id, ranks):
                    self._pod.ranks.terminate(world_id, ranks)

    async def _claim(self, plan: Plan) -> None:
        """Claim the checkpoint folder on the disk, and post how that ended."""
        identity = self._state.identity
        try:
            claimed = await self._run_on_disk(
                checkpoints.claim, self._settings, identity.pod_uid, plan, identity.keys
            )
        except OSError as error:
            log(f"the checkpoint folder cannot be claimed for world {plan.world_id}, trying again: {error}")
            self.post(ClaimFailed(plan.world_id))
        except Superseded as found:
            self._report_superseded(found, plan.world_id)
        else:
            self.post(RunClaimed(plan.world_id, claimed.held, claimed.restore, claimed.ancestors))

    async def _write_manifest(self, held: Held, grant: Grant) -> None:
        """Commit the checkpoint of `grant` by writing its manifest, and post how that ended: after
        ManifestFailed the state machine requests it again. `held`: our claim on the folder."""
        keys = self._state.identity.keys
        try:
            ref = await self._run_on_disk(checkpoints.write_manifest, self._settings, held, grant, keys)
        except OSError as error:
            log(f"the manifest of step {grant.ref.step} cannot be written, trying again: {error}")
            self.post(ManifestFailed(grant.ref))
        except Superseded as found:
            self._report_superseded(found, held.claim.world_id)
        else:
            self.post(ManifestWritten(ref))

    async def _prune(self) -> None:
        """Prune as the newest request says, until there is none. In a thread of its own: deleting terabytes
        takes long, and the next manifest does not wait."""
        run = asyncio.get_running_loop().run_in_executor
        while self._pending_prune:
            request = self._pending_prune.pop()
            try:
                await run(self._prune_thread, checkpoints.prune, self._settings, request.held, request.keep)
            except OSError as error:
                log(f"old checkpoints cannot be pruned, trying again after the next one: {error}")
            except Superseded as found:
                self._report_superseded(found, request.held.claim.world_id)

    def _report_superseded(self, found: Superseded, refused: WorldId) -> None:
        log(f"a claim, manifest or pruning of an older world is refused: {found}")
        self.post(RunSuperseded(found.by, refused))

    async def _run_on_disk(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a blocking call after those that wait for the disk already. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pod.disk, work, *arguments)

    # ---- metrics and background tasks

    def _metrics_text(self) -> str:
        return metrics.render(self._state, self._counts, time.time() - self._now())

    def _background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run in the background; an exception ends the agent."""
        task = start_task(work)
        task.add_done_callback(self._fail_on_error)
        return task

    def _fail_on_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the agent with an unexpected error, which `run` raises: a part of it must not die alone."""
        if not self._done.done():
            self._done.set_exception(error)


def _create_temporary_folder() -> str:
    """Create a temporary folder, and return its path. In a container with a read-only root only /dev/shm is
    sure to be writable: TMPDIR is set to it then, for ranks too, because torch needs a temporary folder.
    """
    try:
        return tempfile.mkdtemp(prefix="ropeteam-")
    except OSError:
        os.environ["TMPDIR"] = "/dev/shm"
        return tempfile.mkdtemp(prefix="ropeteam-")


def _launch_settings(
    settings: WorkerConfig,
    identity: PodIdentity,
    command: tuple[str, ...],
    folder: Path,
    memory: Path | None,
) -> tuple[LaunchSettings, Problem | None]:
    """Parameters of starting ranks in this pod, and the problem that prevents it, if there is one. Runs the
    checks of preflight.py, and writes the shims into `folder`. `memory`: of parameter servers, if any."""
    identity, key_problem = preflight.with_named_keys(settings, identity)
    launch, python, problem = preflight.plan_launch(command, settings, os.environ)
    interfaces = interface_variables(identity.pod_ip, proc.interface_of(identity.pod_ip))
    memory_variable = {config.MEMORY: str(memory)} if memory else {}
    base = interfaces | os.environ | dict(launch.env) | memory_variable
    return LaunchSettings(
        settings, identity, launch, python, base, write_shims(folder), folder, memory
    ), key_problem or problem


async def _run_agent(settings: LaunchSettings, problem: Problem | None) -> int:
    agent = Agent(settings.config, settings.identity, settings.launch, partial(RealPod, settings, problem))
    install_exception_handler(log, agent.fail)
    return await agent.run()


def main() -> int:
    """Run the agent of this pod, and return its exit code.

    Order: stdout and stderr never block from here on -> settings are read from the environment -> SIGTERM
    exits, until the loop handles it -> orphans become children of this process -> checks, shims, the loop ->
    folders are removed, also after an error.
    """
    replace_standard_streams("the agent")
    arguments = sys.argv[1:]
    command = tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)
    try:
        settings, identity = config.read_worker(os.environ)
    except (KeyError, ValueError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
        log(f"this is not the environment of a worker pod, as the operator creates it: {problem}")
        return EXIT_NOT_A_WORKER
    # Until the loop's own handler: for the first process of a container SIGTERM has no default action.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(machine.EXIT_TERMINATED))
    proc.become_subreaper()
    folder = Path(os.environ.get(config.AGENT_STATE_DIR) or _create_temporary_folder())
    folder.mkdir(parents=True, exist_ok=True)
    memory = create_memory_folder(identity.pod_uid, folder) if settings.servers else None
    try:
        return asyncio.run(_run_agent(*_launch_settings(settings, identity, command, folder, memory)))
    finally:
        for each in (memory, folder):
            if each:
                shutil.rmtree(each, ignore_errors=True)
