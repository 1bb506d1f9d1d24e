"""Real agents and ranks: a lost rank of a pod is started again beside those that live on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from lab.waiting import wait_until_async
from tests.agent.harness import Coordinator, Pod, a_plan, exit_of, rank
from tests.agent.test_fork import zygote_is_warm
from tests.agent.test_library import LIBRARY

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan, Start, Timeouts
from ropeteam_trainer.contract.messages import AgentReport, RankPhase
from ropeteam_trainer.contract.world import Plan, WorldId

REPLICA = f"""
import os, sys, time
loaded = "ropeteam_trainer.job" in sys.modules
started = "forked" if "zygote.py" in open("/proc/self/cmdline").read() else "exec'ed"
os.write(1, f"pid {{os.getpid()}} {{started}} {{loaded}}\\n".encode())
{LIBRARY}
print("plan", os.environ["{config.RANK_PLAN}"], flush=True)
RANK, WORLD = int(os.environ["RANK"]), os.environ["{config.WORLD}"]
say(regroups=True)
beat(1)

def reaches(name):
    while not os.path.exists(name):
        beat(1)
        time.sleep(0.01)
"""
DIES = "reaches(f'end-{RANK}-{WORLD}')\nos.kill(os.getpid(), 9)\n"
"""When the test creates that file."""


def recovery_plan(n: int, *started: int, **changes: Any) -> Plan:
    """World n: the ranks of this pod live on from world 1, except `started`."""
    plan = a_plan(n, processes=2, started=started, origin=WorldId(1, 0, 1), **changes)
    return replace(plan, members=(replace(plan.members[0], started_in=WorldId(1, 0, 1)),))


def pids(pod: Pod, number: int) -> list[int]:
    """Of all processes that were this rank."""
    return [int(pid) for pid in re.findall(rf"\[rank {number}\] pid (\d+) ", pod.text())]


def plans(pod: Pod, number: int) -> list[RankPlan]:
    """The plan in the environment of each process that was this rank."""
    texts = re.findall(rf"\[rank {number}\] plan (.*)", pod.text())
    return [codec.decode(RankPlan, text.encode()) for text in texts]


def received(pod: Pod, number: int) -> list[dict[str, Any]]:
    """Messages that this rank has received."""
    return [json.loads(text) for text in re.findall(rf"\[rank {number}\] told (.*)", pod.text())]


def both_run(report: AgentReport) -> bool:
    return [(each.phase, each.regroups) for each in report.ranks] == [(RankPhase.RUNNING, True)] * 2


async def in_world(coordinator: Coordinator, plan: Plan) -> None:
    """Wait until both ranks run under this plan."""
    await coordinator.wait_for(lambda r: r.plan == plan and both_run(r))


async def started(pod: Pod, coordinator: Coordinator, script: str, **environment: Any) -> None:
    """World 1 runs this script."""
    (pod.folder / "x.py").write_text(REPLICA + script)
    pod.start("python3", "x.py", **environment)
    if pod.settings.start is Start.FORK:
        await zygote_is_warm(pod)
    coordinator.order(plan=a_plan(processes=2))
    await coordinator.wait_for(both_run)


async def test_a_lost_rank_is_started_again_beside_the_one_that_lives(
    make_pod: Any, coordinator: Coordinator
):
    pod = make_pod(processes=2)
    await started(pod, coordinator, DIES)
    (pod.folder / "end-1-1.0.1").touch()
    report = await coordinator.wait_for(lambda r: rank(r, 1).exit and not rank(r, 1).dying)
    assert rank(report, 0).phase is RankPhase.RUNNING
    assert not exit_of(report, 1).killed
    coordinator.order(lost=(1,))
    await pod.printed('"lost":[1]')
    for n in (2, 3):  # in world 2 it dies again
        plan = recovery_plan(n, 1, store_host="10.0.0.9", store_port=n, restart_count=n)
        coordinator.order(plan=plan, lost=())
        await in_world(coordinator, plan)
        (pod.folder / f"end-1-1.0.{n}").touch()
        await coordinator.wait_for(lambda r: rank(r, 1).exit and not rank(r, 1).dying)
    assert len(pids(pod, 0)) == 1
    assert len({*pids(pod, 1)}) == 3
    assert [(each.world_id, each.started, each.saves_as) for each in plans(pod, 1)] == [
        ("1.0.1", (), ""),
        ("1.0.2", (1,), "1.0.1"),
        ("1.0.3", (1,), "1.0.1"),
    ]
    live = received(pod, 0)[-1]["live_world"]
    assert (live["store_host"], live["store_port"], live["started"]) == ("10.0.0.9", 3, [1])
    assert all(each["live_world"] is None for each in received(pod, 1)), "theirs is in the environment"


LEAVES_A_CHILD = """
import subprocess
subprocess.run(["sh", "-c", "setsid sleep 1000 & echo child $!"])
reaches("never")
"""
"""The child has another parent, the agent, and a session of its own."""


def child(pod: Pod, number: int) -> int:
    return int(re.findall(rf"\[rank {number}\] child (\d+)", pod.text())[0])


async def test_a_lost_rank_is_killed_with_its_processes_and_nothing_of_the_others_is(
    make_pod: Any, coordinator: Coordinator
):
    pod = make_pod(processes=2)
    await started(pod, coordinator, LEAVES_A_CHILD)
    await wait_until_async(pod.text, lambda: pod.text().count("] child ") == 2)
    coordinator.order(plan=recovery_plan(2, 1))
    await in_world(coordinator, recovery_plan(2, 1))
    living = pod.living()
    assert not {pids(pod, 1)[0], child(pod, 1)} & {*living}
    assert {pids(pod, 0)[0], child(pod, 0), pids(pod, 1)[1]} <= {*living}


async def test_a_rank_that_hangs_is_killed_alone_and_its_successor_has_a_page_of_its_own(
    make_pod: Any, coordinator: Coordinator
):
    pod = make_pod(processes=2, timeouts=Timeouts(lost=2, hang=3))
    stops = "if (RANK, WORLD) == (1, '1.0.1'): reaches('hang'); os.kill(os.getpid(), 19)\n"
    await started(pod, coordinator, stops + "reaches('never')\n")
    (pod.folder / "hang").touch()
    report = await coordinator.wait_for(lambda r: rank(r, 1).exit and not rank(r, 1).dying)
    assert (exit_of(report, 1).hung, rank(report, 0).exit) == (True, None)
    plan = recovery_plan(2, 1)
    coordinator.order(plan=plan)
    await in_world(coordinator, plan)
    assert (len(pids(pod, 0)), len(pids(pod, 1))) == (1, 2)


STORES = """
from torch.distributed import TCPStore

if WORLD == "1.0.1" and RANK == 1:
    reaches("end-1-1.0.1")
    os.kill(os.getpid(), 9)
if WORLD == "1.0.1":
    while not (inbox and inbox[-1]["live_world"]):
        beat(1)
        time.sleep(0.01)
    live = inbox[-1]["live_world"]
    host, port = live["store_host"], live["store_port"]
else:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(host, port, is_master=False)
store.set(f"rank {RANK}", str(RANK))
print("found", store.get(f"rank {1 - RANK}").decode(), flush=True)
reaches("never")
"""


async def test_a_lost_rank_is_forked_again_and_finds_the_others_in_the_store_of_its_world(
    make_pod: Any, coordinator: Coordinator
):
    pod = make_pod(processes=2, start=Start.FORK)
    await started(pod, coordinator, STORES, ROPETEAM_STORE="")
    coordinator.order(host_store=WorldId(1, 0, 2))
    (pod.folder / "end-1-1.0.1").touch()
    report = await coordinator.wait_for(lambda r: r.store and rank(r, 1).exit and not rank(r, 1).dying)
    plan = recovery_plan(2, 1, store_host=report.store.host, store_port=report.store.port)
    coordinator.order(plan=plan, lost=())
    await pod.printed("[rank 0] found 1")
    await pod.printed("[rank 1] found 0")
    shown = re.findall(r"\[rank (\d)\] pid \d+ (\S+) (\S+)", pod.text())
    assert sorted(shown) == [("0", "forked", "True"), *[("1", "forked", "True")] * 2], (
        "with the library imported already"
    )
    await coordinator.wait_for(both_run)
