"""A tiny real training at feature level 3: DDP on fixed data, epoch after epoch, a few milliseconds a step.

tiny.py [STEPS] [SECONDS_PER_STEP]; a file named by $HANG makes rank 1 hang once, in mid-step. While there is
one named by $SLOW, a step takes half a second. With $OWN_LOOP it takes its data
by itself, at feature level 2.
"""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ropeteam_trainer


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    hang = Path(os.environ.get("HANG", "/nonexistent"))
    slow = Path(os.environ.get("SLOW", "/nonexistent"))
    job = ropeteam_trainer.init()
    torch.manual_seed(7)
    data = list(torch.randn(90, 16).unbind())
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    wrapped = DistributedDataParallel(model, find_unused_parameters=True) if job.world_size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = job.restore(model=model, optimizer=optimizer)
    batches: Iterable[list[torch.Tensor]]
    if os.environ.get("OWN_LOOP"):
        batches = (data[i * 9 % 90 : i * 9 % 90 + 9] for i in range(step, steps))
    else:
        batches = job.batches(data, global_batch=9, seed=3, epochs=steps)
    for batch in batches:
        if step >= steps:
            break
        x = torch.stack(list(batch))
        loss = wrapped(x).square().mean() + (wrapped(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if job.rank == 1 and hang.exists():
            hang.unlink()
            time.sleep(1000)
        time.sleep(0.5 if slow.exists() else pause)
        job.report(loss=loss, samples=len(x), total_steps=steps)
    print(f"final loss {loss.item():.6f}")


main()
