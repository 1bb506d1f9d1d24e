"""Large batches: a learning rate scaled with the batch, a warm-up, and layer-wise rates (LARS, LAMB).

Linear: k times the batch, k times the rate; SquareRoot for Adam. The warm-up is linear.
LARS (with SGD) and LAMB (with AdamW) give each weight matrix a step in proportion to its own norm; vectors
(biases, norms) keep the plain step.
Use it when the global batch grows with the number of ranks: without it, accuracy falls.
Cost: no communication except norms of sharded weights; LAMB keeps a copy of the weights during a step.
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
    """Fraction of the full rate for the step after `steps_done` steps."""
    return min(1.0, (steps_done + 1) / (rate.warmup_steps + 1))


def apply(
    optimizer: Optimizer, rate: LearningRate, global_batch: int | None, steps_done: Callable[[], int]
) -> None:
    """Scale the rates in place. Create schedulers afterwards: they take the scaled rate as the base."""
    for group in optimizer.param_groups:
        group["lr"] *= rate_factor(rate, global_batch)
    if rate.trust_ratio is TrustRatio.LARS:
        around_step(optimizer, lambda step: _lars(optimizer, step))
    if rate.trust_ratio is TrustRatio.LAMB:
        around_step(optimizer, lambda step: _lamb(optimizer, step))
    if rate.warmup_steps:
        around_step(optimizer, lambda step: _warm_up(optimizer, step, warmup(rate, steps_done())))


def _warm_up(optimizer: Optimizer, step: Step, part: float) -> Any:
    with _scaled_by(optimizer, "lr", part):
        return step()


@contextmanager
def _scaled_by(optimizer: Optimizer, name: str, factor: float) -> Iterator[None]:
    """Multiply a hyperparameter of all groups by `factor`, for one step."""
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
    """Scale each matrix's gradient, with its weight decay, to the norm of the matrix."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            decay = group["weight_decay"]
            norm, update = p.norm(), p.grad.norm() + decay * p.norm()
            p.grad.add_(p, alpha=decay)
            if p.ndim > 1:
                p.grad.mul_(_ratio(norm, update) * LARS_COEFFICIENT)
    with _scaled_by(optimizer, "weight_decay", 0):
        return step()


@torch.no_grad()
def _lamb(optimizer: Optimizer, step: Step) -> Any:
    """Scale each matrix's step, weight decay included, to the norm of the matrix."""
    before = [(p, p.clone(), group["lr"]) for group, p in _matrices(optimizer)]
    result = step()
    for p, old, lr in before:
        update = p - old
        p.copy_(old + update * _ratio(old.norm(), update.norm() / lr))
    return result


def _matrices(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.ndim > 1:
                yield group, p


def _ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Trust ratio; 1 where either norm is zero."""
    nonzero = (weight > 0) & (update > 0)
    return torch.where(nonzero, weight / update, torch.ones_like(weight))
