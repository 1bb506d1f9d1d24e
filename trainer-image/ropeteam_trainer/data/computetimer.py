"""How fast this rank works when it need not wait for the others.

In synchronous training every step takes the same time on all ranks: the fast ones wait for the slow one in
the middle of their backward pass. So a clock stands still wherever this rank may be waiting:

    DistributedDataParallel   from the end of its own backward work until the sums of gradients are there
    fully_shard               while the weights of a layer are gathered, and in the whole backward pass

It runs everywhere else: loading data, the forward pass, the optimizer, and what the script does between. All
of this hangs on hooks of modules and tensors. Limits: with fully_shard, a rank that is slow in the backward
pass alone is not seen. What else waits for others inside a step counts as own work: buffers that DDP sends
before each forward pass, SyncBatchNorm, the script's own collectives. On CUDA the marks are events on the
stream, read when they have happened, so that nothing waits for the device; that has not been run on one yet.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

Mark = Any
"""A moment: a float in seconds, or a recorded CUDA event."""


class ComputeTimer:
    """The clock of one rank. Call start() and stop() around each step; the hooks hold and release it."""

    def __init__(self, device: torch.device) -> None:
        self._mark, self._between = _cuda_clock() if device.type == "cuda" else _clock()
        self._counting, self._holds, self._in_backward = False, 0, False
        self._since: Mark = None
        self._pieces: list[tuple[Mark, Mark]] = []
        self._steps: list[tuple[int, list[tuple[Mark, Mark]]]] = []

    def attach(self, model: nn.Module | None) -> None:
        """Hold where `model` waits for other ranks. Raises ValueError where that is not known."""
        sharded = _sharded_layers(model)
        if model is None or not (sharded or isinstance(model, DistributedDataParallel)):
            raise ValueError(
                "batches(balance=True) measures how long each rank works and has to know the model for it: "
                "call job.restore(model=...) before, with the model in DistributedDataParallel or "
                f"fully_shard. It was given {'none' if model is None else type(model).__name__}."
            )
        for layer in sharded:
            layer.register_forward_pre_hook(lambda *_: self.pause(), prepend=True)
            layer.register_forward_pre_hook(lambda *_: self.resume())
            _at_backward(layer, self._sharded_backward)
        if not sharded:
            _at_backward(model, self._backward)

    def start(self) -> None:
        """A step begins, unless one is under way."""
        if not self._counting:
            self._counting, self._holds, self._in_backward = True, 0, False
            self._pieces, self._since = [], self._mark()

    def stop(self, samples: int) -> None:
        """It is done; this rank computed on `samples` samples."""
        if self._counting:
            self.pause()
            self._counting = False
            self._steps.append((samples, self._pieces))

    def pause(self) -> None:
        """Others may be waited for from here on. Holds nest."""
        if self._counting and self._holds == 0:
            self._pieces.append((self._since, self._mark()))
        self._holds += 1

    def resume(self) -> None:
        self._holds -= 1
        if self._counting and self._holds == 0:
            self._since = self._mark()

    def speed(self) -> float | None:
        """Samples per second of own time since the last call: the median of the steps, so that one slow
        step, such as the first, changes nothing. None: no step could be measured."""
        steps, self._steps = self._steps, []
        found = []
        for samples, pieces in steps:
            seconds = [self._between(begin, end) for begin, end in pieces]
            known = sum(each for each in seconds if each is not None)
            if samples and known > 0 and None not in seconds:
                found.append(samples / known)
        return statistics.median(found) if found else None

    def _backward(self) -> None:
        """DDP: hold when all gradients are computed, release when they are summed. The engine runs callbacks
        in the order in which they came: this is the first one, then DDP waits in its own, then the inner."""

        def computed() -> None:
            self.pause()
            _when_backward_is_done(self.resume)

        _when_backward_is_done(computed)

    def _sharded_backward(self) -> None:
        """fully_shard: hold when the backward pass comes to the first layer, release when all is done."""

        def done() -> None:
            self._in_backward = False
            self.resume()

        if not self._in_backward:
            self._in_backward = True
            self.pause()
            _when_backward_is_done(lambda: _when_backward_is_done(done))


def _at_backward(layer: nn.Module, call: Callable[[], None]) -> None:
    """Call each time when a backward pass comes to the output of `layer`, before hooks that are there already
    do anything there, such as to gather weights."""

    def hook(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        tensors = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        if differentiable := [tensor for tensor in tensors if tensor.requires_grad]:
            torch.autograd.graph.register_multi_grad_hook(differentiable, lambda _: call(), mode="any")

    layer.register_forward_hook(hook, prepend=True)


def _when_backward_is_done(call: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(call)  # as DDP and FSDP do


def _sharded_layers(model: nn.Module | None) -> list[nn.Module]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # 1.2 s to import, and here if the model uses it
    if model is None or fsdp is None:
        return []
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


def _clock() -> tuple[Callable[[], Mark], Callable[[Mark, Mark], float | None]]:
    return time.perf_counter, lambda begin, end: float(end - begin)


def _cuda_clock() -> tuple[Callable[[], Mark], Callable[[Mark, Mark], float | None]]:
    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        return begin.elapsed_time(end) / 1000 if end.query() else None

    return mark, between
