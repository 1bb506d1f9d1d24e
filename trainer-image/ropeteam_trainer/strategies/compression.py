"""Gradient compression: half precision (Float16, BFloat16), low rank (PowerSGD), or sparsification (TopK).

Use it where the network is the bottleneck; on one machine it costs more than it saves.
Bytes per step and rank against an all-reduce of 4P bytes: Float16 and BFloat16 a half; PowerSGD of rank r
4r(n+m) per n x m matrix instead of 4nm; TopK 12 bytes for each value that is sent, gathered from all ranks.
The error of PowerSGD and TopK is kept and added to the next gradient (error feedback), else they would not
converge. Each rank saves its own error, so a resumed job repeats the undisturbed one; another number of ranks
starts without it.
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

ReducedBucket = torch.futures.Future[torch.Tensor]
Residuals = dict[int, torch.Tensor]
"""One flat tensor for each bucket of gradients, by the bucket's index."""


def comm_hook(compression: Compression) -> Hook:
    """DDP communication hook of this compression; it returns the mean of a bucket. A hook with state_dict()
    has a state that differs between ranks, to be saved on each."""
    match compression.type:
        case CompressionType.FLOAT16:
            return _cast_hook(torch.float16)
        case CompressionType.BFLOAT16:
            return _cast_hook(torch.bfloat16)
        case CompressionType.TOP_K:
            return TopK(compression.top_k.keep_per_mille)
        case CompressionType.POWER_SGD:
            return PowerSGD(compression.power_sgd.rank)


def _cast_hook(dtype: torch.dtype) -> Hook:
    """Hook that averages in `dtype`. Not torch's own, whose bfloat16 hook refuses CPUs, though gloo can
    reduce it."""

    def hook(_: Any, bucket: Any) -> ReducedBucket:
        gradient = bucket.buffer()
        half = gradient.to(dtype).div_(dist.get_world_size())  # before the sum, which could overflow
        work = dist.all_reduce(half, async_op=True)
        assert work is not None
        result: ReducedBucket = work.get_future().then(lambda done: gradient.copy_(done.value()[0]))
        return result

    return hook


class PowerSGD:
    """Hook of torch's PowerSGD. It compresses from the third step on, and begins each with the last one's
    matrices."""

    def __init__(self, rank: int) -> None:
        self._state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
        )

    def __call__(self, _: Any, bucket: Any) -> ReducedBucket:
        """The hook. Returns when the bucket is averaged."""
        for memory in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
            _move_to_device(memory, bucket)
        done: ReducedBucket = powerSGD_hook.powerSGD_hook(self._state, bucket)
        done.wait()  # else the sums of several buckets would start in an order that differs between ranks
        return done

    def state_dict(self) -> dict[str, Any]:
        """This rank's error feedback, and the matrices of the last step; not copied. The names are those in
        checkpoints."""
        state = self._state
        return {
            "rank": state.matrix_approximation_rank,
            "steps": state.iter,
            "left out": state.error_dict,
            "p": state.p_memory_dict,
            "q": state.q_memory_dict,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state on the CPU; tensors are moved when their bucket comes. With another rank (of the
        matrices) only the error feedback is used. Sets attributes of torch's state that it does not document:
        without them a resumed run would not repeat its steps."""
        state = self._state
        state.iter, state.error_dict = saved["steps"], saved["left out"]
        if saved["rank"] == state.matrix_approximation_rank:  # else torch draws new ones of this rank
            state.p_memory_dict, state.q_memory_dict = saved["p"], saved["q"]


class TopK:
    """Hook that sends the largest values of each bucket, and adds all others to the next gradient."""

    def __init__(self, keep_per_mille: int) -> None:
        """keep_per_mille: values of 1,000 that are sent; at least one of each bucket."""
        self._keep_per_mille = keep_per_mille
        self._error: Residuals = {}
        """Values that were not sent."""

    def state_dict(self) -> dict[str, Any]:
        return {"left out": self._error}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._error = saved["left out"]

    def __call__(self, _: Any, bucket: Any) -> ReducedBucket:
        """The hook. Order: the error of the last step is added, the largest values are selected, the others
        kept as the next error, and the selected ones of all ranks averaged into the bucket."""
        gradient = bucket.buffer()
        _move_to_device(self._error, bucket)
        error = self._error.get(bucket.index())
        if error is not None:
            gradient.add_(error)
        keep = max(1, gradient.numel() * self._keep_per_mille // 1000)
        indices = gradient.abs().topk(keep).indices
        values = gradient[indices]
        self._error[bucket.index()] = gradient.index_fill(0, indices, 0)
        self._sum_into(gradient, indices, values)
        done: ReducedBucket = torch.futures.Future()
        done.set_result(gradient.div_(dist.get_world_size()))
        return done

    @staticmethod
    def _sum_into(into: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
        """Sum the selected values of all ranks into `into`, in place; in the same order on each rank, so that
        results are bitwise equal."""
        ranks = dist.get_world_size()
        all_indices = [torch.empty_like(indices) for _ in range(ranks)]
        all_values = [torch.empty_like(values) for _ in range(ranks)]
        dist.all_gather(all_indices, indices)
        dist.all_gather(all_values, values)
        into.zero_()
        for rank_indices, rank_values in zip(all_indices, all_values, strict=True):
            into.index_add_(0, rank_indices, rank_values)


def _move_to_device(memory: Residuals, bucket: Any) -> None:
    """Move this bucket's tensor in `memory` to the bucket's device: checkpoints are loaded on the CPU."""
    if bucket.index() in memory:
        memory[bucket.index()] = memory[bucket.index()].to(bucket.buffer().device)
