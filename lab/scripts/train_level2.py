"""A DDP script that uses the library for its state: what the cluster benchmarks run.

    train_level2.py FOLDER

Saves through the library, and logs when each rank started and made each step.
"""

import json
import os
import sys
import time
from pathlib import Path

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
log = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)


def log_event(kind: str, step: int = 0) -> None:
    log.write(json.dumps({"kind": kind, "step": step, "pid": os.getpid(), "t": time.time()}) + "\n")


def main() -> None:
    log_event("start")  # before torch is imported by this script
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import ropeteam_trainer

    job = ropeteam_trainer.init()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = job.restore(model=model, optimizer=optimizer)
    while True:
        optimizer.zero_grad()
        loss = wrapped(torch.randn(16, 512)).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        log_event("step", step)
        job.report(loss=loss.item(), samples=16)
        time.sleep(0.05)


main()
