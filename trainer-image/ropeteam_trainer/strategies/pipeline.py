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
from ropeteam_trainer.partition.layout import scheduled_micro_batches
from ropeteam_trainer.strategies.model.microbatch import (
    ModelArguments,
    check_loss,
    max_over_ranks,
    micro_batch_bounds,
    sample_count,
    split_batch,
)

_SCHEDULES: dict[Schedule, Any] = {
    Schedule.GPIPE: pipelining.ScheduleGPipe,
    Schedule.ONE_FORWARD_ONE_BACKWARD: pipelining.Schedule1F1B,
    Schedule.INTERLEAVED: pipelining.ScheduleInterleaved1F1B,
    Schedule.ZERO_BUBBLE: pipelining.ScheduleInterleavedZeroBubble,
}
Loss = Callable[..., torch.Tensor]
"""(output, target) -> mean loss, one number."""


def stages_of_rank(
    model: nn.Module, settings: Pipelining, ranks: int, rank: int
) -> list[tuple[int, nn.Sequential]]:
    """Stages of the rank, with their numbers in the pipeline. ranks: of the pipeline; rank: among these.

    Stages have equal numbers of layers, or differ by one. With several per rank, rank r has the stages r, r +
    ranks, ... Raises StrategyError for a model that is not an nn.Sequential, or has too few layers.
    """
    if not isinstance(model, nn.Sequential):
        raise StrategyError(
            "spec.strategy.parallelism.pipeline: job.wrap() needs a model that is an nn.Sequential of its "
            f"layers (embedding, blocks, head), not a {type(model).__name__}; what is no layer, such as the "
            "loss, goes to job.wrap(..., loss=f)"
        )
    per_rank = settings.stage_count_per_rank
    stages = ranks * per_rank
    layers = list(model.named_children())
    if len(layers) < stages:
        raise StrategyError(
            f"spec.strategy.parallelism.pipeline: a model of {len(layers)} layers cannot make {stages} "
            f"stages; use at most {len(layers) // per_rank} ranks, with {per_rank} per rank"
        )
    ends = [len(layers) * number // stages for number in range(stages + 1)]
    own_stages = range(rank, stages, ranks)
    return [(n, nn.Sequential(OrderedDict(layers[ends[n] : ends[n + 1]]))) for n in own_stages]


class Pipeline:
    """All stages of this rank, run by a schedule of torch. Shapes may change from batch to batch.

    Stages exchange micro-batches of one size: one with a sample less than others is padded by repeating its
    last sample, and the loss ignores the padding. Replicas of the pipeline communicate at each micro-batch,
    so all split into as many, by the replica with the most samples.
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
        """group: ranks of this pipeline. communicates: whether its replicas communicate in this pass."""
        self._stages, self._settings, self._group, self._device = stages, settings, group, device
        self._loss, self._communicates = loss, communicates
        self._ranks = dist.get_world_size(group)
        self._last = self._ranks * settings.stage_count_per_rank - 1
        self._weight = 1.0
        """Factor of gradients in the current batch."""
        self._losses: list[torch.Tensor] = []
        """Losses of the current batch's micro-batches, each times its fraction of the samples. Last stage's
        rank only."""
        self._targets: list[tuple[Any, float]] = []
        """Target of each micro-batch, as an argument of a model, and its fraction of the samples."""
        self._bounds: list[tuple[int, int, float]] = []
        """Begin and end of each micro-batch without padding, and its fraction of the samples."""
        self._size = 0
        """Samples of a micro-batch, padding included."""
        self._schedules: dict[tuple[int, ...], Any] = {}
        """Schedules that were used, by what they depend on."""

    def run(self, inputs: torch.Tensor, target: Any, weight: float) -> torch.Tensor:
        """Run forward and, if gradients are enabled, backward passes of a batch. Returns its mean loss, on
        all ranks of the pipeline; gradients are those of weight x mean. inputs, target: the same on all ranks
        of the pipeline.

        Order: all replicas agree on the number of micro-batches, the inputs are padded and run, and the last
        stage's rank broadcasts the loss.
        """
        self._weight, self._losses = weight, []
        own = sample_count((inputs,))
        largest = max_over_ranks(own, (inputs,)) if self._communicates() else own
        count = scheduled_micro_batches(largest, self._settings, self._ranks)
        self._size, self._bounds = math.ceil(largest / count), micro_batch_bounds(own, count)
        numbers = [number for number, _ in self._stages]
        padded = self._padded(inputs)
        schedule = self._schedule_for(padded, count)
        target_numbers = {}  # torch cannot split targets unequally: _weighted_loss() looks them up
        if self._last in numbers:
            self._targets = split_batch(ModelArguments((target,), {}), count)
            target_numbers = {"target": torch.arange(count)}
        run = schedule.step if torch.is_grad_enabled() else schedule.eval
        run(*((padded,) if 0 in numbers else ()), **target_numbers)
        # Before a schedule's first run, shape inference computes losses of empty data.
        losses = self._losses[-count:]
        mean = torch.stack(losses).sum() if losses else torch.zeros(())
        mean = mean.to(self._device, torch.float32)
        owner = dist.get_global_rank(self._group, self._last % self._ranks)
        dist.broadcast(mean, src=owner, group=self._group)
        return mean

    def _padded(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs whose micro-batches have `_size` samples each: a smaller one repeats its last sample."""
        if len(inputs) == self._size * len(self._bounds):
            return inputs
        rows = [
            min(row, end - 1) for begin, end, _ in self._bounds for row in range(begin, begin + self._size)
        ]
        return inputs[torch.tensor(rows, device=inputs.device)]

    def _weighted_loss(self, output: Any, number: torch.Tensor) -> torch.Tensor:
        """Loss of one micro-batch x its fraction of the samples x the batch's weight, for the backward pass;
        it records the loss x the fraction in `_losses`. number: of the micro-batch, in the place of its
        target."""
        (begin, end, fraction), (target, _) = self._bounds[int(number)], self._targets[int(number)]
        loss = self._loss(_without_padding(output, end - begin, self._size), *target.inputs)
        check_loss(loss)
        self._losses.append(loss.detach() * fraction)
        return loss * (self._weight * fraction)

    def _schedule_for(self, inputs: torch.Tensor, count: int) -> Any:
        """Schedule of `count` micro-batches for inputs of this shape, created once for each: stages infer
        their shapes in the first run."""
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


def _without_padding(output: Any, samples: int, padded: int) -> Any:
    """Output of the first `samples` of `padded` samples. Each may have several rows, if the model flattens
    them. Raises TypeError if it is not one tensor with as many rows for each sample."""
    if samples == padded:
        return output
    if isinstance(output, torch.Tensor) and output.ndim and len(output) % padded == 0:
        return output[: len(output) // padded * samples]
    raise TypeError(
        "spec.strategy.parallelism.pipeline: for a batch that cannot be split into equal micro-batches the "
        f"last layer must return one tensor, samples first; it returned {type(output).__name__} for {padded} "
        "samples. Or choose a batch that pipelining.microBatches divides"
    )
