"""Gradient accumulation: a rank computes its part of a batch in micro-batches, and sends gradients once.

Use it when the desired batch does not fit into memory.
Cost: one forward and backward pass per micro-batch; bytes and messages of one step, whatever their number.
Exception: sharded layers are gathered for each micro-batch, and gradients are unsharded until the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


class ModelArguments(NamedTuple):
    """Arguments of a call of model()."""

    inputs: tuple[Any, ...]
    named: dict[str, Any]


def accumulate(
    model: nn.Module, compute: Callable[..., torch.Tensor], batch: ModelArguments, micro: int, weight: float
) -> torch.Tensor:
    """The mean loss over the samples of `batch`; gradients are those of weight x that mean.

    compute: arguments of model() -> mean loss. Raises TypeError if it returns anything but one number.
    Ranks whose parts differ by a sample may differ by a micro-batch; ranks of a sharded model gather weights
    together, so they agree on the maximum: a rank with fewer samples computes some without effect.
    """
    total = samples(batch)
    mean = torch.zeros(())
    count = -(-total // micro)
    parts = split(batch, most(count, batch) if isinstance(model, FSDPModule) else count)
    for number, (micro_batch, part) in enumerate(parts):
        with _without_gradient_sync(model) if number < len(parts) - 1 else nullcontext():
            loss = compute(*micro_batch.inputs, **micro_batch.named)
            check_loss(loss)
            (loss * (part * weight)).backward()
        mean = mean.to(loss.device) + loss.detach() * part
    return mean


def check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "micro-batches and pipelines need a model that returns its mean loss, one number; give the loss "
            "function to wrap(..., loss=f), then model(x, y) returns f(output, y)"
        )


def samples(inputs: Any) -> int:
    """Size of the first dimension. Raises TypeError where there is no tensor."""
    for leaf in _leaves(inputs):
        return len(leaf)
    raise TypeError("model() was called without a tensor: a batch cannot be split")


def split(batch: ModelArguments, count: int) -> list[tuple[ModelArguments, float]]:
    """`count` micro-batches whose sizes differ by one at most, each with its fraction of the samples. With
    fewer samples than micro-batches some hold a sample of weight zero.
    """
    total = samples(batch)
    return [
        (ModelArguments(*_slice(tuple(batch), total, begin, end)), part)
        for begin, end, part in bounds(total, count)
    ]


def bounds(total: int, count: int) -> list[tuple[int, int, float]]:
    """Begin, end and weight of each micro-batch of `total` samples."""
    ends = [total * number // count for number in range(count + 1)]
    return [(begin, max(end, begin + 1), (end - begin) / total) for begin, end in pairwise(ends)]


def most(count: int, inputs: Any) -> int:
    """Maximum of `count` over all ranks."""
    largest = torch.tensor([count], device=next(_leaves(inputs)).device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def _slice(tree: Any, total: int, begin: int, end: int) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree[begin:end] if tree.ndim and len(tree) == total else tree
    if isinstance(tree, dict):
        return {key: _slice(value, total, begin, end) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_slice(value, total, begin, end) for value in tree])
    return tree


def _leaves(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        if tree.ndim:
            yield tree
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(value)


class _WithoutGradientSync:
    """Context without gradient synchronisation, for a sharded model."""

    def __init__(self, model: FSDPModule) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self._model.set_requires_gradient_sync(True)


def _without_gradient_sync(model: nn.Module) -> Any:
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return _WithoutGradientSync(model) if isinstance(model, FSDPModule) else nullcontext()
