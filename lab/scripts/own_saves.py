"""A training at feature level 1: it reports its steps, and saves by itself as lab/scripts/train_ddp.py does.

own_saves.py FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ropeteam_trainer


def main() -> None:
    folder = Path(sys.argv[1])
    job = ropeteam_trainer.init()
    with (folder / f"rank-{job.rank}.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "start", "pid": os.getpid()}) + "\n")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saved, step = folder / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    while True:
        optimizer.zero_grad()
        loss = model(torch.randn(16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            if job.rank == 0:
                fresh = folder / "checkpoint.tmp"
                torch.save({"model": model.module.state_dict(), "step": step}, fresh)
                fresh.rename(saved)
            dist.barrier()
        time.sleep(0.05)
        job.report(loss=loss, samples=16)


main()
