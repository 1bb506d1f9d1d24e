"""Ring all-reduce, made visible: each rank talks to its two neighbours only.

A bucket is cut into n pieces. In n-1 rounds each rank sends one piece to the right and adds what comes from
the left: then each rank owns the sum of one piece. In n-1 more rounds the sums go round.
Use it to see how the all-reduce of gloo and NCCL works; theirs is faster.
Cost per step and rank: 2 (n-1)/n x 4P bytes in 2 (n-1) messages per bucket.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def hook(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A DDP communication hook: the mean of a bucket of gradients."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(all_reduce(bucket.buffer()).div_(dist.get_world_size()))
    return done


def all_reduce(values: torch.Tensor) -> torch.Tensor:
    """The sum of `values` (flat, the same length everywhere) over all ranks; in place."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = list(values.tensor_split(ranks))
    for turn in range(ranks - 1):  # reduce: piece i starts at rank i and is whole at rank i-1
        _pass_on(pieces, (rank - turn) % ranks, (rank - turn - 1) % ranks, add=True)
    for turn in range(ranks - 1):  # spread
        _pass_on(pieces, (rank - turn + 1) % ranks, (rank - turn) % ranks, add=False)
    return values


def _pass_on(pieces: list[torch.Tensor], out: int, into: int, add: bool) -> None:
    """Send piece `out` to the right while piece `into` comes from the left."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(pieces[into])
    sending = dist.isend(pieces[out], (rank + 1) % ranks)
    dist.recv(came, (rank - 1) % ranks)
    if sending is not None:
        sending.wait()
    pieces[into].add_(came) if add else pieces[into].copy_(came)
