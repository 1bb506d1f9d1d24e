"""Seven steps of a script that destroys process groups itself.

groups.py end | imported | middle | part | exit | fail      which group it destroys when, or how it fails
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore, destroy_process_group  # type: ignore[attr-defined]

import ropeteam_trainer
from ropeteam_trainer.recipes.common import print_result

STEPS = 7
how = sys.argv[1]
job = ropeteam_trainer.init(device="cpu", timeout_seconds=60)
model = torch.nn.Linear(1500, 1500)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = job.restore(model=model, optimizer=optimizer)


def form_another() -> None:
    dist.destroy_process_group()
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    again = PrefixStore("again", store)
    dist.init_process_group("gloo", store=again, rank=job.rank, world_size=job.world_size)


def train() -> None:
    for step in range(first + 1, STEPS + 1):
        loss = model(torch.ones(1, 1500)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        job.report(loss=loss)
        if how == "middle" and step == 3:
            form_another()
        if how == "part" and step == 3:
            dist.destroy_process_group(dist.new_group([0, 1]))
        if how == "fail" and step == 5 and job.rank == 1:
            raise RuntimeError("as the test requires")


try:
    train()
    print_result(job, first=first)
finally:
    destroy_process_group() if how == "imported" else dist.destroy_process_group()
if how == "exit":
    sys.exit(3)
