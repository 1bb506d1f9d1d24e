"""Fewer bytes per gradient: halves (Float16, BFloat16), low-rank matrices (PowerSGD), or the largest only
(TopK).

Use it where the network is the bottleneck; on one machine it costs more than it saves.
Bytes per step and rank against an all-reduce of 4P bytes: Float16 and BFloat16 a half; PowerSGD of rank r
4r(n+m) per n x m matrix instead of 4nm; TopK 12 bytes for each value that is sent, gathered from all ranks.
What PowerSGD and TopK leave out is remembered and added to the next gradient (error feedback), else they
would not converge. Each rank saves what it has left out, so a resumed run is the undisturbed one; another
number of ranks begins without it.
Sources: Vogels et al., "PowerSGD", NeurIPS 2019; Lin et al., "Deep Gradient Compression", ICLR 2018;
Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from ropeteam_trainer.contract.strategy import Compression, CompressionType
from ropeteam_trainer.strategies.ddp import Hook

Done = torch.futures.Future[torch.Tensor]
Memory = dict[int, torch.Tensor]
"""One flat tensor per bucket of gradients."""


def hook_of(compression: Compression) -> Hook:
    """The DDP communication hook. One with state_dict() and load_state_dict() has a memory of its rank."""
    match compression.type:
        case CompressionType.FLOAT16:
            return _cast_to(torch.float16)
        case CompressionType.BFLOAT16:
            return _cast_to(torch.bfloat16)
        case CompressionType.TOP_K:
            return TopK(compression.top_k.keep_per_mille)
        case CompressionType.POWER_SGD:
            return PowerSGD(compression.power_sgd.rank)


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


class PowerSGD:
    """torch's, which begins to compress at the third step, warm: with the matrices of the step before."""

    def __init__(self, rank: int) -> None:
        self._state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
        )

    def __call__(self, _: Any, bucket: Any) -> Done:
        for memory in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
            _move(memory, bucket)
        done: Done = powerSGD_hook.powerSGD_hook(self._state, bucket)
        done.wait()  # gloo's threads would start the later sums of several buckets in any order
        return done

    def state_dict(self) -> dict[str, Any]:
        state = self._state
        return {
            "rank": state.matrix_approximation_rank,
            "steps": state.iter,
            "left out": state.error_dict,
            "p": state.p_memory_dict,
            "q": state.q_memory_dict,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        state = self._state
        state.iter, state.error_dict = saved["steps"], saved["left out"]
        if saved["rank"] == state.matrix_approximation_rank:  # else other matrices are drawn
            state.p_memory_dict, state.q_memory_dict = saved["p"], saved["q"]


class TopK:
    """Sends the largest values of each bucket, and adds what it left out to the next gradient."""

    def __init__(self, keep_per_mille: int) -> None:
        self._keep_per_mille = keep_per_mille
        self._left_out: Memory = {}

    def state_dict(self) -> dict[str, Any]:
        return {"left out": self._left_out}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._left_out = saved["left out"]

    def __call__(self, _: Any, bucket: Any) -> Done:
        whole = bucket.buffer()
        _move(self._left_out, bucket)
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


def _move(memory: Memory, bucket: Any) -> None:
    """To the bucket's device: checkpoints are read on the CPU."""
    if bucket.index() in memory:
        memory[bucket.index()] = memory[bucket.index()].to(bucket.buffer().device)
