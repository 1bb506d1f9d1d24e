"""Real agents and ranks: files of multiprocessing in the pod's temporary folder, which a rank that is killed
cannot remove itself."""

from __future__ import annotations

import os
import signal
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

import pytest
from lab.waiting import wait_until_async
from tests.agent.harness import a_plan
from tests.agent.test_fork import a_world, zygote_is_warm

from ropeteam_trainer.agent.processes.rankprocess import create_folder
from ropeteam_trainer.contract.config import Start

LISTENS = """
import multiprocessing, os, sys, tempfile, time
from multiprocessing.connection import Listener

def listen():
    listener = Listener(family="AF_UNIX")
    print("LISTENS", listener.address, flush=True)
    time.sleep(1000)

if __name__ == "__main__":
    print("RANK", os.getpid(), flush=True)
    print("TEMPORARY", tempfile.gettempdir(), flush=True)
    multiprocessing.get_context(sys.argv[1]).Process(target=listen).start()
    time.sleep(1000)
"""
LOADS = """
import os, time, torch
loader = torch.utils.data.DataLoader(torch.zeros(99, 1), num_workers=1)
batches = iter(loader)
next(batches)
print("HOW", "forked" if "zygote.py" in open("/proc/self/cmdline").read() else "exec'ed", flush=True)
print("RANK", os.getpid(), flush=True)
time.sleep(1000)
"""


def left_in(*folders):
    return sorted(str(path) for folder in folders for path in folder.rglob("*"))


def is_socket(path):
    return Path(path).is_socket()


async def printed(pod, name):
    """The words that were printed behind this name."""
    await wait_until_async(pod.text, lambda: f"] {name} " in pod.text())
    return pod.text().partition(f"] {name} ")[2].partition("\n")[0]


async def kill_rank(pod, coordinator):
    """SIGKILL it, and not what it has started. Returns when the agent has reported its end."""
    os.kill(int(await printed(pod, "RANK")), signal.SIGKILL)
    await coordinator.wait_for(lambda r: r.plan and r.stopped)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_sockets_of_what_a_killed_rank_has_started_go_with_it(pod, coordinator, method):
    (pod.folder / "x.py").write_text(LISTENS)
    temporary = pod.folder / "t"
    temporary.mkdir()
    pod.start("python3", "x.py", method, TMPDIR=str(temporary))
    coordinator.order(plan=a_plan())
    socket = await printed(pod, "LISTENS")
    assert is_socket(socket)
    assert await printed(pod, "TEMPORARY") == str(temporary), "other files of the script are where they were"
    await kill_rank(pod, coordinator)
    assert not is_socket(socket)
    assert left_in(temporary) == []


async def test_a_shells_python_that_is_killed_with_it_leaves_no_sockets(pod, coordinator):
    (pod.folder / "x.py").write_text(LISTENS)
    temporary = pod.folder / "t"
    temporary.mkdir()
    pod.start("sh", "-c", "echo go; python3 x.py fork; true", TMPDIR=str(temporary))
    coordinator.order(plan=a_plan())
    assert is_socket(await printed(pod, "LISTENS"))
    await kill_rank(pod, coordinator)
    assert left_in(temporary) == []


async def test_a_forked_rank_that_is_killed_leaves_nothing_of_its_data_loader(make_pod, coordinator):
    pod = make_pod(start=Start.FORK)
    (pod.folder / "x.py").write_text(LOADS)
    temporary, state = pod.folder / "t", pod.folder / "state"
    temporary.mkdir()
    pod.start("python3", "x.py", ROPETEAM_STORE="", TMPDIR=str(temporary))
    await zygote_is_warm(pod)
    before = left_in(temporary, state)
    await a_world(coordinator, 1)
    assert await printed(pod, "HOW") == "forked"
    await wait_until_async("a socket of the data loader", lambda: [*state.glob("mp-0/*")])
    await kill_rank(pod, coordinator)
    assert left_in(temporary, state) == before


async def test_a_process_that_may_not_write_there_has_a_folder_of_its_own(pod, coordinator):
    """One under another user, for example. Here the folder is removed before Python looks."""
    (pod.folder / "x.py").write_text(LISTENS)
    temporary = pod.folder / "t"
    temporary.mkdir()
    command = 'rmdir "$ROPETEAM_MULTIPROCESSING" && exec python3 x.py fork'
    pod.start("sh", "-c", f"echo go; {command}", TMPDIR=str(temporary))
    coordinator.order(plan=a_plan())
    assert Path(await printed(pod, "LISTENS")).is_relative_to(temporary)


def test_the_longest_path_that_is_used_holds_a_socket(tmp_path):
    def listen(folder):
        with Listener(tempfile.mktemp(prefix="listener-", dir=folder)):  # as multiprocessing does it
            return True

    longest = tmp_path / ("x" * (88 - len(str(tmp_path))))
    assert create_folder(longest) == longest
    assert listen(longest)
    longer = longest.with_name(f"{longest.name}x")
    assert create_folder(longer) is None
    longer.mkdir()
    with pytest.raises(OSError, match="too long"):
        listen(longer)


def test_what_an_agent_that_was_killed_has_left_is_removed(tmp_path):
    left = tmp_path / "mp-0" / "listener-1"
    left.parent.mkdir()
    left.touch()
    assert create_folder(tmp_path / "mp-0") == tmp_path / "mp-0"
    assert left_in(tmp_path / "mp-0") == []
