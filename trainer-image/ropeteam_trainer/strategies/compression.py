"""Fewer bytes per gradient: halves (Float16, BFloat16), low-rank matrices (PowerSGD), or the largest only
(TopK).

Use it where the network is the bottleneck; on one machine it costs more than it saves.
Bytes per step and rank against an all-reduce of 4P bytes: Float16 and BFloat16 a half; PowerSGD of rank r
4r(n+m) per n x m matrix instead of 4nm; TopK 12 bytes for each value that is sent, gathered from all ranks.
What PowerSGD and TopK leave out is remembered and added to the next gradient (error feedback), else they
would not converge. It is not in checkpoints: after a restart they begin without it.
Sources: Vogels et al., "PowerSGD", NeurIPS 2019; Lin et al., "Deep Gradient Compression", ICLR 2018;
Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from ropeteam_trainer.contract.strategy import Compression, CompressionType
from ropeteam_trainer.strategies.datapar import Hook

Done = torch.futures.Future[torch.Tensor]


def hook_of(compression: Compression) -> Hook:
    """The DDP communication hook."""
    if compression.type is CompressionType.FLOAT16:
        return _cast_to(torch.float16)
    if compression.type is CompressionType.BFLOAT16:
        return _cast_to(torch.bfloat16)
    if compression.type is CompressionType.TOP_K:
        return TopK(compression.top_k.keep_per_mille)
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=compression.power_sgd.rank,
        start_powerSGD_iter=2,
        min_compression_rate=1,
    )

    def low_rank(_: Any, bucket: Any) -> Done:
        done: Done = powerSGD_hook.powerSGD_hook(state, bucket)
        done.wait()  # gloo's threads begin its later sums; with two buckets under way, ranks mix these up
        return done

    return low_rank


def _cast_to(dtype: torch.dtype) -> Hook:
    """torch's own hook for bfloat16 refuses CPUs, though gloo reduces it well."""

    def hook(_: Any, bucket: Any) -> Done:
        whole = bucket.buffer()
        half = whole.to(dtype).div_(dist.get_world_size())
        work = dist.all_reduce(half, async_op=True)
        assert work is not None
        whole_again: Done = work.get_future().then(lambda done: whole.copy_(done.value()[0]))
        return whole_again

    return hook


class TopK:
    """Sends the largest values of each bucket, and adds what it left out to the next gradient."""

    def __init__(self, keep_per_mille: int) -> None:
        self._keep_per_mille = keep_per_mille
        self._left_out: dict[int, torch.Tensor] = {}

    def __call__(self, _: Any, bucket: Any) -> Done:
        whole = bucket.buffer()
        owed = self._left_out.get(bucket.index())
        if owed is not None:
            whole.add_(owed)
        keep = max(1, whole.numel() * self._keep_per_mille // 1000)
        places = whole.abs().topk(keep).indices
        values = whole[places]
        self._left_out[bucket.index()] = whole.index_fill(0, places, 0)
        self._sum(whole, places, values)
        done: Done = torch.futures.Future()
        done.set_result(whole.div_(dist.get_world_size()))
        return done

    @staticmethod
    def _sum(into: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
        """The sum over all ranks of their chosen values; ranks add in the same order, so bits agree."""
        ranks = dist.get_world_size()
        all_places = [torch.empty_like(places) for _ in range(ranks)]
        all_values = [torch.empty_like(values) for _ in range(ranks)]
        dist.all_gather(all_places, places)
        dist.all_gather(all_values, values)
        into.zero_()
        for where, what in zip(all_places, all_values, strict=True):
            into.index_add_(0, where, what)
