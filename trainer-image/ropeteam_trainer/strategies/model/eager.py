"""A model that runs its backward pass before it returns its loss.

Micro-batches and pipelines compute forward and backward passes in turns; a loop of the form

    loss = model(batch)
    (loss * job.batch_weight).backward()
    optimizer.step()

stays as it is: gradients are computed inside model(), kept aside, and handed out by backward().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def loss_of(
    compute: Callable[[], torch.Tensor], parameters: Sequence[nn.Parameter], weight: float
) -> torch.Tensor:
    """The loss that `compute()` returns after it has run all backward passes, gradients weighted by `weight`.

    The caller's backward() must use the same weight: gradients of all ranks are summed by then.
    """
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    loss = compute()
    grads = [p.grad for p in parameters]
    for p, grad in zip(parameters, before, strict=True):
        p.grad = grad
    anchor = torch.zeros((), requires_grad=True)
    result: torch.Tensor = _DeferredGradients.apply(  # type: ignore[no-untyped-call]
        anchor, loss, list(parameters), grads, weight
    )
    return result


class _DeferredGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _: Any, loss: torch.Tensor, parameters: Any, grads: Any, weight: float
    ) -> torch.Tensor:
        ctx.parameters, ctx.grads, ctx.weight = parameters, grads, weight
        return loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        if abs(float(grads[0]) - ctx.weight) > 1e-6 * abs(ctx.weight):
            raise ValueError(
                f"backward() was called on {float(grads[0]):g} x loss, but this batch weighs {ctx.weight:g}: "
                "with micro-batches or a pipeline call (loss * job.batch_weight).backward() and nothing else"
            )
        for p, grad in zip(ctx.parameters, ctx.grads, strict=True):
            if grad is not None:
                p.grad = grad if p.grad is None else p.grad + grad
        ctx.grads = [None] * len(ctx.grads)
        return (None,) * 5
