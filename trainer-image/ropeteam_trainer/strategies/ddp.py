"""Synchronous data parallelism: every rank has the full model; gradients are averaged in every step.

Use it when the model and its optimizer fit into one rank; it is the fastest then.
Cost per step and rank, ring all-reduce of P parameters over n ranks: 2 (n-1)/n x 4P bytes sent, overlapped
with the backward pass; memory: everything, n times, and gradients once more in buckets.
replicate_model() does the same layer by layer and on a mesh, so that it composes with tensor and pipeline
parallelism. Alone it is `sync.type: Replicate`: use it where the module's type must not change, and not be
wrapped.
Sources: Li et al., "PyTorch Distributed", VLDB 2020 (torch's DistributedDataParallel);
torch.distributed._composable.replicate_with_fsdp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from ropeteam_trainer.strategies.model.units import units_of

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]
"""DDP communication hook: (state, bucket of gradients) -> future of the averaged bucket."""


class DataParallel(DistributedDataParallel):
    """DDP with reproducible sums.

    DDP rebuilds its gradient buckets after the first backward pass, and with three or more ranks another
    order of sums gives other last bits. A resumed job would use the first buckets in another step than a job
    that was not interrupted. So the first batch is run twice, and the first run has no effect: from the first
    step on, every process adds in the same order.
    """

    def __init__(self, module: nn.Module, hook: Hook | None = None) -> None:
        """hook: replaces the all-reduce of a gradient bucket."""
        super().__init__(module)
        self._buckets_rebuilt = False
        if hook is not None:
            self.register_comm_hook(None, self._except_in_rebuild(hook))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model; in the first call with gradients enabled rebuild the buckets before."""
        if not self._buckets_rebuilt and torch.is_grad_enabled():
            self._rebuild_buckets(*inputs, **named)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def _rebuild_buckets(self, *inputs: Any, **named: Any) -> None:
        """Run one forward and backward pass without effect: gradients, buffers and random generators are
        restored. The loss is the sum of all outputs, so that every parameter that is used gets a gradient."""
        buffers = [buffer.clone() for buffer in self.buffers()]
        grads = [parameter.grad for parameter in self.parameters()]
        for parameter in self.parameters():
            parameter.grad = None
        no_sync, self.require_backward_grad_sync = not self.require_backward_grad_sync, True
        devices = sorted({p.device.index for p in self.parameters() if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=devices):
            output = super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
            torch.stack([t.double().sum() for t in _differentiable(output)]).sum().backward()
        self.require_backward_grad_sync = not no_sync  # a first micro-batch is computed under no_sync()
        with torch.no_grad():
            for buffer, value in zip(self.buffers(), buffers, strict=True):
                buffer.copy_(value)
        for parameter, grad in zip(self.parameters(), grads, strict=True):
            parameter.grad = grad
        self._buckets_rebuilt = True

    def _except_in_rebuild(self, hook: Hook) -> Hook:
        """`hook`, except in _rebuild_buckets(), whose gradients must not enter its error feedback."""

        def rebuilt_hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
            if self._buckets_rebuilt:
                return hook(state, bucket)
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        rebuilt_hook.__annotations__.clear()  # DDP requires types here, or nothing, but no strings
        return rebuilt_hook


def replicate_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Average gradients over the replicas, in place: each unit in one all-reduce, then the rest of the model
    in one. mesh: its replicate dimension only."""
    for unit in units_of(model):
        replicate(unit, mesh=mesh)
    replicate(model, mesh=mesh)


def _differentiable(output: Any) -> Iterator[torch.Tensor]:
    """Tensors with a gradient in a model's output, which may be nested."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _differentiable(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _differentiable(value)
