"""Large batches: a learning rate that follows the batch, a warm-up, and layer-wise rates (LARS, LAMB).

Linear: k times the batch, k times the rate; SquareRoot for Adam. The warm-up climbs to the rate in a line.
LARS (with SGD) and LAMB (with AdamW) give each weight matrix a step in proportion to its own norm; vectors
(biases, norms) keep the plain step.
Use it when the global batch grows with the number of ranks: without it, accuracy falls.
Cost: nothing to send, but norms of sharded weights; LAMB keeps a copy of the weights during a step.
Sources: Goyal et al., "Accurate, Large Minibatch SGD", 2017; You et al., "Large Batch Training of
Convolutional Networks" (LARS), 2017; You et al., "Large Batch Optimization for Deep Learning" (LAMB), ICLR
2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from ropeteam_trainer.contract.strategy import LearningRate, TrustRatio
from ropeteam_trainer.partition.cost import rate_factor
from ropeteam_trainer.strategies.model.stepping import Step, around_step

LARS_COEFFICIENT = 0.001


def warmup(rate: LearningRate, steps_done: int) -> float:
    """Part of the full rate for the step after `steps_done` steps."""
    return min(1.0, (steps_done + 1) / (rate.warmup_steps + 1))


def apply(
    optimizer: Optimizer, rate: LearningRate, global_batch: int | None, steps_done: Callable[[], int]
) -> None:
    """In place. Make schedulers afterwards: they take the scaled rate for the base."""
    for group in optimizer.param_groups:
        group["lr"] *= rate_factor(rate, global_batch)
    if rate.trust_ratio is TrustRatio.LARS:
        around_step(optimizer, lambda step: _lars(optimizer, step))
    if rate.trust_ratio is TrustRatio.LAMB:
        around_step(optimizer, lambda step: _lamb(optimizer, step))
    if rate.warmup_steps:
        around_step(optimizer, lambda step: _warm(optimizer, step, warmup(rate, steps_done())))


def _warm(optimizer: Optimizer, step: Step, part: float) -> Any:
    with _changed(optimizer, "lr", part):
        return step()


@contextmanager
def _changed(optimizer: Optimizer, name: str, factor: float) -> Iterator[None]:
    """A hyperparameter of all groups, for one step."""
    before = [group[name] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group[name] = group[name] * factor
    try:
        yield
    finally:
        for group, value in zip(optimizer.param_groups, before, strict=True):
            group[name] = value


@torch.no_grad()
def _lars(optimizer: Optimizer, step: Step) -> Any:
    """Each matrix's gradient, with its weight decay, is scaled to the norm of the matrix."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            decay = group["weight_decay"]
            norm, update = p.norm(), p.grad.norm() + decay * p.norm()
            p.grad.add_(p, alpha=decay)
            if p.ndim > 1:
                p.grad.mul_(_ratio(norm, update) * LARS_COEFFICIENT)
    with _changed(optimizer, "weight_decay", 0):
        return step()


@torch.no_grad()
def _lamb(optimizer: Optimizer, step: Step) -> Any:
    """Each matrix's step, weight decay included, is scaled to the norm of the matrix."""
    before = [(p, p.clone(), group["lr"]) for group, p in _matrices(optimizer)]
    result = step()
    for p, old, lr in before:
        move = p - old
        p.copy_(old + move * _ratio(old.norm(), move.norm() / lr))
    return result


def _matrices(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.ndim > 1:
                yield group, p


def _ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """1 where either is zero."""
    whole = (weight > 0) & (update > 0)
    return torch.where(whole, weight / update, torch.ones_like(weight))
