"""ZeRO-1: every rank has the full model, and 1/n of the optimizer's state.

Gradients are averaged as in data parallelism; each rank steps its part of the parameters and sends the result
to the others.
Use it when the model fits into one rank but Adam's two moments do not.
Cost per step and rank: 2 (n-1)/n x 4P bytes for gradients, (n-1)/n x 4P for parameters; memory 8P + 8P/n
under Adam.
Source: Rajbhandari et al., "ZeRO", SC 2020. Not torch's ZeroRedundancyOptimizer: that replaces the script's
optimizer (schedulers lose it), is marked experimental, and does not accept AdamW's defaults.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.partition.layout import balanced_owners
from ropeteam_trainer.strategies.model.stepping import Step, wrap_step


def shard_optimizer_state(optimizer: Optimizer) -> None:
    """Restrict the optimizer to this rank's part of its parameters, in place. Its step() then broadcasts each
    rank's part, so all ranks must step together; its zero_grad() clears all gradients.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    owners = balanced_owners([p.numel() for p in parameters], dist.get_world_size())
    owner_of = {id(p): owner for p, owner in zip(parameters, owners, strict=True)}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if owner_of[id(p)] == dist.get_rank()]
    parts = [[p for p in parameters if owner_of[id(p)] == rank] for rank in range(dist.get_world_size())]
    wrap_step(optimizer, lambda step: _step(step, parts))

    def zero_grad(set_to_none: bool = True) -> None:
        for p in parameters:
            if set_to_none or p.grad is None:
                p.grad = None
            else:
                p.grad.zero_()

    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]  # the original has this rank's part only


@torch.no_grad()
def _step(step: Step, parts: list[list[nn.Parameter]]) -> Any:
    """Step this rank's part, then broadcast each rank's part from its owner, its parameters joined into one
    tensor. parts: parameters by rank. Returns the result of the step."""
    result = step()
    flat = [torch.cat([p.detach().flatten() for p in part]) if part else None for part in parts]
    broadcasts = [
        dist.broadcast(each, src=rank, async_op=True) for rank, each in enumerate(flat) if each is not None
    ]
    for work in broadcasts:
        assert work is not None
        work.wait()
    for part, each in zip(parts, flat, strict=True):
        if each is not None:
            for p, value in zip(part, each.split([p.numel() for p in part]), strict=True):
                p.copy_(value.view_as(p))
    return result
