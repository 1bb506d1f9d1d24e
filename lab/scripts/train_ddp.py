"""An ordinary DDP script: what every contender of gang_restart runs, unchanged.

    train_ddp.py FOLDER

Saves every 10 steps, resumes from its file, and logs when each rank started and made each step. With
$DEVICE=cuda all ranks train on the first GPU; gloo carries their gradients. $PAUSE: seconds of each step.
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
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.set_default_device(os.environ.get("DEVICE", "cpu"))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    saved, step = folder / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < 10_000:
        optimizer.zero_grad()
        model(torch.randn(16, 512)).square().mean().backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            if rank == "0":
                fresh = folder / "checkpoint.tmp"
                torch.save(
                    {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                    fresh,
                )
                fresh.rename(saved)
            dist.barrier()
        log_event("step", step)
        time.sleep(float(os.environ.get("PAUSE", "0.05")))


main()
