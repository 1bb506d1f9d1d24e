"""Pipeline parallelism: each rank has some layers (vertical split); micro-batches flow through all ranks.

With one micro-batch it is plain layer-wise parallelism: ranks wait for each other. With m of them and p
ranks, each rank computes m/(m+p-1) of the time (GPipe; OneForwardOneBackward holds fewer activations); v
stages per rank (Interleaved) shrink the bubble to (p-1)/v, and ZeroBubble fills two thirds of that with
gradients of weights.
Use it across nodes, where tensor parallelism would send too much.
Cost per rank: the activations of one micro-batch, forward and backward, to one neighbour, m times; memory
of the model 1/p.
Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream" (SOSP 2019) and "Efficient
Large-Scale Language Model Training" (SC 2021); Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024
(torch.distributed.pipelining).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from ropeteam_trainer.contract.cost import micro_batches
from ropeteam_trainer.contract.strategy import Pipelining, Schedule, StrategyError
from ropeteam_trainer.strategies.microbatch import check_loss, samples

_SCHEDULES: dict[Schedule, Any] = {
    Schedule.GPIPE: pipelining.ScheduleGPipe,
    Schedule.ONE_FORWARD_ONE_BACKWARD: pipelining.Schedule1F1B,
    Schedule.INTERLEAVED: pipelining.ScheduleInterleaved1F1B,
    Schedule.ZERO_BUBBLE: pipelining.ScheduleInterleavedZeroBubble,
}
Loss = Callable[..., torch.Tensor]


def cut(model: nn.Module, settings: Pipelining, ranks: int, rank: int) -> list[tuple[int, nn.Sequential]]:
    """This rank's stages and their numbers. Stages have equal numbers of layers, as far as that goes.

    Raises StrategyError for a model that is no nn.Sequential, or has too few layers.
    """
    if not isinstance(model, nn.Sequential):
        raise StrategyError(
            "strategy.parallelism.pipeline: the model must be an nn.Sequential of its layers (embedding, "
            f"blocks, head), this is a {type(model).__name__}; give the loss to wrap(..., loss=f)"
        )
    stages = ranks * settings.per_rank
    layers = list(model.named_children())
    if len(layers) < stages:
        raise StrategyError(
            f"strategy.parallelism.pipeline: {len(layers)} layers cannot make {stages} stages; use at most "
            f"{len(layers) // settings.per_rank} ranks with {settings.per_rank} each"
        )
    ends = [len(layers) * number // stages for number in range(stages + 1)]
    mine = range(rank, stages, ranks)
    return [(n, nn.Sequential(OrderedDict(layers[ends[n] : ends[n + 1]]))) for n in mine]


class Pipeline:
    """All stages of this rank, run by a schedule. Shapes may change from batch to batch."""

    def __init__(
        self,
        stages: list[tuple[int, nn.Module]],
        settings: Pipelining,
        group: dist.ProcessGroup,
        device: torch.device,
        loss: Loss,
    ) -> None:
        self._stages, self._settings, self._group, self._device = stages, settings, group, device
        self._loss = loss
        self._ranks = dist.get_world_size(group)
        self._last = self._ranks * settings.per_rank - 1
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []
        """Of the micro-batches of the last batch, on the rank with the last stage."""
        self._schedules: dict[tuple[int, ...], tuple[Any, int]] = {}

    def run(self, inputs: torch.Tensor, target: Any, weight: float) -> torch.Tensor:
        """The mean loss, on all ranks of the pipeline. Gradients, if enabled, are those of weight x mean."""
        self._weight, self._losses = weight, []
        numbers = [number for number, _ in self._stages]
        given = (inputs,) if 0 in numbers else ()
        wanted = {"target": target} if self._last in numbers else {}
        schedule, count = self._schedule_for(inputs)
        (schedule.step if torch.is_grad_enabled() else schedule.eval)(*given, **wanted)
        own = self._losses[-count:]  # stages that agree about shapes run the loss on nothing before
        mean = torch.stack(own).mean() if own else torch.zeros(())
        mean = mean.to(self._device, torch.float32)
        owner = dist.get_global_rank(self._group, self._last % self._ranks)
        dist.broadcast(mean, src=owner, group=self._group)
        return mean

    def _weighted_loss(self, output: Any, target: Any) -> torch.Tensor:
        loss = self._loss(output, target)
        check_loss(loss)
        self._losses.append(loss.detach())
        return loss * self._weight

    def _schedule_for(self, inputs: torch.Tensor) -> tuple[Any, int]:
        """A schedule and its number of micro-batches. One per shape: stages agree about shapes when they
        first run.
        """
        key = (torch.is_grad_enabled(), *inputs.shape)
        if key not in self._schedules:
            ranks, total = self._ranks, self._last + 1
            stages = [
                PipelineStage(part, number, total, self._device, group=self._group)
                for number, part in self._stages
            ]
            wanted = self._settings.micro_batches or 2 * total
            count = micro_batches(samples((inputs,)), wanted, ranks if len(stages) > 1 else 1)
            kind = _SCHEDULES[self._settings.schedule]
            schedule = kind(
                stages if len(stages) > 1 else stages[0],
                n_microbatches=count,
                loss_fn=self._weighted_loss,
                scale_grads=True,
            )
            self._schedules[key] = schedule, count
        return self._schedules[key]
