"""Ranks of unequal speed: each takes MILLISECONDS for a sample, at one place of its step.

balance.py [--speeds MS,MS,...] [--place forward|backward|between|step] [--strategy ddp|fsdp] [--balance]
           [--manifest STRATEGY]
           [--samples N] [--samples-of-rank-1 N] [--epochs N] [--global-batch N] [--workers N] [--prefetch N]
           [--folder DIR --every N]

What it reports as loss is weighted: the mean over ranks is the loss of the whole batch.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.recipes.common import print_result

parser = argparse.ArgumentParser()
parser.add_argument("--speeds", default="0")
parser.add_argument("--place", default="forward")
parser.add_argument("--strategy", default="ddp")
parser.add_argument("--balance", action="store_true")
parser.add_argument("--manifest", help="spec.strategy, for job.wrap(): JSON")
parser.add_argument("--samples", type=int, default=37)
parser.add_argument("--samples-of-rank-1", type=int, help="a mistake")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=8)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--prefetch", type=int, default=0)
parser.add_argument("--folder")
parser.add_argument("--every", type=int)
options = parser.parse_args()
torch.manual_seed(1)
data = torch.randn(options.samples, 9)
job = ropeteam_trainer.init(
    device="cpu",
    checkpoint_dir=options.folder,
    checkpoint_every_steps=options.every,
    timeout_seconds=60,
    strategy=codec.decode(Strategy, options.manifest.encode()) if options.manifest else None,
)
if job.rank == 1 and options.samples_of_rank_1:
    data = data[: options.samples_of_rank_1]
speeds = [float(each) / 1000 for each in options.speeds.split(",")]
own = speeds[job.rank % len(speeds)]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 60), nn.Linear(60, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        work("forward", len(x))
        hidden = self.first(x).relu()
        if hidden.requires_grad:
            hidden.register_hook(lambda _: work("backward", len(x)))
        y: torch.Tensor = self.last(hidden)
        return y


def work(place: str, samples: int) -> None:
    if place == options.place:
        time.sleep(own * samples)


model: Any = Network()
if options.manifest:
    pass
elif job.world_size > 1 and options.strategy == "ddp":
    model = DistributedDataParallel(model, bucket_cap_mb=0.0001)
elif job.world_size > 1:
    for layer in (model.first, model.last, model):
        fully_shard(layer)
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
if options.manifest:
    model, optimizer = job.wrap(model, optimizer)
job.restore(model=model, optimizer=optimizer)
for batch in job.batches(
    data,
    global_batch=options.global_batch,
    epochs=options.epochs,
    workers=options.workers,
    prefetch=options.prefetch,
    balance=options.balance,
):
    loss = (model(batch[:, :8]) - batch[:, 8:]).square().mean() * job.batch_weight
    work("between", len(batch))
    optimizer.zero_grad()
    loss.backward()
    work("step", len(batch))
    optimizer.step()
    job.report(loss=loss)
print_result(job, steps=job.step)
