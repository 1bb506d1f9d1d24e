"""Pipeline parallelism: each rank has some layers (vertical split); micro-batches flow through all ranks.

With one micro-batch it is naive model parallelism: ranks wait for each other. With m of them and p
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

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from ropeteam_trainer.contract.strategy import Pipelining, Schedule, StrategyError
from ropeteam_trainer.partition.cost import micro_batches
from ropeteam_trainer.strategies.model.microbatch import (
    ModelArguments,
    bounds,
    check_loss,
    most,
    samples,
    split,
)

_SCHEDULES: dict[Schedule, Any] = {
    Schedule.GPIPE: pipelining.ScheduleGPipe,
    Schedule.ONE_FORWARD_ONE_BACKWARD: pipelining.Schedule1F1B,
    Schedule.INTERLEAVED: pipelining.ScheduleInterleaved1F1B,
    Schedule.ZERO_BUBBLE: pipelining.ScheduleInterleavedZeroBubble,
}
Loss = Callable[..., torch.Tensor]


def split_stages(
    model: nn.Module, settings: Pipelining, ranks: int, rank: int
) -> list[tuple[int, nn.Sequential]]:
    """This rank's stages and their numbers. Stages have equal numbers of layers where they divide evenly.

    Raises StrategyError for a model that is not an nn.Sequential, or has too few layers.
    """
    if not isinstance(model, nn.Sequential):
        raise StrategyError(
            "spec.strategy.parallelism.pipeline: the model must be an nn.Sequential of its layers "
            f"(embedding, blocks, head), this is a {type(model).__name__}; give the loss to wrap(..., loss=f)"
        )
    per_rank = settings.stage_count_per_rank
    stages = ranks * per_rank
    layers = list(model.named_children())
    if len(layers) < stages:
        raise StrategyError(
            f"spec.strategy.parallelism.pipeline: {len(layers)} layers cannot make {stages} stages; use at "
            f"most {len(layers) // per_rank} ranks with {per_rank} each"
        )
    ends = [len(layers) * number // stages for number in range(stages + 1)]
    own_stages = range(rank, stages, ranks)
    return [(n, nn.Sequential(OrderedDict(layers[ends[n] : ends[n + 1]]))) for n in own_stages]


class Pipeline:
    """All stages of this rank, run by a schedule. Shapes may change from batch to batch.

    Stages exchange micro-batches of one size: one with a sample less than others is padded by repeating one,
    and the loss ignores the padding. Replicas of the pipeline communicate at each micro-batch, so all split
    by the largest of their parts.
    """

    def __init__(
        self,
        stages: list[tuple[int, nn.Module]],
        settings: Pipelining,
        group: dist.ProcessGroup,
        device: torch.device,
        loss: Loss,
        communicates: Callable[[], bool],
    ) -> None:
        """communicates: whether replicas of the pipeline communicate in this pass."""
        self._stages, self._settings, self._group, self._device = stages, settings, group, device
        self._loss, self._communicates = loss, communicates
        self._ranks = dist.get_world_size(group)
        self._last = self._ranks * settings.stage_count_per_rank - 1
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []
        """Losses of the last batch's micro-batches, each times its weight, on the last stage's rank."""
        self._targets: list[tuple[Any, float]] = []
        self._bounds: list[tuple[int, int, float]] = []
        self._size = 0
        """Samples of a micro-batch, padding included."""
        self._schedules: dict[tuple[int, ...], Any] = {}

    def run(self, inputs: torch.Tensor, target: Any, weight: float) -> torch.Tensor:
        """The mean loss, on all ranks of the pipeline. Gradients, if enabled, are those of weight x mean."""
        self._weight, self._losses = weight, []
        own = samples((inputs,))
        largest = most(own, (inputs,)) if self._communicates() else own
        count = micro_batches(largest, self._settings, self._ranks)
        self._size, self._bounds = math.ceil(largest / count), bounds(own, count)
        numbers = [number for number, _ in self._stages]
        padded = self._padded(inputs)
        schedule = self._schedule_for(padded, count)
        target_numbers = {}
        if self._last in numbers:
            self._targets = split(ModelArguments((target,), {}), count)
            target_numbers = {"target": torch.arange(count)}
        run = schedule.step if torch.is_grad_enabled() else schedule.eval
        run(*((padded,) if 0 in numbers else ()), **target_numbers)
        losses = self._losses[-count:]  # shape inference of stages has run the loss on empty data before
        mean = torch.stack(losses).sum() if losses else torch.zeros(())
        mean = mean.to(self._device, torch.float32)
        owner = dist.get_global_rank(self._group, self._last % self._ranks)
        dist.broadcast(mean, src=owner, group=self._group)
        return mean

    def _padded(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs padded to equal micro-batches: a smaller one repeats its last sample."""
        if len(inputs) == self._size * len(self._bounds):
            return inputs
        rows = [
            min(row, end - 1) for begin, end, _ in self._bounds for row in range(begin, begin + self._size)
        ]
        return inputs[torch.tensor(rows, device=inputs.device)]

    def _weighted_loss(self, output: Any, number: torch.Tensor) -> torch.Tensor:
        """Loss of one micro-batch. number: of the micro-batch, passed instead of its target."""
        (begin, end, part), (target, _) = self._bounds[int(number)], self._targets[int(number)]
        loss = self._loss(_first(output, end - begin, self._size), *target.inputs)
        check_loss(loss)
        self._losses.append(loss.detach() * part)
        return loss * (self._weight * part)

    def _schedule_for(self, inputs: torch.Tensor, count: int) -> Any:
        """Schedule for this shape, one per shape: stages infer shapes when they first run."""
        key = (torch.is_grad_enabled(), count, *inputs.shape)
        if key not in self._schedules:
            stages = [
                PipelineStage(part, number, self._last + 1, self._device, group=self._group)
                for number, part in self._stages
            ]
            schedule_class = _SCHEDULES[self._settings.schedule]
            self._schedules[key] = schedule_class(
                stages if len(stages) > 1 else stages[0],
                n_microbatches=count,
                loss_fn=self._weighted_loss,
                scale_grads=False,
            )
        return self._schedules[key]


def _first(output: Any, rows: int, of: int) -> Any:
    """Output of the first `rows` samples: each may have several rows, where a model flattens them."""
    if rows == of:
        return output
    if isinstance(output, torch.Tensor) and output.ndim and len(output) % of == 0:
        return output[: len(output) // of * rows]
    raise TypeError(
        f"spec.strategy.parallelism.pipeline: a batch that is not split into equal micro-batches needs a "
        f"last layer that returns one tensor, samples first; this is {type(output).__name__}, for "
        f"micro-batches of {of} samples"
    )
