"""Local SGD: ranks train alone for some steps, then average their weights.

Plain: the average replaces the weights. Hierarchical: neighbours average often, all of them rarely. DiLoCo:
the average gives the pseudo-gradient of an outer optimizer, SGD with Nesterov momentum, which steps the
weights of the last synchronisation.
Use it when the network is slow: between sites, or on Ethernet.
Cost per rank: 2 (n-1)/n x 4P bytes every H steps instead of every step; DiLoCo 8P bytes of memory more.
The optimizers' own state and buffers stay local. Each rank saves its own, so a resumed job repeats the
undisturbed one; another number of ranks resumes with rank 0's.
Sources: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Lin et al., "Don't Use Large
Mini-Batches, Use Local SGD", ICLR 2020 (hierarchical); Douillard et al., "DiLoCo", 2023.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.optim import SGD, Optimizer

from ropeteam_trainer.contract.strategy import Local
from ropeteam_trainer.strategies.model.stepping import Step, wrap_step


class PeriodicAveraging:
    """Averages the weights over ranks after some of the optimizer's steps."""

    def __init__(self, parameters: list[nn.Parameter], optimizer: Optimizer, local: Local) -> None:
        """Wraps the optimizer's step. The ranks have the same weights now."""
        self._parameters, self._local, self._steps = parameters, local, 0
        self._average = self._averaging_function()
        self._outer = (
            _OuterOptimizer(parameters, local) if local.outer_learning_rate_per_mille is not None else None
        )
        wrap_step(optimizer, self._step)

    @property
    def in_sync(self) -> bool:
        """Whether all ranks have the same weights now."""
        return self._steps % (self._local.all_every_steps or self._local.every_steps) == 0

    @torch.no_grad()
    def synchronize(self) -> None:
        """Average now if the weights differ, and count steps from here again. Without a step of the outer
        optimizer. All ranks call it together."""
        if not self.in_sync:
            for p in self._parameters:
                dist.all_reduce(p)
                p.div_(dist.get_world_size())
            self._steps = 0
            self._average = self._averaging_function()

    def state_dict(self) -> dict[str, Any]:
        """State of the outer optimizer. Valid only while all ranks have the same weights."""
        return {"outer": self._outer.state_dict() if self._outer else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state, unless it is of a job without an outer optimizer, or this job has none."""
        if self._outer and state["outer"]:
            self._outer.load_state_dict(state["outer"])

    def _step(self, step: Step) -> Any:
        """Step locally, average if that is due, and step the outer optimizer if all ranks have the same
        weights then. Returns the result of the local step."""
        result = step()
        self._steps += 1
        self._average(self._parameters)
        if self._outer and self.in_sync:
            self._outer.step()
        return result

    def _averaging_function(self) -> Any:
        """Function of torch's averager, to be called with the parameters after each step. torch counts calls
        from 0 and averages if the count is a multiple of the period: begin with 1, to average after
        `every_steps`."""
        local = self._local
        if local.groups_of is None:
            averager: Any = PeriodicModelAverager(period=local.every_steps, warmup_steps=0)
        else:
            assert local.all_every_steps is not None
            sizes = OrderedDict(
                [(local.every_steps, local.groups_of), (local.all_every_steps, dist.get_world_size())]
            )
            averager = HierarchicalModelAverager(period_group_size_dict=sizes, warmup_steps=0)
        averager.step = 1
        return averager.average_parameters


class LocalState:
    """State that is not averaged, to be saved by each rank: its optimizer state, and the model's buffers."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """State, not copied."""
        return {
            "optimizer": self._optimizer.state_dict()["state"],
            "buffers": {name: buffer.detach() for name, buffer in self._model.named_buffers()},
        }

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load this rank's state, after the optimizer itself is loaded: its hyperparameters are the same on
        all ranks."""
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": saved["optimizer"]})
        for name, buffer in self._model.named_buffers():
            buffer.copy_(saved["buffers"][name])


class _OuterOptimizer:
    """DiLoCo's outer optimizer: SGD over the weights of the last synchronization."""

    def __init__(self, parameters: list[nn.Parameter], local: Local) -> None:
        """parameters: with the same values on all ranks; copied as the first common weights."""
        self._parameters = parameters
        self._common = [nn.Parameter(p.detach().clone()) for p in parameters]
        assert local.outer_learning_rate_per_mille is not None
        self._sgd = SGD(
            self._common,
            lr=local.outer_learning_rate_per_mille / 1000,
            momentum=local.outer_momentum_per_mille / 1000,
            nesterov=local.outer_momentum_per_mille > 0,
        )

    @torch.no_grad()
    def step(self) -> None:
        """Step the common weights, with their difference from the mean as the gradient, and set the
        parameters to them. Called when the parameters are the mean of all ranks; every rank computes the
        same."""
        for common, mean in zip(self._common, self._parameters, strict=True):
            common.grad = common - mean
        self._sgd.step()
        for common, mean in zip(self._common, self._parameters, strict=True):
            mean.copy_(common)

    def state_dict(self) -> dict[str, Any]:
        return {"common": [p.detach() for p in self._common], "sgd": self._sgd.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for common, saved in zip(self._common, state["common"], strict=True):
            common.copy_(saved)
        self._sgd.load_state_dict(state["sgd"])
