"""Train on a file that a cache keeps: shards.py FILE MILLISECONDS

A sample takes MILLISECONDS on rank 1. Each rank prints where it read the file.
"""

from __future__ import annotations

import sys
import time

import numpy
import torch
from torch import nn

import ropeteam_trainer
from ropeteam_trainer.data import ShardCache

torch.set_num_threads(1)
with ShardCache().path(sys.argv[1]) as path:
    print(f"read {path}", flush=True)
    data = torch.from_numpy(numpy.load(path))
job = ropeteam_trainer.init(device="cpu")
seconds = float(sys.argv[2]) / 1000 if job.rank == 1 else 0
model: nn.Module = nn.Linear(4, 1)
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.wrap(model, optimizer)
job.restore(model=model, optimizer=optimizer)
for batch in job.batches(data, global_batch=12):
    loss = model(batch).square().mean()
    time.sleep(seconds * len(batch))
    optimizer.zero_grad()
    (loss * job.batch_weight).backward()
    optimizer.step()
    job.report(loss=loss)
