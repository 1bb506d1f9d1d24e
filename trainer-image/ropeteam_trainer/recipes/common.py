"""Shared functions of recipes: a learning-rate schedule, evaluation, output."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ropeteam_trainer import Job


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """Factor of the peak learning rate after `step` steps: linear to 1 in `warmup` steps, then half a cosine
    down to 0.05 at step `total`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def own_batches(job: Job, data: torch.Tensor, most: int) -> tuple[torch.Tensor, ...]:
    """This rank's rows of `data`, in batches of at most `most` rows; equally many batches on all ranks, as
    ranks of a sharded model compute together. With parameter servers there is no process group: each rank
    gets all rows.
    """
    rank, parts = (job.dp_rank, job.dp_size) if dist.is_initialized() else (0, 1)
    own_rows = data.tensor_split(parts)[rank]
    batches = -(-len(data) // (parts * most))
    return own_rows.tensor_split(batches)


def summed_over_ranks(*values: float) -> list[float]:
    """Sum of each value over all ranks of the process group; the values themselves if there is none."""
    sums = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return [float(value) for value in sums]


def print_on_rank_0(job: Job, text: str) -> None:
    """Print a line on rank 0."""
    if job.rank == 0:
        print(text, flush=True)


def print_result(job: Job, **figures: Any) -> None:
    """Print the results of a finished training as one line: `RESULT {"validation_loss": 1.5, ...}`."""
    print_on_rank_0(job, f"RESULT {json.dumps(figures)}")


def digest(model: nn.Module) -> str:
    """First half of the SHA-256 of the parameters that this rank holds, as hexadecimal digits."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        whole.update(own.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:32]


def exit_with_error(message: str) -> NoReturn:
    """End the program because of wrong input: exit code 2, as for a wrong option."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)
