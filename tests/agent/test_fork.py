"""With torch: a store held by the agent, and ranks forked from the zygote."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from lab.waiting import wait_until_async
from tests.agent.harness import a_plan, exit_of
from tests.agent.scripts import facts, under_python, write_scripts

from ropeteam_trainer.contract.config import Start
from ropeteam_trainer.contract.world import WorldId

REDUCE = """
import os, random, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
started = "forked" if "zygote.py" in open("/proc/self/cmdline").read() else "exec'ed"
print(started, "sum", x.item(), "parent", os.getppid(), "session", os.getsid(0) == os.getpid(), flush=True)
print("random", torch.rand(1).item(), "threads", torch.get_num_threads(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def listening():
    """Addresses of this machine's listening TCP sockets, as the kernel writes them."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return [fields[1] for fields in sockets if fields[3] == "0A"]


async def a_world(coordinator, n, processes=1):
    """Host a store and run world n on it."""
    world_id = WorldId(1, 0, n)
    coordinator.order(plan=None, host_store=world_id)
    report = await coordinator.wait_for(lambda r: r.store and r.store.world_id == world_id and r.stopped)
    plan = a_plan(n, processes=processes, store_host=report.store.host, store_port=report.store.port)
    coordinator.order(plan=plan)
    return plan


async def ended(coordinator, plan):
    return await coordinator.wait_for(lambda r: r.plan == plan and r.stopped)


def zygotes(pod):
    """The zygote, and what it has forked."""
    return {pid for pid, line in pod.living().items() if "zygote.py" in line}


def stores(pod, zygote):
    """Processes that it has forked, but for the process in between, which forks the orphan and ends."""
    return {pid for pid in zygotes(pod) - {zygote} if parent(pid) not in (zygote, None)}


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


async def zygote_is_warm(pod):
    await wait_until_async(pod.text, lambda: "[ropeteam agent] ranks can be forked" in pod.text())


@pytest.mark.parametrize(("start", "how"), [(Start.EXEC, "exec'ed"), (Start.FORK, "forked")])
async def test_ranks_join_in_the_agents_store_whether_execed_or_forked(make_pod, coordinator, start, how):
    pod = make_pod(processes=2, start=start)
    (pod.folder / "x.py").write_text(REDUCE)
    pod.start("python3", "x.py", ROPETEAM_STORE="", OMP_NUM_THREADS="2")
    for n in (1, 2):
        report = await ended(coordinator, await a_world(coordinator, n, processes=2))
        assert all(rank.exit.clean for rank in report.ranks), pod.text()
    await wait_until_async(pod.text, lambda: pod.text().count("threads") >= 4)
    lines = [line.split("] ", 1)[1] for line in pod.text().splitlines() if " sum " in line]
    assert lines == [f"{how} sum 2.0 parent {pod.pid} session True"] * 4, "the first world, too"
    looks = [line.split("] ")[1] for line in pod.text().splitlines() if "random" in line]
    assert all(look.endswith("threads 2") for look in looks)
    assert len(set(looks)) == 4, "random numbers are a process's own until the script seeds them"


@pytest.mark.parametrize(
    ("command", "plainly"),
    [
        (("python3", "x.py", "--lr", "1"), ("x.py", "--lr", "1")),
        (("python3", "-m", "pkg.train", "--lr", "1"), ("-m", "pkg.train", "--lr", "1")),
    ],
)
async def test_a_forked_script_sees_what_python_shows_it(make_pod, coordinator, command, plainly):
    pod = make_pod(start=Start.FORK)
    write_scripts(pod.folder)
    pod.start(*command, ROPETEAM_STORE="")
    await zygote_is_warm(pod)
    report = await ended(coordinator, await a_world(coordinator, 1))
    assert exit_of(report).clean, pod.text()
    assert exit_of(report).reached_end
    await pod.printed("FACTS")
    assert facts(pod.text()) == under_python(pod.folder, *plainly)


FAULTS = """
import os, sys, time
n = int(os.environ["ROPETEAM_WORLD"].split(".")[2])
if n == 1: raise ValueError("bad lr")
if n == 2: os.kill(os.getpid(), 11)
if n == 3: sys.exit(9)
if os.fork() == 0: os.setsid()
os.write(1, b"pid %d\\n" % os.getpid())  # in one piece: two processes write here
time.sleep(1000)
"""


async def test_faults_of_forked_ranks_are_reported_as_those_of_any_other(make_pod, coordinator):
    pod = make_pod(start=Start.FORK)
    (pod.folder / "x.py").write_text(FAULTS)
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    await zygote_is_warm(pod)
    reported = [exit_of(await ended(coordinator, await a_world(coordinator, n))) for n in (1, 2, 3)]
    assert [exit.fingerprint for exit in reported] == ["ValueError at x.py:4", "SIGSEGV", "exit 9"]
    await a_world(coordinator, 4)
    await wait_until_async(pod.text, lambda: pod.text().count("] pid") == 2)
    pids = {int(line.split()[-1]) for line in pod.text().splitlines() if "] pid" in line}
    coordinator.order(plan=None)
    await coordinator.wait_for(lambda r: r.stopped)
    assert not pids & set(pod.living()), "with its child that left session and has no environment of its own"


async def test_a_dead_zygote_and_a_dead_store_are_replaced(make_pod, coordinator):
    pod = make_pod(start=Start.AUTO)
    (pod.folder / "x.py").write_text(REDUCE)
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    world_id = WorldId(1, 0, 1)
    coordinator.order(host_store=world_id)
    first = await coordinator.wait_for(lambda r: r.store)
    for pid, line in pod.living().items():
        if "zygote.py" in line:
            os.kill(pid, signal.SIGKILL)
    again = await coordinator.wait_for(lambda r: r.store and r.store != first.store)
    assert again.store.world_id == world_id
    report = await ended(coordinator, await a_world(coordinator, 2))
    assert exit_of(report).clean, pod.text()


DIES_INSTEAD_OF_ITS_FIRST_FORK = """
import os, signal, sys, time
from pathlib import Path
def fork(fork=os.fork):
    if not os.path.exists("killed"):
        while not os.path.exists("published"):
            time.sleep(0.01)
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return fork()
if any(word.endswith("zygote.py") for word in sys.orig_argv):
    os.fork = fork
"""


async def test_a_zygote_that_dies_before_it_forks_a_published_store_ends_that_world_aloud(
    make_pod, coordinator
):
    pod = make_pod()
    (pod.folder / "sitecustomize.py").write_text(DIES_INSTEAD_OF_ITS_FIRST_FORK)
    (pod.folder / "x.py").write_text(REDUCE)
    pod.start("python3", "x.py", ROPETEAM_STORE="", PYTHONPATH=str(pod.folder))
    plan = await a_world(coordinator, 1)
    await coordinator.wait_for(lambda r: r.plan == plan)
    (pod.folder / "published").touch()
    exit = exit_of(await ended(coordinator, plan))
    assert (pod.folder / "killed").exists()
    assert "the TCPStore of world 1.0.1" in exit.message, "not whatever the rank made of it"
    report = await ended(coordinator, await a_world(coordinator, 2))
    assert exit_of(report).clean, pod.text()


async def test_a_store_that_dies_before_any_rank_has_come_ends_its_world_aloud(make_pod, coordinator):
    pod = make_pod()
    (pod.folder / "x.py").write_text(
        "import os, time\nif not os.path.exists('go'): time.sleep(1000)\n" + REDUCE
    )
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    await wait_until_async(pod.text, lambda: zygotes(pod))
    (zygote,) = zygotes(pod)
    plan = await a_world(coordinator, 1)
    await coordinator.wait_for(lambda r: r.plan == plan and not r.stopped)
    await wait_until_async(pod.text, lambda: stores(pod, zygote))
    (store,) = stores(pod, zygote)
    os.kill(store, signal.SIGKILL)
    exit = exit_of(await ended(coordinator, plan))
    assert exit.signal == signal.SIGKILL
    assert not exit.killed, "this is what ended the world, not a consequence"
    assert "the TCPStore of world 1.0.1" in exit.message
    (pod.folder / "go").touch()
    report = await ended(coordinator, await a_world(coordinator, 2))
    assert exit_of(report).clean, pod.text()


async def test_the_end_of_a_store_in_which_a_rank_is_to_join_others_is_reported_and_kills_none(
    make_pod, coordinator
):
    pod = make_pod(processes=2)
    (pod.folder / "x.py").write_text("import time\ntime.sleep(1000)\n")
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    await wait_until_async(pod.text, lambda: zygotes(pod))
    (zygote,) = zygotes(pod)
    first = await a_world(coordinator, 1, processes=2)
    await coordinator.wait_for(lambda r: r.plan == first and all(rank.phase == "Running" for rank in r.ranks))
    await wait_until_async(pod.text, lambda: stores(pod, zygote))
    old, second = stores(pod, zygote), WorldId(1, 0, 2)
    coordinator.order(lost=(1,), host_store=second)
    store = (await coordinator.wait_for(lambda r: r.store and r.store.world_id == second)).store
    members = (replace(first.members[0], started_in=first.world_id),)
    address = {"store_host": store.host, "store_port": store.port}
    plan = a_plan(2, members=members, origin=first.world_id, started=(1,), **address)
    coordinator.order(plan=plan, lost=(), host_store=None)
    await coordinator.wait_for(lambda r: r.plan == plan and all(rank.phase == "Running" for rank in r.ranks))
    await wait_until_async(pod.text, lambda: not stores(pod, zygote) & old)
    (pid,) = await wait_until_async(pod.text, lambda: stores(pod, zygote) - old)
    os.kill(pid, signal.SIGKILL)
    report = await coordinator.wait_for(lambda r: r.lost_store)
    assert (report.lost_store, [rank.exit for rank in report.ranks]) == (second, [None, None])


HOLDS_ITS_SECOND_FORK = """
import os, sys, time
write = os.write
def held(fd, data):
    if data == b"g":
        with open("forks", "a") as file:
            file.write("x")
        while os.path.getsize("forks") > 1 and not os.path.exists("go"):
            time.sleep(0.01)
    return write(fd, data)
if any(word.endswith("zygote.py") for word in sys.orig_argv):
    os.write = held
"""
"""As on a busy machine: a child of the zygote is the agent's already, which does not know its number yet."""


async def test_a_rank_that_is_reaped_while_a_store_starts_does_not_take_it_along(make_pod, coordinator):
    pod = make_pod()
    (pod.folder / "sitecustomize.py").write_text(HOLDS_ITS_SECOND_FORK)
    first_sleeps = "import os, time\nif os.environ['ROPETEAM_WORLD'] == '1.0.1': time.sleep(1000)\n"
    (pod.folder / "x.py").write_text(first_sleeps + REDUCE)
    pod.start("python3", "x.py", ROPETEAM_STORE="", PYTHONPATH=str(pod.folder))
    plan = await a_world(coordinator, 1)
    await coordinator.wait_for(lambda r: r.plan == plan and not r.stopped)
    forks = pod.folder / "forks"
    await wait_until_async(pod.text, forks.exists)  # the first world's store
    coordinator.order(host_store=WorldId(1, 0, 2))
    await wait_until_async(pod.text, lambda: forks.stat().st_size > 1)
    coordinator.order(plan=None)
    await ended(coordinator, plan)
    (pod.folder / "go").touch()
    report = await ended(coordinator, await a_world(coordinator, 2))
    assert exit_of(report).clean, pod.text()
    assert "the TCPStore of world" not in pod.text(), "none was lost, and started again"


HOLDS_AN_ANSWER = """
import os, sys, time
write, forks = os.write, []
def held(fd, data):
    done = write(fd, data)
    if data == b"g":
        forks.append(fd)
        while len(forks) == int(os.environ["HELD"]) and not os.path.exists("go"):
            time.sleep(0.01)
    return done
if any(word.endswith("zygote.py") for word in sys.orig_argv):
    os.write = held
"""
"""As on a busy machine: the child runs, and the agent, whose child it is, does not know its number yet."""
LEAVES_TWO = """
import os, time
rank = os.environ["RANK"]
if rank == "0" and os.fork() == 0:
    rank = "child"
elif rank == "0" and os.fork() == 0:
    rank = "daemon"
    os.setsid()
os.write(1, f"rank {rank} is {os.getpid()}.\\n".encode())
time.sleep(1000)
"""
"""The daemon could be of any rank: it has left the session, and a forked rank no environment of its own."""


def pids_of_script(pod) -> dict[str, int]:
    lines = (line.partition("] rank ")[2] for line in pod.text().splitlines() if line.endswith("."))
    found = (line.partition(" is ") for line in lines if line)
    return {rank: int(pid.removesuffix(".")) for rank, _, pid in found}


async def starts_holding(pod, answer: int) -> None:
    """A pod whose zygote holds its answer to this fork until there is a file "go"."""
    (pod.folder / "sitecustomize.py").write_text(HOLDS_AN_ANSWER)
    path = os.pathsep.join((str(pod.folder), os.environ.get("PYTHONPATH", "")))
    pod.start("python3", "x.py", ROPETEAM_STORE="", PYTHONPATH=path, HELD=str(answer))
    await zygote_is_warm(pod)


async def test_a_rank_that_ends_before_its_number_is_known_runs_once(make_pod, coordinator):
    pod = make_pod(start=Start.FORK)
    (pod.folder / "x.py").write_text("import os\nos.write(1, f'rank 0 is {os.getpid()}.\\n'.encode())\n")
    await starts_holding(pod, 2)
    plan = await a_world(coordinator, 1)  # a store, and then the rank
    await wait_until_async(pod.text, lambda: pids_of_script(pod))
    process = Path(f"/proc/{pids_of_script(pod)['0']}")
    await wait_until_async(pod.text, lambda: not process.exists())
    (pod.folder / "go").touch()
    report = await ended(coordinator, plan)
    assert exit_of(report).clean
    await ended(coordinator, await a_world(coordinator, 2))
    assert pod.text().count("rank 0 is ") == 2, "once in each world"


async def test_a_rank_that_is_being_forked_is_no_orphan_of_another_that_dies(make_pod, coordinator):
    pod = make_pod(processes=2, start=Start.FORK)
    (pod.folder / "x.py").write_text(LEAVES_TWO)
    await starts_holding(pod, 3)
    plan = await a_world(coordinator, 1, processes=2)  # a store, rank 0, and then rank 1
    await wait_until_async(pod.text, lambda: len(pids_of_script(pod)) == 4)
    pids = pids_of_script(pod)
    os.kill(pids["0"], signal.SIGKILL)
    child = Path(f"/proc/{pids['child']}")  # of its session: ended at once
    await wait_until_async(pod.text, lambda: not child.exists())
    (pod.folder / "go").touch()
    report = await coordinator.wait_for(
        lambda r: (
            r.plan == plan and r.ranks[0].exit and not r.ranks[0].dying and r.ranks[1].phase != "Starting"
        )
    )
    assert [rank.exit is None for rank in report.ranks] == [False, True], pod.text()
    assert {*pids.values()} & {*pod.living()} == {pids["1"]}, "what rank 0 has left has ended"


async def test_sigkill_of_the_agent_takes_zygote_store_and_forked_ranks_along(make_pod, coordinator):
    pod = make_pod(start=Start.FORK)
    (pod.folder / "x.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    await zygote_is_warm(pod)
    await a_world(coordinator, 1)
    await pod.printed("] up")
    # who forked the rank for the zygote may still live
    await wait_until_async(lambda: str(pod.living()), lambda: len(pod.living()) == 4)
    pod.signal(signal.SIGKILL)
    await pod.nothing_lives()


async def test_a_store_listens_on_the_pods_address_only(make_pod, coordinator):
    pod = make_pod()
    (pod.folder / "x.py").write_text("")
    pod.start("python3", "x.py", ROPETEAM_STORE="", ROPETEAM_POD_IP="127.0.0.9")
    coordinator.order(host_store=WorldId(1, 0, 1))
    report = await coordinator.wait_for(lambda r: r.store)
    assert report.store.host == "127.0.0.9"
    port = f":{report.store.port:04X}"
    assert [address for address in listening() if address.endswith(port)] == [f"0900007F{port}"]
