"""A training in small: all feature levels, all random generators, uneven batches; its options make it fail.

train.py [--samples N] [--epochs N] [--folder DIR --every N] [--workers N] [--shard]
         [--strategy JSON] [--die STEP:RANK] [--error STEP:RANK] [--exit STEP:RANK]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal

import numpy
import torch
import torch.distributed as dist
from torch import nn

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Sharding, Strategy
from ropeteam_trainer.recipes.common import print_result, summed_over_ranks

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=37)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=8)
parser.add_argument("--folder")
parser.add_argument("--every", type=int)
parser.add_argument("--strategy", help="JSON, as in a RankPlan")
parser.add_argument("--die", default="", help="STEP:RANK: SIGKILL, when the step is done but not reported")
parser.add_argument("--error", default="", help="STEP:RANK: raise an exception there")
parser.add_argument("--exit", default="", help="STEP:RANK: sys.exit(3) there")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--shard", action="store_true", help="FSDP (fully_shard) instead of DDP")
options = parser.parse_args()

torch.manual_seed(1)
data = torch.randn(options.samples, 9)
strategy = codec.from_plain(Strategy, json.loads(options.strategy)) if options.strategy else None
if options.shard:
    strategy = Strategy(sharding=Sharding.PARAMETERS)
    dist.init_process_group("gloo")  # also in a world of one
job = ropeteam_trainer.init(
    device="cpu",
    checkpoint_dir=options.folder,
    checkpoint_every_steps=options.every,
    strategy=strategy,
    timeout_seconds=60,
)
model: nn.Module = nn.Sequential(nn.Linear(8, 300), nn.Dropout(0.2), nn.ReLU(), nn.Linear(300, 1))
optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = job.wrap(model, optimizer)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(100 + job.rank)

first = job.restore(model=model, optimizer=optimizer, scheduler=scheduler)
here = f"{job.step + 1}:{job.rank}"
for batch in job.batches(
    data, global_batch=options.global_batch, epochs=options.epochs, workers=options.workers
):
    noise = random.random() + numpy.random.rand()
    loss = (model(batch[:, :8] * (1 + 0.1 * noise)) - batch[:, 8:]).square().mean()
    optimizer.zero_grad()
    (loss * job.batch_weight).backward()
    optimizer.step()
    scheduler.step()
    here = f"{job.step + 1}:{job.rank}"
    if here == options.die:
        os.kill(os.getpid(), signal.SIGKILL)
    if here == options.error:
        raise RuntimeError("as the test requires")
    if here == options.exit:
        raise SystemExit(3)
    job.report(loss=loss, total_steps=1000)

digest = hashlib.sha256()
for parameter in model.parameters():
    for tensor in (parameter, *optimizer.state[parameter].values()):
        digest.update(getattr(tensor, "to_local", lambda t=tensor: t)().detach().numpy().tobytes())
with job.phase("eval"):
    total = summed_over_ranks(float(int(digest.hexdigest()[:12], 16)))
print_result(job, first=first, steps=job.step, digests=total[0].hex())
