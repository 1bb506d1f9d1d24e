"""Training of every contender of the balance benchmark.

    train_balance.py FOLDER STEPS SLOW [balance]

A sample takes 4 ms of waiting in the forward and in the backward pass, as for a device that is
not this machine's processor: so the figures do not depend on how many cores the ranks share. Rank SLOW (-1:
none) is a machine of half the speed: in each pass it sleeps as long as it computed. Each rank writes
FOLDER/rank-N.json: for each step its end in seconds, the loss of the whole batch, and how many samples it
took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ropeteam_trainer

GLOBAL_BATCH, WIDTH, DEPTH = 48, 64, 4
SAMPLE_SECONDS = 0.004


class Network(nn.Module):
    """One layer, used some times."""

    def __init__(self, sleeps: bool) -> None:
        super().__init__()
        self.layer, self.sleeps, self.began = nn.Linear(WIDTH, WIDTH), sleeps, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begin()
        first = x = x.requires_grad_()
        for _ in range(DEPTH):
            x = x + self.layer(x).tanh() / DEPTH
        self.end(len(x))
        x.register_hook(self.begin)
        first.register_hook(lambda _: self.end(len(x)))
        return x

    def begin(self, *_: Any) -> None:
        self.began = time.perf_counter()

    def end(self, samples: int) -> None:
        time.sleep(samples * SAMPLE_SECONDS)
        if self.sleeps:
            time.sleep(time.perf_counter() - self.began)


def main() -> None:
    folder, steps, slow = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.randn(GLOBAL_BATCH * steps, WIDTH)
    job = ropeteam_trainer.init(device="cpu")
    model: Any = Network(job.rank == slow)
    if job.world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.restore(model=model, optimizer=optimizer)
    seen: list[tuple[float, torch.Tensor, int]] = []
    for batch in job.batches(data, global_batch=GLOBAL_BATCH, balance="balance" in sys.argv):
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean() * job.batch_weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((time.perf_counter(), loss.detach() / job.world_size, len(batch)))
        job.report(loss=loss)
    losses = torch.stack([loss for _, loss, _ in seen]).double()
    if job.world_size > 1:
        dist.all_reduce(losses)
    lines = [(t, loss, n) for (t, _, n), loss in zip(seen, losses.tolist(), strict=True)]
    (folder / f"rank-{job.rank}.json").write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
