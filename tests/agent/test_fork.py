"""With torch: a store held by the agent, and ranks forked from the zygote."""

from __future__ import annotations

from tests.agent.harness import a_plan, exit_of

from ropeteam_trainer.contract.config import Start
from ropeteam_trainer.contract.world import Epoch

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print("sum", x.item(), "parent", os.getppid(), "threads", torch.get_num_threads(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


async def test_ranks_meet_in_the_agents_store_and_fork_later(make_pod, coordinator):
    pod = make_pod(processes=2, start=Start.FORK)
    (pod.folder / "x.py").write_text(SCRIPT)
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    for n in (1, 2, 3):
        epoch = Epoch(1, 0, n)
        coordinator.order(plan=None, host_store=epoch)
        report = await coordinator.wait_for(lambda r, e=epoch: r.store and r.store.epoch == e)
        plan = a_plan(n, processes=2, store_host=report.store.host, store_port=report.store.port)
        coordinator.order(plan=plan)
        report = await coordinator.wait_for(lambda r, e=epoch: r.plan and r.plan.epoch == e and r.stopped)
        print(pod.text())
        assert exit_of(report).clean
