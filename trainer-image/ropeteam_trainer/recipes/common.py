"""What recipes share: a learning-rate curve, evaluation, lines to read."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ropeteam_trainer import Job


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Factor of the peak learning rate after `step` steps: a line up, half a cosine down to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def my_parts(job: Job, data: torch.Tensor, most: int) -> tuple[torch.Tensor, ...]:
    """This rank's share of the rows of `data`, in pieces of at most `most`; as many pieces on all ranks, for
    sharded models compute together. With parameter servers ranks are no group: each has all rows.
    """
    rank, ways = (job.dp_rank, job.dp_size) if dist.is_initialized() else (0, 1)
    mine = data.tensor_split(ways)[rank]
    pieces = -(-len(data) // (ways * most))
    return mine.tensor_split(pieces)


def summed(*values: float) -> list[float]:
    """Each value, summed over all ranks that are one group."""
    sums = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
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
