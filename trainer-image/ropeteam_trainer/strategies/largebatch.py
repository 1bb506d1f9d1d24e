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
from ropeteam_trainer.partition.learningrate import learning_rate_factor, warmup_factor
from ropeteam_trainer.strategies.model.stepping import Step, wrap_step

LARS_COEFFICIENT = 0.001
"""Trust coefficient of the LARS paper."""


def adapt_optimizer(
    optimizer: Optimizer, rate: LearningRate, global_batch: int | None, steps_done: Callable[[], int]
) -> None:
    """Scale the optimizer's learning rates in place, and wrap its step for LARS or LAMB and the warm-up.

    Create schedulers afterwards: they take the scaled rate as the base. global_batch: samples per step; None
    if nothing is scaled. steps_done: returns the job's steps, for the warm-up.
    """
    for group in optimizer.param_groups:
        group["lr"] *= learning_rate_factor(rate, global_batch)
    if rate.trust_ratio is TrustRatio.LARS:
        wrap_step(optimizer, lambda step: _lars(optimizer, step))
    if rate.trust_ratio is TrustRatio.LAMB:
        wrap_step(optimizer, lambda step: _lamb(optimizer, step))
    if rate.warmup_steps:
        wrap_step(optimizer, lambda step: _warm_up(optimizer, step, warmup_factor(rate, steps_done())))


def _warm_up(optimizer: Optimizer, step: Step, factor: float) -> Any:
    """Step with the learning rates times `factor`."""
    with _scaled_by(optimizer, "lr", factor):
        return step()


@contextmanager
def _scaled_by(optimizer: Optimizer, name: str, factor: float) -> Iterator[None]:
    """Context in which the hyperparameter `name` of all groups is multiplied by `factor`."""
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
    """Step with each matrix's gradient, weight decay included, scaled to the norm of the matrix. Gradients
    are changed in place. Vectors get the plain step, with their weight decay added here too."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            decay = group["weight_decay"]
            norm, update = p.norm(), p.grad.norm() + decay * p.norm()
            p.grad.add_(p, alpha=decay)
            if p.ndim > 1:
                p.grad.mul_(_trust_ratio(norm, update) * LARS_COEFFICIENT)
    with _scaled_by(optimizer, "weight_decay", 0):  # it is in the gradients already
        return step()


@torch.no_grad()
def _lamb(optimizer: Optimizer, step: Step) -> Any:
    """Step, then scale each matrix's update, weight decay included, to the norm of the matrix. A learning
    rate of 0 gives NaN for the update's norm, which counts as zero."""
    before = [(p, p.clone(), group["lr"]) for group, p in _matrices(optimizer)]
    result = step()
    for p, old, lr in before:
        update = p - old
        p.copy_(old + update * _trust_ratio(old.norm(), update.norm() / lr))
    return result


def _matrices(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    """Each parameter of two or more dimensions that has a gradient, with its group."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.ndim > 1:
                yield group, p


def _trust_ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Norm of the weight divided by that of its update; 1 if either is zero."""
    nonzero = (weight > 0) & (update > 0)
    return torch.where(nonzero, weight / update, torch.ones_like(weight))
