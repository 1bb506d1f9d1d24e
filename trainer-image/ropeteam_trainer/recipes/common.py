"""Shared functions of recipes: a learning-rate schedule, evaluation, output."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ropeteam_trainer import Job


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Factor of the peak learning rate after `step` steps: linear up, half a cosine down to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def my_parts(job: Job, data: torch.Tensor, most: int) -> tuple[torch.Tensor, ...]:
    """This rank's part of the rows of `data`, in batches of at most `most`; equally many on all ranks, as
    sharded models compute together. With parameter servers there is no process group: each rank has all rows.
    """
    rank, parts = (job.dp_rank, job.dp_size) if dist.is_initialized() else (0, 1)
    own_rows = data.tensor_split(parts)[rank]
    batches = -(-len(data) // (parts * most))
    return own_rows.tensor_split(batches)


def summed(*values: float) -> list[float]:
    """Each value, summed over all ranks of the process group, if there is one."""
    sums = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return [float(value) for value in sums]


def log(job: Job, text: str) -> None:
    """Print a line on rank 0."""
    if job.rank == 0:
        print(text, flush=True)


def result(job: Job, **figures: Any) -> None:
    """Print the results of a finished training as one line: `RESULT {"validation_loss": 1.5, ...}`."""
    log(job, f"RESULT {json.dumps(figures)}")


def stop(message: str) -> NoReturn:
    """End the program because of wrong input: exit code 2, as for a wrong option."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)
