"""Measurement of a wrapped model: the real wrap(), in a world without other ranks.

torch's "fake" backend completes all collectives without communication, so each rank that differs from the
others is measured in turn, in this process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import init_process_group  # torch.distributed's is patched by shim.py
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ropeteam_trainer.contract.strategy import Parallelism, Sharding, Strategy, Sync
from ropeteam_trainer.partition.answer import Model, ModelPart, Tensor
from ropeteam_trainer.partition.layout import Layout, balanced_owners, layout
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies import tensor
from ropeteam_trainer.strategies.model.units import units_of
from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped, wrap


def join_fake_world(rank: int, size: int) -> None:
    """Leave the present process group, and join one of `size` ranks whose collectives return at once, without
    communication. size 1: none."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if size > 1:
        init_process_group("fake", rank=rank, world_size=size)


def measure_model(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: Strategy,
    size: int,
    loss: Callable[..., torch.Tensor] | None = None,
    tensor_plan: tensor.PlanMaker | None = None,
) -> Model:
    """Measure what wrap() makes of copies of the model and the optimizer, on each rank that differs from the
    others. size: ranks of the world. Raises StrategyError as wrap(). The process group is that of the last
    measured rank afterwards.
    """
    if strategy.servers:  # each worker computes alone, so it is measured like a job of one rank
        strategy, size = replace(strategy, sync=Sync(), parallelism=Parallelism()), 1
    grid = layout(strategy, size)
    whole = sum(p.numel() for p in model.parameters())
    name, rates = type(optimizer).__name__, _learning_rates(optimizer)
    parts, scaled = [], rates
    for rank in _ranks_to_measure(optimizer, strategy, grid):
        join_fake_world(rank, size)
        copied = copy.deepcopy((model, optimizer))
        world = World(rank, size, torch.device("cpu"))
        wrapped = wrap(*copied, strategy, world, LoopValues(lambda: 1.0, lambda: 0), loss, tensor_plan)
        scaled = _learning_rates(wrapped.optimizer)
        parts.append(_measured_part(rank, wrapped))
    return Model(whole, name, rates, scaled, tuple(parts))


def _ranks_to_measure(optimizer: Optimizer, strategy: Strategy, grid: Layout) -> list[int]:
    """Ranks to measure: the first rank of each pipeline stage, which has the largest shards. Under ZeRO-1,
    which shares out whole parameters, the rank with the most elements (and of those with as many, the most
    parameters)."""
    size = grid.world
    if strategy.sharding is Sharding.OPTIMIZER_STATE and size > 1:
        sizes = [p.numel() for group in optimizer.param_groups for p in group["params"]]
        owners = balanced_owners(sizes, size)
        load = [[s for s, owner in zip(sizes, owners, strict=True) if owner == rank] for rank in range(size)]
        return [max(range(size), key=lambda rank: (sum(load[rank]), len(load[rank])))]
    return [stage * (grid.world // grid.pipeline) for stage in range(grid.pipeline)]


def _measured_part(rank: int, wrapped: Wrapped) -> ModelPart:
    """Part of the model on one rank. Takes a step of the wrapped optimizer, to measure its state."""
    parameters = [p for part in wrapped.parts for p in part.parameters()]
    tensors = tuple(
        Tensor(tuple(p.shape), _local_tensor(p).numel(), p.element_size(), p.requires_grad)
        for p in parameters
    )
    return ModelPart(
        rank, tensors, sum(map(_unit_count, wrapped.parts)), _measured_optimizer_state(wrapped.optimizer)
    )


def _unit_count(part: nn.Module) -> int:
    """Units of a part; parameters outside of all units are one more."""
    units = units_of(part)
    inside = {id(p) for unit in units for p in unit.parameters()}
    return len(units) + any(id(p) not in inside for p in part.parameters())


def _learning_rates(optimizer: Optimizer) -> tuple[float, ...]:
    """Learning rate of each parameter group that has one."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def _measured_optimizer_state(optimizer: Optimizer) -> int | None:
    """Take one step with zero gradients on the meta device, and return the bytes of the optimizer's state
    then. None: the optimizer cannot step without data (it needs a closure, or reads values).

    Changes the optimizer, a copy: gradients, options and state. The step is the class's own, without our
    hooks, which communicate; fused and foreach kernels and capturable need a real device.
    """
    for group in optimizer.param_groups:
        group.update({name: False for name in ("fused", "foreach", "capturable") if name in group})
        for p in group["params"]:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
    try:
        type(optimizer).step(optimizer)
    except Exception:  # the optimizer may be any
        return None
    states = (_tensors_in(state) for state in optimizer.state.values())
    return sum(_local_tensor(value).nbytes for state in states for value in state)


def _tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """Tensors in an optimizer's state, which may be nested."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors_in(value)


def _local_tensor(value: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor; any other tensor as it is."""
    return value.to_local() if isinstance(value, DTensor) else value
