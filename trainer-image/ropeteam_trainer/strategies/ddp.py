"""Synchronous data parallelism: every rank has the whole model; gradients are averaged in every step.

Use it when the model and its optimizer fit into one rank; it is the fastest then.
Cost per step and rank, ring all-reduce of P parameters over n ranks: 2 (n-1)/n x 4P bytes sent, overlapped
with the backward pass; memory: everything, n times, and gradients once more in buckets.
Source: Li et al., "PyTorch Distributed", VLDB 2020 (torch's DistributedDataParallel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]


class DataParallel(DistributedDataParallel):
    """DDP whose sums are repeatable.

    DDP orders its gradient buckets anew after the first backward pass, and at three or more ranks another
    order sums to other last bits. A resumed run would be one pass behind; so the first batch goes through
    once more, with gradients, buffers and random generators put back: from the first step on, every run
    adds in the same order.
    """

    def __init__(self, module: nn.Module, hook: Hook | None = None) -> None:
        """hook: what to do with a bucket of gradients instead of an all-reduce (a DDP communication hook)."""
        super().__init__(module)
        self._settled = False
        if hook is not None:
            self.register_comm_hook(None, self._after_settling(hook))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not self._settled and torch.is_grad_enabled():
            self._settle(*inputs, **named)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def _settle(self, *inputs: Any, **named: Any) -> None:
        buffers = [buffer.clone() for buffer in self.buffers()]
        grads = [parameter.grad for parameter in self.parameters()]
        for parameter in self.parameters():
            parameter.grad = None
        quiet, self.require_backward_grad_sync = not self.require_backward_grad_sync, True
        devices = sorted({p.device.index for p in self.parameters() if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=devices):
            output = super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
            torch.stack([t.double().sum() for t in _differentiable(output)]).sum().backward()
        self.require_backward_grad_sync = not quiet  # a first micro-batch is computed under no_sync()
        with torch.no_grad():
            for buffer, value in zip(self.buffers(), buffers, strict=True):
                buffer.copy_(value)
        for parameter, grad in zip(self.parameters(), grads, strict=True):
            parameter.grad = grad
        self._settled = True

    def _after_settling(self, hook: Hook) -> Hook:
        """Hooks may remember errors of former gradients; those of the pass that is thrown away are none."""

        def settled(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
            if self._settled:
                return hook(state, bucket)
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        settled.__annotations__.clear()  # DDP wants types here, or nothing, but no text
        return settled


def _differentiable(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _differentiable(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _differentiable(value)
