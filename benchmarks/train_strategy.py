"""A small training under whatever spec.strategy says: the script of benchmarks/idle_connections.py.

    train_strategy.py FOLDER

Logs when the process of each rank started, and when each step of a worker was made.
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

    import ropeteam_trainer

    torch.set_num_threads(1)
    job = ropeteam_trainer.init(device="cpu")
    torch.manual_seed(0)
    plain: nn.Module = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    model, optimizer = job.wrap(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4))
    job.restore(model=model, optimizer=optimizer)
    data = torch.randn(100_000, 256)
    for inputs in job.batches(data, global_batch=16, epochs=10):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        (loss * job.batch_weight).backward()
        optimizer.step()
        log_event("step", job.step)
        time.sleep(0.05)
        job.report(loss=loss)


main()
