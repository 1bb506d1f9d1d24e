"""Ring all-reduce, for teaching: each rank communicates with its two neighbours only.

A bucket is split into n chunks. In n-1 steps each rank sends one chunk to the right and adds the chunk
received from the left: then each rank has the sum of one chunk (reduce-scatter). n-1 more steps pass the sums
on (all-gather).
Use it to see how the all-reduce of gloo and NCCL works; theirs is faster.
Cost per step and rank: 2 (n-1)/n x 4P bytes in 2 (n-1) messages per bucket.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def comm_hook(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: averages a bucket of gradients by a ring all-reduce."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(all_reduce(bucket.buffer()).div_(dist.get_world_size()))
    return done


def all_reduce(values: torch.Tensor) -> torch.Tensor:
    """Sum `values` over all ranks, in place, and return them. A flat tensor of the same length on all
    ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = list(values.tensor_split(ranks))
    for step in range(ranks - 1):  # reduce-scatter: chunk i starts at rank i and is complete at rank i-1
        _exchange_chunks(chunks, (rank - step) % ranks, (rank - step - 1) % ranks, add=True)
    for step in range(ranks - 1):  # all-gather
        _exchange_chunks(chunks, (rank - step + 1) % ranks, (rank - step) % ranks, add=False)
    return values


def _exchange_chunks(chunks: list[torch.Tensor], out: int, into: int, add: bool) -> None:
    """Send chunk `out` to the right while receiving chunk `into` from the left, which is added to this rank's
    (add) or replaces it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(chunks[into])
    sending = dist.isend(chunks[out], (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    if sending is not None:
        sending.wait()
    chunks[into].add_(received) if add else chunks[into].copy_(received)
