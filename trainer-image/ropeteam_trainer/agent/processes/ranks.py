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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ropeteam_trainer.agent.executor import DaemonThreadExecutor
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine import stacks
from ropeteam_trainer.agent.machine.environment import servers_secret
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
from ropeteam_trainer.agent.processes.launchsettings import LaunchSettings
from ropeteam_trainer.agent.processes.memory import empty_folder
from ropeteam_trainer.agent.processes.output import Output
from ropeteam_trainer.agent.processes.page import Page
from ropeteam_trainer.agent.processes.rankprocess import RankProcess, create_folder, remove_folder
from ropeteam_trainer.agent.processes.ranksocket import RankSocket
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.spawn import spawn
from ropeteam_trainer.agent.processes.waiting import within
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient
from ropeteam_trainer.agent.script import childhooks
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.local import Beat, FromRank, ToRank
from ropeteam_trainer.contract.messages import Hang
from ropeteam_trainer.contract.world import Plan, ProcessExit, WorldId
from ropeteam_trainer.system.background import start_task

RESCAN_SECONDS, ORPHAN_POLL_SECONDS = 0.01, 0.5
"""Shortest and longest interval of the checks of a dying rank; it grows. SIGCHLD causes a check at once."""
SESSION_END_SECONDS = 30.0
"""From the signal that kills a rank until all its processes exited. Freeing hundreds of GiB takes seconds."""
STACK_SECONDS, STACK_LOOKS = 0.1, 10
"""Interval and number of the checks whether a process has printed its stacks."""
MOST_STACKS = 32
"""Processes of one rank whose stacks are requested: itself and its DataLoader workers, for example."""
_NO_SESSION = -1
_START_ERRORS = (OSError, ValueError, subprocess.SubprocessError)
"""No file, process or memory; a NUL in an argument; errors between fork and exec."""


class Ranks:
    """All ranks of this pod. `service_pids`: zygote and stores; they and their sessions are no orphans."""

    def __init__(
        self,
        settings: LaunchSettings,
        reaper: Reaper,
        zygote: ZygoteClient,
        service_pids: Callable[[], set[int]],
        post: Callable[[Event], None],
    ) -> None:
        self._settings, self._reaper, self._zygote = settings, reaper, zygote
        self._service_pids, self._post = service_pids, post
        self._processes: dict[int, RankProcess] = {}
        """By rank: those that are starting, live, or have descendants that live."""
        self._oom_kills = proc.oom_kill_count()
        self._memory_thread, self._proc_thread = DaemonThreadExecutor("memory"), DaemonThreadExecutor("proc")

    async def start(self, plan: Plan, ranks: Sequence[int], fork: bool) -> None:
        """Start ranks of `plan` in this pod, one after the other, then post RanksStarted. One that cannot
        start is posted as RankExited, and the others start. Precondition: none of them lives, nor one that
        the plan does not keep."""
        assert not {*ranks} & {*self._processes}, "the machine starts ranks only when those before are gone"
        world_id = plan.started_in(self._settings.slot)
        if self._settings.launch.per_pod:
            ranks = ranks[:1]
        fork = fork and await self._zygote.may_fork_ranks()
        loop, memory = asyncio.get_running_loop(), self._settings.memory
        for rank in ranks:
            try:
                if memory and plan.origin is None and rank == ranks[0]:
                    await loop.run_in_executor(self._memory_thread, empty_folder, memory)
                process = self._processes[rank] = self._prepare(world_id, rank)
                await self._start_process(process, plan, fork)
            except _START_ERRORS as error:
                self._report_start_failure(world_id, rank, error)
        self._post(RanksStarted(world_id))

    def kill(self, world_id: WorldId, ranks: Iterable[int]) -> None:
        """Send SIGKILL to those of `ranks` that run in this world. RankExited or RankUnkillable follows."""
        self._send_signal(world_id, ranks, signal.SIGKILL)

    def terminate(self, world_id: WorldId, ranks: Iterable[int]) -> None:
        """Send SIGTERM, to the whole group of a launcher or shell, which does not always pass a signal on."""
        self._send_signal(world_id, ranks, signal.SIGTERM)

    def show_stacks(self, world_id: WorldId, ranks: Iterable[int]) -> None:
        """Make these ranks print their stacks to their own output, in the background. A StackShown of each
        that runs follows."""
        for process in self._running(world_id, ranks):
            start_task(self._show_stacks(process))

    def send(self, world_id: WorldId, rank: int, message: ToRank) -> None:
        """Send a message; nothing happens if the rank is not of this world any more."""
        process = self._processes.get(rank)
        if process and process.world_id == world_id:
            process.socket.send(message)

    def read_heartbeats(self) -> HeartbeatsRead | None:
        """Read all pages once; None if there is no heartbeat."""
        heartbeats = {
            process.rank: heartbeat
            for process in self._processes.values()
            if (heartbeat := process.page.read())
        }
        world_id = next((process.world_id for process in self._processes.values()), None)
        return HeartbeatsRead(world_id, heartbeats) if world_id and heartbeats else None

    def poll_dying(self) -> None:
        """Post each RankDying, once: ranks that a signal is killing, so that peers stop while the kernel ends
        them. Post each RankUnkillable, once: ranks with a process that did not end in time."""
        for process in tuple(self._processes.values()):
            pid = process.pid if process.dying_since is None else None
            if pid and (signum := proc.deadly_signal(pid)):
                self._report_dying(process, signum)
            since = process.dying_since
            is_late = since is not None and time.monotonic() > since + SESSION_END_SECONDS
            if is_late and not process.is_reported_unkillable:
                process.is_reported_unkillable = True
                why = process.why_alive
                log(
                    f"rank {process.rank} has not ended {SESSION_END_SECONDS:g} s after its kill or exit: "
                    f"{why}. It ends with this container at the latest"
                )
                self._post(RankUnkillable(process.world_id, process.rank, process.exit, why))

    def _running(self, world_id: WorldId, ranks: Iterable[int]) -> list[RankProcess]:
        """The processes of those of `ranks` that run in this world."""
        found = (self._processes[rank] for rank in ranks if rank in self._processes)
        return [process for process in found if process.world_id == world_id and process.pid is not None]

    # ---- starting

    def _prepare(self, world_id: WorldId, rank: int) -> RankProcess:
        """Create page, socket, output and folder of a rank: all of them, or none. Raises OSError."""
        folder = self._settings.folder / str(world_id)
        folder.mkdir(exist_ok=True)

        def receive(message: FromRank) -> None:
            if rank in self._processes and message.hello_pid:
                self._processes[rank].library_pid = message.hello_pid
            self._post(RankMessage(world_id, rank, message))

        with contextlib.ExitStack() as cleanup:
            page = Page(folder / f"page-{rank}")
            cleanup.callback(page.close)
            has_servers = self._settings.config.servers
            secret = servers_secret(self._settings.identity.token) if has_servers else ""
            socket = RankSocket(folder / f"rank-{rank}.sock", receive, secret)
            cleanup.callback(socket.close)
            own_folder = create_folder(self._settings.folder / f"mp-{rank}")
            cleanup.callback(remove_folder, own_folder)
            read_end, write_end = os.pipe()
            cleanup.pop_all()
        output = Output(read_end, f"rank {rank}")
        return RankProcess(world_id, rank, page, socket, output, write_end, own_folder)

    def _report_start_failure(self, world_id: WorldId, rank: int, error: Exception) -> None:
        """Release what was prepared, and post the exit of a rank that could not be started: code 127, as of a
        shell that finds no program."""
        log(f"rank {rank} cannot be started: {error}")
        if process := self._processes.get(rank):
            self._release(process)
        text = f"cannot start: {error}"
        self._post(RankExited(world_id, rank, ProcessExit(127, None, fingerprint=text, message=text)))

    async def _start_process(self, process: RankProcess, plan: Plan, fork: bool) -> None:
        """Fork the rank if requested, else, or if that fails, exec it. Raises _START_ERRORS."""
        settings, launch, reaper = self._settings, self._settings.launch, self._reaper
        files = (process.page.path, process.socket.path, process.folder)
        environment = settings.environment(plan, process.rank, *files)
        local_rank = process.rank - plan.first_rank(settings.slot)
        if fork:
            request = {
                "kind": launch.run.value,
                "argv": launch.rank_argv(local_rank),
                "env": environment,
                "cwd": str(Path.cwd() / launch.cwd),
            }
            try:
                with reaper.expecting():
                    process.pid = await self._zygote.fork("rank", request, (process.write_end,))
                    reaper.watch(process.pid, lambda status: self._record_exit(process, status))
            except OSError as error:
                fork = False
                log(f"rank {process.rank} starts more slowly, by exec, because it cannot be forked: {error}")
                # The fork may have succeeded without an answer: two processes would be the same rank.
                await within(SESSION_END_SECONDS, self._end_orphans(process, _NO_SESSION))
        if not fork:  # one that was forked may have ended, and then has no pid any more
            argv = settings.argv(local_rank, plan)
            process.pid = spawn(argv, environment, process.write_end, cwd=launch.cwd)
            reaper.watch(process.pid, lambda status: self._record_exit(process, status))
        os.close(process.write_end)
        process.write_end = -1

    # ---- stacks

    async def _show_stacks(self, process: RankProcess) -> None:
        """Print the stacks of one process of the rank after the other: they share their output."""
        first, *others = self._pids(process)
        hang = await self._print_stacks(process, first, first)
        self._post(StackShown(process.world_id, process.rank, hang or Hang()))
        for pid in others:
            await self._print_stacks(process, pid, first)

    def _pids(self, process: RankProcess) -> list[int]:
        """Pids of the rank, at most MOST_STACKS: the process that makes the steps, then its descendants."""
        own = {process.pid or 0}
        with contextlib.suppress(OSError):
            own |= proc.descendants(own, proc.living_processes())
        first = process.library_pid if process.library_pid in own else process.pid or 0
        return [first, *sorted(own - {first})][:MOST_STACKS]

    async def _print_stacks(self, process: RankProcess, pid: int, first: int) -> Hang | None:
        """Make one process of the rank print its stacks, and wait until they are complete. Returns the place
        where it hangs. None: no stack was printed within STACK_LOOKS checks.

        A process without our handler would be killed by the signal, and gets none. Only the stacks of
        `first` count among the last lines of the rank.
        """
        if process.pid is None or not proc.has_signal_handler(pid, childhooks.STACKS_SIGNAL):
            return None
        log(f"rank {process.rank} makes no step, these are the stacks of process {pid}:")
        process.output.start_capture(counts_as_last_lines=pid == first)
        proc.send_signal(pid, childhooks.STACKS_SIGNAL)
        shown = None
        for _ in range(STACK_LOOKS):
            await asyncio.sleep(STACK_SECONDS)
            before, shown = shown, stacks.parse_hang(process.output.captured)
            if shown is not None and shown == before:  # complete: nothing was added since the last check
                break
        process.output.stop_capture()
        return shown

    # ---- ending

    def _send_signal(self, world_id: WorldId, ranks: Iterable[int], signum: int) -> None:
        """Send a signal to those of `ranks` that run in this world. The first SIGKILL sets `dying_since`:
        the time until RankUnkillable counts from it."""
        for process in self._running(world_id, ranks):
            assert process.pid is not None
            is_group = signum == signal.SIGTERM and self._settings.launch.per_pod
            if signum == signal.SIGKILL:
                process.dying_since = process.dying_since or time.monotonic()
            if refused := proc.send_signal(-process.pid if is_group else process.pid, signum):
                process.why_alive = f"its process {process.pid} cannot be killed: {refused}"

    def _report_dying(self, process: RankProcess, signum: int) -> None:
        """Set `dying_since`, and post that this signal is killing the rank, unless its script has ended: its
        exit may be clean then. The caller has checked that `dying_since` is None, so this is posted once."""
        process.dying_since = time.monotonic()
        heartbeat = process.page.read() or Beat()
        if not heartbeat.reached_end:
            self._post(HeartbeatsRead(process.world_id, {process.rank: heartbeat}))
            self._post(RankDying(process.world_id, process.rank, ProcessExit(None, signum)))

    def _record_exit(self, process: RankProcess, status: int) -> None:
        """Record the exit of a rank from its wait status, and begin to end its session. The reaper calls this
        once. A SIGKILL, or a launcher's failure, counts as out of memory if the container's count of OOM
        kills has grown since the last exit."""
        session, process.pid = process.pid or 0, None
        oom_kills = proc.oom_kill_count()
        was_oom, self._oom_kills = oom_kills > self._oom_kills, max(oom_kills, self._oom_kills)
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if signum is None else None
        oom = was_oom and (signum == signal.SIGKILL or (self._settings.launch.per_pod and code != 0))
        if signum and process.dying_since is None:
            self._report_dying(process, signum)
        process.dying_since = process.dying_since or time.monotonic()
        process.exit = ProcessExit(code, signum, oom=oom)
        start_task(self._end_session(process, session))

    async def _end_session(self, process: RankProcess, session: int) -> None:
        """Kill the descendants of a dead rank, wait for them, then post its exit. Order: its last messages,
        its last heartbeat, RankExited."""
        await self._end_orphans(process, session)
        process.socket.drain()
        heartbeat = process.page.read() or Beat()
        self._release(process)
        self._post(HeartbeatsRead(process.world_id, {process.rank: heartbeat}))
        assert process.exit is not None
        last_lines = process.output.last_lines()
        full_exit = replace(process.exit, reached_end=heartbeat.reached_end, last_lines=last_lines)
        self._post(RankExited(process.world_id, process.rank, full_exit))

    async def _end_orphans(self, dead: RankProcess, session: int) -> None:
        """Kill the orphans of a dead rank until none is left, which may take for ever. `session`: the rank's
        own, or _NO_SESSION."""
        pause = RESCAN_SECONDS
        while await self._kill_orphans(dead, session):
            with contextlib.suppress(TimeoutError):
                self._reaper.changed.clear()
                await within(pause, self._reaper.changed.wait())
            pause = min(1.1 * pause, ORPHAN_POLL_SECONDS)

    async def _kill_orphans(self, dead: RankProcess, session: int) -> bool:
        """Kill the orphans of a dead rank, and record why they are alive. False: none was left."""
        try:
            orphans, unknown = await self._orphans(dead, session)
        except OSError as error:
            dead.why_alive = f"its remaining processes cannot be found: {error}"
            return True
        refused = {pid: why for pid in orphans if (why := proc.send_signal(pid))}
        refusals = [f"process {pid} that it started cannot be killed: {why}" for pid, why in refused.items()]
        alive = sorted(orphans | unknown)
        dead.why_alive = "; ".join(refusals) or f"processes that it started do not end: {alive}"
        return bool(alive)

    async def _orphans(self, dead: RankProcess, session: int) -> tuple[set[int], set[int]]:
        """Pids of what a dead rank left alive, with all their descendants, and of what may be left, or be the
        rank that is being forked: its pid is not known yet. Raises OSError.

        Searched are all descendants of the agent, without services, living ranks, and what is below those.
        The rank's own: processes in its session, or started with its page. Processes in the session of no
        rank, and without the page of a living one, are of some rank: they are included if no rank lives any
        more, or if this one did not exit cleanly.
        """
        table = proc.living_processes()
        services = self._service_pids()
        living = {process.pid for process in self._processes.values() if process.pid is not None}
        is_forking = any(each.write_end >= 0 for each in self._processes.values() if each is not dead)
        protected = services | living
        others = proc.descendants([os.getpid()], table) - protected - proc.descendants(protected, table)
        # A store that has just been forked is in the zygote's session, and its pid is not known yet.
        others = {pid for pid in others if table[pid].session not in services}
        own = {pid for pid in others if table[pid].session == session}
        unowned = {pid for pid in others - own if table[pid].session not in living}
        pages = await self._page_paths(unowned, dead) if unowned else {}
        own |= {pid for pid in unowned if pages[pid] == str(dead.page.path)}
        unknown: set[int] = set()
        if not living or not dead.exit.clean:
            alive = (process for process in self._processes.values() if process.pid is not None)
            of_others = {str(process.page.path) for process in alive}
            unknown = {pid for pid in unowned - own if pages[pid] not in of_others}
        if not is_forking:
            own, unknown = own | unknown, set()
        return own | proc.descendants(own, table), unknown

    async def _page_paths(self, pids: set[int], dead: RankProcess) -> dict[int, str]:
        """By pid: path of the page that each process was started with; "" if there is none. Waits while a
        process hangs in the kernel, which `dead.why_alive` says meanwhile. Raises OSError."""
        dead.why_alive = f"the kernel does not report the ranks of these processes: {sorted(pids)}"
        return await asyncio.get_running_loop().run_in_executor(
            self._proc_thread,
            lambda: {pid: proc.environment_variable(pid, config.RANK_PAGE) for pid in pids},
        )

    def _release(self, process: RankProcess) -> None:
        """Close and remove all that the agent holds of a rank, and forget it."""
        process.close()
        del self._processes[process.rank]
