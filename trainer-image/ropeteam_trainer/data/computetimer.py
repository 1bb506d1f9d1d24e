"""Timer of a rank's own compute: its speed without the time in which it waits for other ranks.

In synchronous training every step takes the same time on all ranks: the fast ones wait for the slow one in
the middle of their backward pass. So the timer is paused wherever this rank may be waiting:

    DistributedDataParallel   from the end of its own backward work until the gradients are reduced
    fully_shard               while the weights of a layer are gathered, and in the whole backward pass

It runs everywhere else: loading data, the forward pass, the optimizer, and the script's code between. Hooks
of modules and tensors do all of this. Limits: with fully_shard, a rank that is slow in the backward pass
alone is not seen. All other waits inside a step count as own work: buffers that DDP broadcasts before each
forward pass, SyncBatchNorm, the script's own collectives. On CUDA the marks are events on the stream, read
when they have happened, so that nothing waits for the device; that has not been run on one yet.
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
"""Point in time: a float in seconds, or a recorded CUDA event."""


class ComputeTimer:
    """Timer of one rank. Call start() and stop() around each step; the hooks pause and resume it."""

    def __init__(self, device: torch.device) -> None:
        self._mark, self._between = _cuda_clock() if device.type == "cuda" else _cpu_clock()
        self._counting, self._pauses, self._in_backward = False, 0, False
        self._since: Mark = None
        """Begin of the present interval; valid while the timer runs."""
        self._intervals: list[tuple[Mark, Mark]] = []
        """Intervals of the present step in which the timer ran."""
        self._steps: list[tuple[int, list[tuple[Mark, Mark]]]] = []
        """Samples and intervals of the steps since speed() was called."""

    def attach(self, model: nn.Module | None) -> None:
        """Register hooks that pause the timer where `model` waits for other ranks. Call it once. Raises
        ValueError for a model without DDP or fully_shard, and for None."""
        sharded = _sharded_layers(model)
        if model is None or not (sharded or isinstance(model, DistributedDataParallel)):
            raise ValueError(
                "batches(balance=True) measures how long each rank computes, and needs the model for it: "
                "call job.restore(model=...) before, with the model in DistributedDataParallel or "
                f"fully_shard. It was given {'none' if model is None else type(model).__name__}."
            )
        for layer in sharded:
            # one hook before fully_shard's, which gathers the weights, and one after it
            layer.register_forward_pre_hook(lambda *_: self.pause(), prepend=True)
            layer.register_forward_pre_hook(lambda *_: self.resume())
            _call_at_backward(layer, self._on_sharded_backward)
        if not sharded:
            _call_at_backward(model, self._on_ddp_backward)

    def start(self) -> None:
        """Begin a step, unless one has begun."""
        if not self._counting:
            self._counting, self._pauses, self._in_backward = True, 0, False
            self._intervals, self._since = [], self._mark()

    def stop(self, samples: int) -> None:
        """End the step, in which this rank computed on `samples` samples."""
        if self._counting:
            self.pause()
            self._counting = False
            self._steps.append((samples, self._intervals))

    def pause(self) -> None:
        """Pause: from here on this rank may wait for others. Pauses nest."""
        if self._counting and self._pauses == 0:
            self._intervals.append((self._since, self._mark()))
        self._pauses += 1

    def resume(self) -> None:
        """End one pause: the timer runs again when all have ended."""
        self._pauses -= 1
        if self._counting and self._pauses == 0:
            self._since = self._mark()

    def speed(self) -> float | None:
        """Samples per second of compute time: the median of the steps since the last call, so that one slow
        step, such as the first, changes nothing. Forgets these steps. None: no step could be measured (on
        CUDA: none is done)."""
        steps, self._steps = self._steps, []
        found = []
        for samples, intervals in steps:
            seconds = [self._between(begin, end) for begin, end in intervals]
            known = sum(each for each in seconds if each is not None)
            if samples and known > 0 and None not in seconds:
                found.append(samples / known)
        return statistics.median(found) if found else None

    def _on_ddp_backward(self) -> None:
        """DDP: pause when all gradients are computed, resume when they are reduced. Called when a backward
        pass begins. The engine runs callbacks in the order of registration: `computed` first, then DDP's, in
        which it waits, then the one that `computed` has registered."""

        def computed() -> None:
            self.pause()
            _call_after_backward(self.resume)

        _call_after_backward(computed)

    def _on_sharded_backward(self) -> None:
        """fully_shard: pause when the backward pass reaches the first layer, resume when it is done. Called
        for each layer. `done` is registered inside of a callback, so it runs after fully_shard's own
        callbacks."""

        def done() -> None:
            self._in_backward = False
            self.resume()

        if not self._in_backward:
            self._in_backward = True
            self.pause()
            _call_after_backward(lambda: _call_after_backward(done))


def _call_at_backward(layer: nn.Module, call: Callable[[], None]) -> None:
    """Call `call` each time when a backward pass reaches the output of `layer`, before earlier hooks run
    there, such as those that gather weights."""

    def hook(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        tensors = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        if differentiable := [tensor for tensor in tensors if tensor.requires_grad]:
            torch.autograd.graph.register_multi_grad_hook(differentiable, lambda _: call(), mode="any")

    layer.register_forward_hook(hook, prepend=True)


def _call_after_backward(call: Callable[[], None]) -> None:
    """Call `call` once, at the end of the present backward pass."""
    Variable._execution_engine.queue_callback(call)  # as DDP and FSDP do


def _sharded_layers(model: nn.Module | None) -> list[nn.Module]:
    """Modules to which fully_shard was applied."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # 1.2 s to import, and imported if the model uses it
    if model is None or fsdp is None:
        return []
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


def _cpu_clock() -> tuple[Callable[[], Mark], Callable[[Mark, Mark], float | None]]:
    """Function that marks now, and function for the seconds between two marks."""
    return time.perf_counter, lambda begin, end: float(end - begin)


def _cuda_clock() -> tuple[Callable[[], Mark], Callable[[Mark, Mark], float | None]]:
    """As _cpu_clock(), by events on the current stream. Seconds are None while the stream has not reached
    `end`."""

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        return begin.elapsed_time(end) / 1000 if end.query() else None

    return mark, between
