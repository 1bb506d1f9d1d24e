"""What recipes share: DDP with repeatable sums, a learning-rate curve, evaluation, lines to read."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ropeteam_trainer import Job


def data_parallel(model: nn.Module, job: Job, *example: torch.Tensor) -> nn.Module:
    """`model` in DDP, or as it is in a world of one.

    DDP orders its gradient buckets anew after the first backward pass, and at three or more ranks another
    order sums to other last bits. A resumed run would be one pass behind, so that pass is done here, with
    random generators and gradients put back: from the first step on, every run adds in the same order.
    """
    if job.world_size == 1:
        return model
    wrapped = DistributedDataParallel(model)
    with torch.random.fork_rng():
        wrapped(*example).sum().backward()
    wrapped.zero_grad(set_to_none=True)
    return wrapped


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Factor of the peak learning rate after `step` steps: a line up, half a cosine down to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def my_part(job: Job, data: torch.Tensor) -> torch.Tensor:
    """This rank's share of the rows of `data`."""
    return data.tensor_split(job.world_size)[job.rank]


def summed(job: Job, *values: float) -> list[float]:
    """Each value, summed over all ranks."""
    sums = torch.tensor(values, dtype=torch.float64)
    if job.world_size > 1:
        dist.all_reduce(sums)
    return [float(value) for value in sums]


def say(job: Job, text: str) -> None:
    """A line from rank 0."""
    if job.rank == 0:
        print(text, flush=True)


def result(job: Job, **figures: Any) -> None:
    """The figures of the finished training as one line: `RESULT {"validation_loss": 1.5, ...}`."""
    say(job, f"RESULT {json.dumps(figures)}")


def stop(message: str) -> NoReturn:
    """End because of what the user gave: exit code 2, as for a wrong option."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)
