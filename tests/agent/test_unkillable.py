"""Ranks that cannot be killed, started or received from are reported all the same, and hold up nothing
else."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from pathlib import Path

import pytest
from lab.waiting import wait_until_async
from tests.agent.harness import a_plan, exit_of
from tests.agent.life import Life, killed
from tests.agent.life import a_plan as world

from ropeteam_trainer.agent.machine.effects import Exit, KillRanks
from ropeteam_trainer.agent.machine.events import RankUnkillable
from ropeteam_trainer.agent.processes.ranksocket import RankSocket
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import ProcessExit

ERROR = ProcessExit(1, None, message="ValueError")
LEFT = "process 7 that it started cannot be killed"
# Root without CAP_KILL may kill its own processes only, as an agent that is not root.
WITHOUT_CAP_KILL = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_KILL = 24, 5
assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_KILL) == 0
code = '''
from ropeteam_trainer.agent import main
from ropeteam_trainer.agent.processes import ranks
assert ranks.SESSION_END_SECONDS > 1
ranks.SESSION_END_SECONDS = 1
exit(main.main())
'''
os.execv(sys.executable, [sys.executable, '-c', code, *sys.argv[1:]])
"""
STRAY = """
import os, time
begun, begins = os.pipe()
if os.fork() == 0:
    os.setuid(65534)
    os.write(begins, b'.')
    time.sleep(1000)
os.read(begun, 1)
raise SystemExit(5)
"""
# A process that hangs in the kernel cannot be had in a test, so what the kernel would say is held back.
WITHOUT_ENVIRONMENTS = """
import sys, time
from ropeteam_trainer.agent.processes import proc
from ropeteam_trainer.agent.processes import ranks
from ropeteam_trainer.agent import main
assert ranks.SESSION_END_SECONDS > 1
ranks.SESSION_END_SECONDS = 1
proc.environment_variable = lambda pid, name: time.sleep(1000)
sys.exit(main.main())
"""
DAEMON = """
import os, time
begun, begins = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(begins, b'.')
    time.sleep(1000)
os.read(begun, 1)
raise SystemExit(5)
"""


async def test_an_environment_that_the_kernel_holds_back_stops_no_report(pod, coordinator):
    (pod.folder / "x.py").write_text(DAEMON)
    pod.start("python3", "x.py", agent=(sys.executable, "-c", WITHOUT_ENVIRONMENTS))
    coordinator.order(plan=a_plan())
    report = await coordinator.wait_for(lambda r: r.ranks and r.ranks[0].phase is RankPhase.EXITED)
    assert exit_of(report).code == 5
    assert "the kernel does not report the ranks of these processes: [" in exit_of(report).message
    assert await pod.exit_code() == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of somebody else's takes root")
async def test_a_stray_that_cannot_be_killed_is_reported_and_ends_the_container(pod, coordinator):
    (pod.folder / "x.py").write_text(STRAY)
    pod.start("python3", "x.py", agent=(sys.executable, "-c", WITHOUT_CAP_KILL))
    coordinator.order(plan=a_plan())
    report = await coordinator.wait_for(lambda r: r.ranks and r.ranks[0].phase is RankPhase.EXITED)
    assert exit_of(report).code == 5
    assert "that it started cannot be killed: " in exit_of(report).message
    assert not report.stopped
    assert await pod.exit_code() == 3
    assert "rank 0 has not ended 1 s after its kill or exit: process" in pod.text()


def test_a_rank_that_cannot_be_reaped_ends_the_agent_once_the_others_are_dead():
    life = Life().running().receives(RankUnkillable(world().world_id, 0, ERROR, LEFT))
    assert life.did_a(KillRanks).ranks == (0, 1)
    assert life.did_no(Exit)
    assert not life.report.stopped
    assert life.report.ranks[0].exit.message == f"ValueError; {LEFT}"
    life.died(1)
    assert life.did_a(Exit).code == 3
    assert not life.report.stopped


def test_what_is_left_of_a_rank_that_was_done_ends_with_the_release():
    life = Life().running()
    for rank in (0, 1):
        life.receives(RankUnkillable(world().world_id, rank, ProcessExit(0, None), LEFT))
    assert life.did_no(Exit)
    assert all(each.phase is RankPhase.EXITED and each.exit.clean for each in life.report.ranks)
    life.ordered(complete=world().world_id).ordered(release=True)
    assert life.did_a(Exit).code == 0


def test_what_is_left_of_a_rank_that_was_done_keeps_no_next_world_waiting():
    life = Life().running().receives(RankUnkillable(world().world_id, 0, ProcessExit(0, None), LEFT))
    life.ordered(plan=world(2)).died(1)
    assert life.did_a(Exit).code == 3


def test_a_rank_that_is_reaped_late_ends_no_agent():
    life = Life().running().receives(RankUnkillable(world().world_id, 0, killed(), LEFT))
    life.died(0)
    assert life.did_no(Exit)
    assert life.died(1).did_a(Exit).code == 3


@pytest.mark.parametrize("obstacle", ["1.0.1", "1.0.1/page-0/x", "1.0.1/rank-0.sock/x"])
async def test_a_rank_that_cannot_be_prepared_is_an_exit_and_leaves_nothing(pod, coordinator, obstacle):
    (pod.folder / "x.py").write_text("import time; time.sleep(1000)")
    pod.start("python3", "x.py")
    await coordinator.wait_for(lambda _: True)
    inside = pod.folder / "state" / obstacle
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.write_text("")
    before = descriptors(pod.pid)
    coordinator.order(plan=a_plan())
    exit = exit_of(await coordinator.wait_for(lambda r: r.plan and r.stopped))
    assert exit.code == 127
    assert exit.message.startswith("cannot start: ")
    await wait_until_async("no descriptor is left open", lambda: descriptors(pod.pid) == before)
    coordinator.order(plan=a_plan(2))
    await coordinator.wait_for(lambda r: r.ranks and r.ranks[0].phase is RankPhase.RUNNING)


async def test_a_rank_whose_files_cannot_be_removed_is_reaped_all_the_same(pod, coordinator):
    (pod.folder / "x.py").write_text("import time; time.sleep(1000)")
    pod.start("python3", "x.py")
    coordinator.order(plan=a_plan())
    await coordinator.wait_for(lambda r: r.ranks and r.ranks[0].phase is RankPhase.RUNNING)
    for name in ("page-0", "rank-0.sock"):
        path = pod.folder / "state/1.0.1" / name
        path.unlink()
        path.mkdir()
    coordinator.order(plan=None)
    await coordinator.wait_for(lambda r: r.stopped)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


# ---- the rank's socket


class Library:
    """A rank's end of its socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.sendall(codec.encode(FromRank(hello_pid=1)) + b"\n")
        self.socket.setblocking(False)
        self.lines = b""

    def received(self) -> list[ToRank]:
        """All whole messages so far."""
        try:
            while data := self.socket.recv(1 << 16):
                self.lines += data
        except BlockingIOError:
            pass
        return [codec.decode(ToRank, line) for line in self.lines.split(b"\n")[:-1]]


async def test_of_what_a_rank_did_not_read_it_gets_the_newest_when_it_reads_again(tmp_path):
    received: list[FromRank] = []
    peer = RankSocket(tmp_path / "s", received.append)
    library = Library(peer.path)
    await wait_until_async("the library's first message is received", lambda: received)
    servers = tuple("x" * 100 for _ in range(100))
    for step in range(200):  # 2 MB: the socket's buffer is full long before
        peer.send(ToRank(stop_at=step, servers=servers))
    peer.send(ToRank(pause=True, stop_at=1000))
    await wait_until_async(
        "the pause is received", lambda: ToRank(pause=True, stop_at=1000) in library.received()
    )
    steps = [message.stop_at or 0 for message in library.received()]
    assert steps == sorted(steps)
    assert len(steps) < 200, "its buffer was never full"
    peer.close()
    library.socket.close()


async def test_a_library_that_connects_again_receives_the_state_again(tmp_path):
    peer = RankSocket(tmp_path / "s", lambda _: None)
    peer.send(ToRank(pause=True))
    for _ in range(2):
        library = Library(peer.path)
        await wait_until_async("the pause is received", lambda: library.received() == [ToRank(pause=True)])  # noqa: B023
        library.socket.close()
    peer.close()


async def test_a_rank_is_received_once_there_is_a_descriptor_for_it(tmp_path, capfd):
    received: list[FromRank] = []
    peer = RankSocket(tmp_path / "s", received.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    library = Library(peer.path)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        await asyncio.sleep(0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not received
    assert "cannot accept a connection of a rank" in capfd.readouterr().err
    await wait_until_async("the library's first message is received", lambda: received)
    peer.close()
    library.socket.close()
