"""Gradient accumulation: a rank computes its part of a batch in micro-batches, and sends gradients once.

Use it when the desired batch does not fit into memory.
Cost: one forward and backward pass per micro-batch; bytes and messages of one step, whatever their number.
Exception: sharded layers are gathered for each micro-batch, and gradients are unsharded until the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ropeteam_trainer.data.substitution import mapped


class ModelArguments(NamedTuple):
    """Positional and named arguments of a call of model()."""

    inputs: tuple[Any, ...]
    named: dict[str, Any]


def accumulate_gradients(
    model: nn.Module, compute: Callable[..., torch.Tensor], batch: ModelArguments, micro: int, weight: float
) -> torch.Tensor:
    """Run forward and backward passes over micro-batches of `batch`. Returns the mean loss over its samples;
    gradients, which are added to grad, are those of weight x that mean. Gradients of ranks are averaged in
    the last pass only.

    compute: arguments of model() -> mean loss. micro: maximum of samples in a micro-batch. Raises TypeError
    if compute returns anything but one number, or the batch has no tensor. Ranks whose parts differ by a
    sample may differ by a micro-batch; ranks of a sharded model gather weights together, so they agree on the
    maximum: a rank with fewer samples computes some with weight zero.
    """
    total = sample_count(batch)
    mean = torch.zeros(())
    count = -(-total // micro)
    parts = split_batch(batch, max_over_ranks(count, batch) if isinstance(model, FSDPModule) else count)
    for number, (micro_batch, fraction) in enumerate(parts):
        with _without_gradient_sync(model) if number < len(parts) - 1 else nullcontext():
            loss = compute(*micro_batch.inputs, **micro_batch.named)
            check_loss(loss)
            (loss * (fraction * weight)).backward()
        mean = mean.to(loss.device) + loss.detach() * fraction
    return mean


def check_loss(loss: Any) -> None:
    """Raise TypeError unless the loss is a tensor of one number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "micro-batches and pipelines need a model that returns its mean loss, one number; this one "
            f"returned {type(loss).__name__}, shape {getattr(loss, 'shape', 'none')}. Call job.wrap(..., "
            "loss=f): then model(x, y) returns f(output, y), which must be the mean over the samples"
        )


def sample_count(inputs: Any) -> int:
    """Number of samples: size of the first dimension of the first tensor in nested inputs that has one.
    Raises TypeError without such a tensor."""
    for leaf in _leaves(inputs):
        return len(leaf)
    raise TypeError(
        "model() was called without a tensor, so its batch cannot be split: with sync Exact, "
        "spec.strategy.batch.microSamples or parallelism.pipeline pass the samples as tensors, directly or "
        "in a list, tuple or dict"
    )


def split_batch(batch: ModelArguments, count: int) -> list[tuple[ModelArguments, float]]:
    """`count` micro-batches whose sizes differ by one at most, each with its fraction of the samples. With
    fewer samples than micro-batches some have one sample, and the fraction 0. Tensors with another first
    dimension than the batch are in each micro-batch as they are.
    """
    total = sample_count(batch)
    return [
        (ModelArguments(*_slice(tuple(batch), total, begin, end)), fraction)
        for begin, end, fraction in micro_batch_bounds(total, count)
    ]


def slices(batch: ModelArguments, sizes: Sequence[int]) -> list[ModelArguments]:
    """Consecutive parts of a batch of so many samples, as split_batch(), but copied: some kernels add in
    another order where memory is aligned otherwise. Raises TypeError if the batch has another number of
    samples."""
    total = sample_count(batch)
    if total != sum(sizes):
        raise TypeError(
            f"model() was called with {total} samples, but the batch of job.batches() has {sum(sizes)}: with "
            "spec.strategy.sync Exact pass the whole batch, in one call, and evaluate under torch.no_grad()"
        )
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    bounds = zip([0, *ends], ends, strict=False)
    return [
        ModelArguments(*mapped(_slice(tuple(batch), total, begin, end), torch.clone)) for begin, end in bounds
    ]


def micro_batch_bounds(total: int, count: int) -> list[tuple[int, int, float]]:
    """(begin, end, fraction of the samples) of each of `count` micro-batches of `total` samples."""
    ends = [total * number // count for number in range(count + 1)]
    return [(begin, max(end, begin + 1), (end - begin) / total) for begin, end in pairwise(ends)]


def max_over_ranks(count: int, inputs: Any) -> int:
    """Maximum of `count` over all ranks. inputs: only for the device of the collective."""
    largest = torch.tensor([count], device=next(_leaves(inputs)).device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def _slice(tree: Any, total: int, begin: int, end: int) -> Any:
    """Samples begin..end of all tensors of `total` samples in nested inputs; everything else is unchanged."""
    if isinstance(tree, torch.Tensor):
        return tree[begin:end] if tree.ndim and len(tree) == total else tree
    if isinstance(tree, dict):
        return {key: _slice(value, total, begin, end) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_slice(value, total, begin, end) for value in tree])
    return tree


def _leaves(tree: Any) -> Iterator[torch.Tensor]:
    """Tensors with a dimension in nested inputs."""
    if isinstance(tree, torch.Tensor):
        if tree.ndim:
            yield tree
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(value)


class _WithoutGradientSync:
    """Context in which backward passes of a sharded model do not reduce gradients: it keeps them
    unsharded."""

    def __init__(self, model: FSDPModule) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self._model.set_requires_gradient_sync(True)


def _without_gradient_sync(model: nn.Module) -> Any:
    """Context in which backward passes do not communicate gradients."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return _WithoutGradientSync(model) if isinstance(model, FSDPModule) else nullcontext()
