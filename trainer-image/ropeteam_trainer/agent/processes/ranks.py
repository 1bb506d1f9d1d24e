"""The rank processes of the one world that may live here: start, watch, kill, reap.

A rank is a session of its own. When it exits, all its descendants are killed before the exit is reported: a
left-over DataLoader worker would hold the dead rank's sockets open. Descendants are found by session, by
process tree, and by the rank's page in their environment, wherever they were re-parented to (always to this
agent, a subreaper). Limits: a process that left session, tree and environment behind is known as "of some
rank" only; it is killed with the last rank, and with the first that does not exit cleanly. If one cannot be
killed (it became root, or hangs in the kernel), RankUnkillable is reported after SESSION_END_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ropeteam_trainer.agent.lane import Lane
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine import stacks
from ropeteam_trainer.agent.machine.environment import (
    launcher_environment,
    rank_environment,
    rendezvous_address,
    servers_secret,
)
from ropeteam_trainer.agent.machine.events import (
    Event,
    HeartbeatsRead,
    RankDying,
    RankExited,
    RankMessage,
    RanksStarted,
    RankUnkillable,
    StackShown,
)
from ropeteam_trainer.agent.processes import proc
from ropeteam_trainer.agent.processes.memory import empty
from ropeteam_trainer.agent.processes.output import Output
from ropeteam_trainer.agent.processes.page import Page
from ropeteam_trainer.agent.processes.ranksocket import RankSocket
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.spawn import Shims, spawn
from ropeteam_trainer.agent.processes.waiting import within
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient
from ropeteam_trainer.agent.script import childhooks
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.local import Beat, FromRank, ToRank
from ropeteam_trainer.contract.messages import Hang
from ropeteam_trainer.contract.world import Plan, ProcessExit, WorldId
from ropeteam_trainer.launchers import Launch, Run
from ropeteam_trainer.system.background import background

RESCAN_SECONDS, ORPHAN_POLL_SECONDS = 0.01, 0.5
"""Shortest and longest interval of the checks of a dying process; it grows. SIGCHLD causes a check at
once."""
SESSION_END_SECONDS = 30.0
"""From the signal that kills a rank until all its processes exited. Freeing hundreds of GiB takes seconds."""
STACK_SECONDS, STACK_LOOKS = 0.1, 10
"""Interval and number of the checks whether a process has printed its stacks."""
MOST_STACKS = 32
"""Processes of one rank whose stacks are requested: itself and its DataLoader workers, for example."""
_NO_SESSION = -1
_START_ERRORS = (OSError, ValueError, subprocess.SubprocessError)
"""No file, process or memory; a NUL in an argument; errors between fork and exec."""


@dataclass
class _Rank:
    """One process with its page, socket and output. `pid` None: not started, or dead."""

    world_id: WorldId
    number: int
    page: Page
    socket: RankSocket
    output: Output
    write_end: int
    pid: int | None = None
    library_pid: int = 0
    """Pid of the process that makes the steps, as it reported: it may be the child of a launcher."""
    dying_since: float | None = None
    """Set once dying is reported, or the agent has killed the rank."""
    exit: ProcessExit = ProcessExit(None, signal.SIGKILL)
    """The exit, as soon as it is known."""
    left: str = "it does not end"
    """Reason why a process of the rank still lives, if one does."""
    given_up: bool = False


@dataclass(frozen=True)
class LaunchSettings:
    """The constant parameters of starting ranks in this pod."""

    settings: WorkerConfig
    identity: PodIdentity
    launch: Launch
    python: str
    base: Mapping[str, str]
    shims: Shims
    folder: Path
    memory: Path | None = None
    """A folder that outlives ranks. Emptied when a plan begins a new server generation."""

    @property
    def slot(self) -> int:
        return self.identity.slot


class Ranks:
    """All ranks of this pod. `services`: pids (zygote, stores) that, with their sessions, are no orphans."""

    def __init__(
        self,
        how: LaunchSettings,
        reaper: Reaper,
        zygote: ZygoteClient,
        services: Callable[[], set[int]],
        post: Callable[[Event], None],
    ) -> None:
        self._how, self._reaper, self._zygote = how, reaper, zygote
        self._services, self._post = services, post
        self._ranks: dict[int, _Rank] = {}
        self._oom_kills = proc.oom_kills()
        self._lane, self._proc_lane = Lane("memory"), Lane("proc")

    async def start(self, plan: Plan, fork: bool) -> None:
        """Start all ranks of `plan` in this pod. A RankExited of each follows, also if it cannot start."""
        assert not self._ranks, "the machine starts a world only when the previous one is gone"
        numbers = plan.ranks(self._how.slot)
        if self._how.launch.per_pod:
            numbers = numbers[:1]
        fork = fork and await self._zygote.may_fork_ranks()
        for number in numbers:
            try:
                if self._how.memory and plan.origin is None and number == numbers[0]:
                    await asyncio.get_running_loop().run_in_executor(self._lane, empty, self._how.memory)
                rank = self._ranks[number] = self._prepare(plan.world_id, number)
                await self._start_one(rank, plan, fork)
            except _START_ERRORS as error:
                self._report_start_failure(plan.world_id, number, error)
        self._post(RanksStarted(plan.world_id))

    def kill(self, world_id: WorldId, numbers: Iterable[int]) -> None:
        self._signal(world_id, numbers, signal.SIGKILL)

    def terminate(self, world_id: WorldId, numbers: Iterable[int]) -> None:
        """SIGTERM, to the whole group of a launcher or shell, which does not always pass a signal on."""
        self._signal(world_id, numbers, signal.SIGTERM)

    def show_stacks(self, world_id: WorldId, numbers: Iterable[int]) -> None:
        """Print stacks to the ranks' own output; a StackShown of each rank follows."""
        for rank in [self._ranks[n] for n in numbers if n in self._ranks]:
            if rank.world_id == world_id and rank.pid is not None:
                background(self._show_stacks(rank))

    def send(self, world_id: WorldId, number: int, message: ToRank) -> None:
        rank = self._ranks.get(number)
        if rank and rank.world_id == world_id:
            rank.socket.send(message)

    def read_heartbeats(self) -> HeartbeatsRead | None:
        """Read all pages once; None if no rank lives."""
        heartbeats = {
            rank.number: heartbeat for rank in self._ranks.values() if (heartbeat := rank.page.read())
        }
        world_id = next((rank.world_id for rank in self._ranks.values()), None)
        return HeartbeatsRead(world_id, heartbeats) if world_id and heartbeats else None

    def poll_dying(self) -> None:
        """Report ranks that a signal is killing, so that peers stop while the kernel ends them, and ranks
        with a process that does not end.
        """
        for rank in tuple(self._ranks.values()):
            if rank.pid and rank.dying_since is None and (number := proc.deadly_signal(rank.pid)):
                self._report_dying(rank, number)
            is_late = (
                rank.dying_since is not None and time.monotonic() > rank.dying_since + SESSION_END_SECONDS
            )
            if is_late and not rank.given_up:
                rank.given_up = True
                log(f"rank {rank.number} has not ended after {SESSION_END_SECONDS:g} s: {rank.left}")
                self._post(RankUnkillable(rank.world_id, rank.number, rank.exit, rank.left))

    # ---- starting

    def _prepare(self, world_id: WorldId, number: int) -> _Rank:
        folder = self._how.folder / str(world_id)
        folder.mkdir(exist_ok=True)

        def receive(message: FromRank) -> None:
            if number in self._ranks and message.hello_pid:
                self._ranks[number].library_pid = message.hello_pid
            self._post(RankMessage(world_id, number, message))

        with contextlib.ExitStack() as cleanup:  # all of them, or none
            page = Page(folder / f"page-{number}")
            cleanup.callback(page.close)
            secret = servers_secret(self._how.identity.token) if self._how.settings.servers else ""
            socket = RankSocket(folder / f"rank-{number}.sock", receive, secret)
            cleanup.callback(socket.close)
            read_end, write_end = os.pipe()
            cleanup.pop_all()
        return _Rank(world_id, number, page, socket, Output(read_end, f"rank {number}"), write_end)

    def _report_start_failure(self, world_id: WorldId, number: int, error: Exception) -> None:
        log(f"rank {number} cannot be started: {error}")
        if rank := self._ranks.get(number):
            self._release(rank)
        text = f"cannot start: {error}"
        self._post(RankExited(world_id, number, ProcessExit(127, None, fingerprint=text, message=text)))

    async def _start_one(self, rank: _Rank, plan: Plan, fork: bool) -> None:
        environment = self._environment(rank, plan)
        launch, reaper = self._how.launch, self._reaper
        local_rank = rank.number - plan.first_rank(self._how.slot)
        if fork:
            request = {
                "kind": launch.run.value,
                "argv": launch.arguments(local_rank),
                "env": environment,
                "cwd": str(Path.cwd() / launch.cwd),
            }
            try:
                with reaper.expecting():
                    rank.pid = await self._zygote.fork("rank", request, (rank.write_end,))
                    reaper.watch(rank.pid, lambda status: self._record_exit(rank, status))
            except OSError as error:
                log(f"rank {rank.number} is exec'ed, because it cannot be forked: {error}")
                # The fork may have succeeded without an answer: two processes would be the same rank.
                await within(SESSION_END_SECONDS, self._end_orphans(rank, _NO_SESSION))
        if rank.pid is None:
            rank.pid = spawn(self._argv(local_rank, plan), environment, rank.write_end, cwd=launch.cwd)
            reaper.watch(rank.pid, lambda status: self._record_exit(rank, status))
        os.close(rank.write_end)
        rank.write_end = -1

    def _argv(self, local_rank: int, plan: Plan) -> list[str]:
        launch = self._how.launch
        if launch.per_pod:
            return list(launch.joined(rendezvous_address(self._how.settings, plan, self._how.slot)))
        argv = launch.arguments(local_rank)
        if launch.run is Run.COMMAND:
            return list(argv)
        return [self._how.python, *launch.flags, self._how.shims.rank, launch.run.value, *argv]

    def _environment(self, rank: _Rank, plan: Plan) -> dict[str, str]:
        how = self._how
        if how.launch.per_pod:
            environment = launcher_environment(how.base, how.settings, plan, how.identity)
        else:
            environment = rank_environment(how.base, how.settings, plan, how.identity, rank.number)
        environment["PYTHONPATH"] = how.shims.python_path(how.base)
        environment[config.AGENT_SOCKET] = str(rank.socket.path)
        member = plan.member(how.slot)
        if not how.launch.per_pod or (member and member.processes == 1):
            environment[config.RANK_PAGE] = str(rank.page.path)
            environment[config.RANK_SOCKET] = str(rank.socket.path)
        return environment

    # ---- stacks

    async def _show_stacks(self, rank: _Rank) -> None:
        """Print the stacks of one process after the other: they share their output."""
        first, *others = self._processes(rank)
        self._post(StackShown(rank.world_id, rank.number, await self._dump(rank, first, first) or Hang()))
        for pid in others:
            await self._dump(rank, pid, first)

    def _processes(self, rank: _Rank) -> list[int]:
        """The process that makes the steps, then the others of the rank."""
        own = {rank.pid or 0}
        with contextlib.suppress(OSError):
            own |= proc.below(own, proc.processes())
        first = rank.library_pid if rank.library_pid in own else rank.pid or 0
        return [first, *sorted(own - {first})][:MOST_STACKS]

    async def _dump(self, rank: _Rank, pid: int, first: int) -> Hang | None:
        """Print the stacks of one process. None: no stack. A process that the signal would kill gets none."""
        if rank.pid is None or not proc.catches(pid, childhooks.STACKS_SIGNAL):
            return None
        log(f"rank {rank.number} makes no step, these are the stacks of process {pid}:")
        rank.output.note(True, aside=pid != first)
        proc.kill(pid, childhooks.STACKS_SIGNAL)
        shown = None
        for _ in range(STACK_LOOKS):
            await asyncio.sleep(STACK_SECONDS)
            before, shown = shown, stacks.hang_in(rank.output.noted)
            if shown is not None and shown == before:
                break
        rank.output.note(False)
        return shown

    # ---- ending

    def _signal(self, world_id: WorldId, numbers: Iterable[int], number: int) -> None:
        for rank in [self._ranks[n] for n in numbers if n in self._ranks]:
            if rank.world_id == world_id and rank.pid is not None:
                is_group = number == signal.SIGTERM and self._how.launch.per_pod
                if number == signal.SIGKILL:
                    rank.dying_since = rank.dying_since or time.monotonic()
                if refused := proc.kill(-rank.pid if is_group else rank.pid, number):
                    rank.left = f"its process {rank.pid} cannot be killed: {refused}"

    def _report_dying(self, rank: _Rank, number: int) -> None:
        """Report that a rank is dying, once, unless its script has ended: its exit may be clean then."""
        rank.dying_since = time.monotonic()
        heartbeat = rank.page.read() or Beat()
        if not heartbeat.reached_end:
            self._post(HeartbeatsRead(rank.world_id, {rank.number: heartbeat}))
            self._post(RankDying(rank.world_id, rank.number, ProcessExit(None, number)))

    def _record_exit(self, rank: _Rank, status: int) -> None:
        """Record the exit of a rank; called by the reaper, once."""
        pid, rank.pid = rank.pid, None
        oom_kills = proc.oom_kills()
        was_oom, self._oom_kills = oom_kills > self._oom_kills, max(oom_kills, self._oom_kills)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if number is None else None
        oom = was_oom and (number == signal.SIGKILL or (self._how.launch.per_pod and code != 0))
        if number and rank.dying_since is None:
            self._report_dying(rank, number)
        rank.dying_since = rank.dying_since or time.monotonic()
        rank.exit = ProcessExit(code, number, oom=oom)
        background(self._reap_session(rank, pid or 0, rank.exit))

    async def _reap_session(self, rank: _Rank, session: int, exit: ProcessExit) -> None:
        """Kill the descendants of a dead rank, then report its exit."""
        await self._end_orphans(rank, session)
        rank.socket.drain()
        heartbeat = rank.page.read() or Beat()
        self._release(rank)
        self._post(HeartbeatsRead(rank.world_id, {rank.number: heartbeat}))
        full_exit = ProcessExit(
            exit.code,
            exit.signal,
            oom=exit.oom,
            reached_end=heartbeat.reached_end,
            last_lines=rank.output.last_lines(),
        )
        self._post(RankExited(rank.world_id, rank.number, full_exit))

    async def _end_orphans(self, rank: _Rank, session: int) -> None:
        pause = RESCAN_SECONDS
        while await self._kill_orphans(rank, session):
            with contextlib.suppress(TimeoutError):
                self._reaper.changed.clear()
                await within(pause, self._reaper.changed.wait())
            pause = min(1.1 * pause, ORPHAN_POLL_SECONDS)

    async def _kill_orphans(self, dead: _Rank, session: int) -> bool:
        """Kill the orphans of a dead rank. False: none are left."""
        try:
            orphans = await self._orphans(dead, session)
        except OSError as error:
            dead.left = f"what is left of it cannot be found: {error}"
            return True
        refused = {pid: why for pid in orphans if (why := proc.kill(pid))}
        refusals = [f"process {pid} that it started cannot be killed: {why}" for pid, why in refused.items()]
        dead.left = "; ".join(refusals) or f"processes that it started do not end: {sorted(orphans)}"
        return bool(orphans)

    async def _orphans(self, dead: _Rank, session: int) -> set[int]:
        """Processes that the dead rank left alive, and unowned ones if those must be killed too."""
        table = proc.processes()
        services = self._services()
        living = {rank.pid for rank in self._ranks.values() if rank.pid is not None}
        protected = services | living
        others = proc.below([os.getpid()], table) - protected - proc.below(protected, table)
        # A store that has just been forked is in the zygote's session, and its pid is not known yet.
        others = {pid for pid in others if table[pid].session not in services}
        own = {pid for pid in others if table[pid].session == session}
        unowned = {pid for pid in others - own if table[pid].session not in living}
        pages = await self._page_paths(unowned, dead) if unowned else {}
        own |= {pid for pid in unowned if pages[pid] == str(dead.page.path)}
        if not living or not dead.exit.clean:
            of_others = {str(rank.page.path) for rank in self._ranks.values() if rank.pid is not None}
            own |= {pid for pid in unowned if pages[pid] not in of_others}
        return own | proc.below(own, table)

    async def _page_paths(self, pids: set[int], dead: _Rank) -> dict[int, str]:
        """Path of the page that each process was started with. Blocks while one hangs in the kernel."""
        dead.left = f"the kernel does not report the ranks of these processes: {sorted(pids)}"
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._proc_lane, lambda: {pid: proc.variable(pid, config.RANK_PAGE) for pid in pids}
        )

    def _release(self, rank: _Rank) -> None:
        if rank.write_end >= 0:
            os.close(rank.write_end)
        rank.output.close()
        rank.socket.close()
        rank.page.close()
        del self._ranks[rank.number]
