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


def loss_with_deferred_gradients(
    compute: Callable[[], torch.Tensor], parameters: Sequence[nn.Parameter], weight: float
) -> torch.Tensor:
    """Call `compute()`, which runs forward and backward passes and returns the loss, and set its gradients
    aside. Returns the loss with a backward() that adds them to the parameters' grad, once.

    weight: factor of the gradients; the caller's backward() must be of loss x weight, else it raises
    ValueError: the gradients may be averaged over ranks already, and cannot be scaled any more.
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
    """Function whose backward pass adds gradients that were computed before. Its first argument requires a
    gradient, so that autograd calls it."""

    @staticmethod
    def forward(
        ctx: Any, _: Any, loss: torch.Tensor, parameters: Any, grads: Any, weight: float
    ) -> torch.Tensor:
        ctx.parameters, ctx.grads, ctx.weight = parameters, grads, weight
        return loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, ...]:
        """Add the gradients to grad. Raises ValueError for another factor than the weight."""
        if abs(float(grads[0]) - ctx.weight) > 1e-6 * abs(ctx.weight):
            raise ValueError(
                f"backward() was called on {float(grads[0]):g} x the loss of model(), but job.batch_weight "
                f"is {ctx.weight:g}: with sync Exact, batch.microSamples or parallelism.pipeline in "
                "spec.strategy call (loss * job.batch_weight).backward(), without another factor or "
                "loss"
            )
        for p, grad in zip(ctx.parameters, ctx.grads, strict=True):
            if grad is not None:
                p.grad = grad if p.grad is None else p.grad + grad
        ctx.grads = [None] * len(ctx.grads)  # a second backward() adds nothing
        return (None,) * 5
