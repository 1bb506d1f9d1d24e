"""Slow work of an agent holds up nothing else: to delete old checkpoints, to start ranks, a disk that
hangs. The agent is real; its pod is a fake that takes as long as a test wants.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest
from lab.waiting import wait_until_async, within
from tests.agent import audit
from tests.agent.harness import DEADLINE_SECONDS, JOB_UID
from tests.agent.harness import a_plan as harness_plan
from tests.agent.life import SCRIPT, a_plan, an_identity, world_id
from tests.agent.test_checkpoints import run_ref, saved, settings_in

from ropeteam_trainer.agent import checkpoints
from ropeteam_trainer.agent.executor import DaemonThreadExecutor
from ropeteam_trainer.agent.machine.events import LinkUp, OrdersReceived, RankMessage, RanksStarted
from ropeteam_trainer.agent.main import Agent
from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.checkpoint.decisions.manifest import folder
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.messages import Grant, Orders
from ropeteam_trainer.contract.world import CheckpointRef, Plan, WorldId


class SlowPod:
    """A fake: its ranks never finish to start."""

    def __init__(self) -> None:
        self.ranks, self.stores, self.disk = self, self, DaemonThreadExecutor("disk")
        self.starting = asyncio.Event()
        self.killed: list[tuple[int, ...]] = []
        self.received: dict[int, list[ToRank]] = {}
        """Messages by rank."""

    async def start(self, plan: Plan, ranks: Sequence[int], fork: bool) -> None:  # noqa: ARG002
        self.starting.set()
        await asyncio.Event().wait()

    def kill(self, world_id: WorldId, ranks: Iterable[int]) -> None:  # noqa: ARG002
        self.killed.append(tuple(ranks))

    def send(self, world_id: WorldId, rank: int, message: ToRank) -> None:  # noqa: ARG002
        self.received.setdefault(rank, []).append(message)

    def begin(self, may_fork: bool) -> None: ...

    def end(self) -> None: ...

    def read_heartbeats(self) -> None: ...

    async def watch(self) -> None:
        await asyncio.Event().wait()


class Run:
    """An agent that runs in this process."""

    def __init__(self, folder: Any) -> None:
        self.pod = SlowPod()
        settings = settings_in(folder)
        self.agent = Agent(settings, an_identity(), SCRIPT, lambda _: self.pod)  # type: ignore[arg-type, return-value]
        self.task = asyncio.ensure_future(self.agent.run())
        self.orders = 0

    def ordered(self, **changes: Any) -> None:
        self.orders += 1
        self.agent.post(OrdersReceived(Orders(term=1, boot=0, number=self.orders, **changes)))


@pytest.fixture
async def run(tmp_path: Any) -> AsyncIterator[Run]:
    found = Run(tmp_path)
    await asyncio.sleep(0)
    found.agent.post(LinkUp())
    found.ordered(plan=a_plan())
    await within("the run is claimed", found.pod.starting.wait(), DEADLINE_SECONDS)
    found.agent.post(RanksStarted(world_id()))
    yield found
    found.task.cancel()
    await asyncio.gather(found.task, return_exceptions=True)


async def test_a_manifest_is_written_while_old_checkpoints_are_deleted_and_the_newest_request_wins(
    run: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    pruned: list[tuple[CheckpointRef, ...]] = []
    gate = threading.Event()

    def delete_terabytes(_: Any, __: Held, keep: tuple[CheckpointRef, ...]) -> None:
        pruned.append(keep)
        gate.wait(60)

    monkeypatch.setattr(checkpoints, "prune", delete_terabytes)
    lineages = [(run_ref(step),) for step in (10, 20, 30)]
    for lineage in lineages:
        run.ordered(plan=a_plan(), lineage=lineage)
        await wait_until_async("a checkpoint is pruned", lambda: pruned)
    saved(tmp_path, (40, 1))
    run.ordered(plan=a_plan(), lineage=lineages[-1], grant=Grant(run_ref(40), 4, (), None))
    await wait_until_async(
        "the manifest is written", lambda: list(tmp_path.glob("run-uid/step-40/*/manifest.json"))
    )
    assert pruned == lineages[:1], "one at a time"
    gate.set()
    await wait_until_async("the newest request is pruned", lambda: len(pruned) > 1)
    assert pruned == [lineages[0], lineages[2]]


async def test_ranks_that_have_started_die_before_a_long_start_is_over(run: Run):
    run.ordered()
    assert run.pod.killed == [(0, 1)]


async def test_a_rank_that_lives_knows_of_a_lost_one_before_a_long_start_is_over(run: Run):
    run.agent.post(RankMessage(world_id(), 0, FromRank(hello_pid=1, regroups=True)))
    run.ordered(plan=a_plan(), lost=(2,))
    assert run.pod.received == {0: [ToRank(lost=(2,))]}
    assert run.pod.killed == []


async def test_the_loop_of_an_agent_never_waits_for_the_volume(
    make_pod: Any, coordinator: Any, tmp_path: Any
):
    volume, record = tmp_path / "checkpoints", tmp_path / "record"
    pod = make_pod(checkpoint=CheckpointConfig(str(volume)))
    (tmp_path / "x.py").write_text("import time; time.sleep(1000)")
    audited = (sys.executable, audit.__file__, str(record), str(tmp_path), "ropeteam_trainer.agent")
    pod.start("python3", "x.py", agent=audited)
    coordinator.order(plan=harness_plan())
    await coordinator.wait_for(lambda r: r.ranks and not r.stopped)
    saved(volume, (4, 1), (8, 1), run=JOB_UID)
    coordinator.order(grant=Grant(run_ref(8, run=JOB_UID), 1, (), None))
    report = await coordinator.wait_for(lambda r: r.committed)
    coordinator.order(lineage=(report.committed,))
    old = volume / folder(run_ref(4, run=JOB_UID))
    await wait_until_async("the old checkpoint is pruned", lambda: not old.exists())
    touched = record.read_text()
    assert str(tmp_path / "state") in touched, "the audit sees nothing"
    assert str(volume) not in touched


HANGS = """
import asyncio, sys, threading
from ropeteam_trainer.agent.executor import DaemonThreadExecutor

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    asyncio.get_running_loop().run_in_executor(DaemonThreadExecutor("disk"), hang)
    while not begun.is_set():
        await asyncio.sleep(0.01)
    print("hangs", flush=True)

asyncio.run(main())
"""


def test_a_disk_that_hangs_keeps_no_process_from_ending():
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "hangs\n"
    assert done.stderr == ""


async def test_an_executor_keeps_the_order_and_hands_back_what_was_raised():
    executor = DaemonThreadExecutor("disk")
    order: list[int] = []
    work = asyncio.get_running_loop().run_in_executor
    calls = [work(executor, order.append, number) for number in range(100)]
    cancelled = work(executor, order.append, -1)
    cancelled.cancel()
    with pytest.raises(ZeroDivisionError):
        await work(executor, lambda: 1 // 0)
    await asyncio.gather(*calls)
    assert [number for number in order if number >= 0] == list(range(100))
