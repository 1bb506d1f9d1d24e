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
from torch.distributed.distributed_c10d import (
    init_process_group,
)  # scripts find a stand-in at torch.distributed
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ropeteam_trainer.contract.strategy import Parallelism, Sharding, Strategy, Sync
from ropeteam_trainer.partition.answer import Model, ModelPart, Tensor
from ropeteam_trainer.partition.layout import Layout, balanced_owners, layout
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies import tensor
from ropeteam_trainer.strategies.model.units import units_of
from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped, wrap


def join(rank: int, size: int) -> None:
    """Join a world without communication. Leaves the previous one."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if size > 1:
        init_process_group("fake", rank=rank, world_size=size)


def measure(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: Strategy,
    size: int,
    loss: Callable[..., torch.Tensor] | None = None,
    tensor_plan: tensor.PlanMaker | None = None,
) -> Model:
    """Wrap the model for each rank that differs. size: ranks of the world. Raises StrategyError as wrap()."""
    if strategy.servers:  # each worker computes alone
        strategy, size = replace(strategy, sync=Sync(), parallelism=Parallelism()), 1
    grid = layout(strategy, size)
    whole = sum(p.numel() for p in model.parameters())
    name, rates = type(optimizer).__name__, _rates(optimizer)
    parts, scaled = [], rates
    for rank in _ranks_that_differ(optimizer, strategy, grid):
        join(rank, size)
        copied = copy.deepcopy((model, optimizer))
        world = World(rank, size, torch.device("cpu"))
        wrapped = wrap(*copied, strategy, world, LoopValues(lambda: 1.0, lambda: 0), loss, tensor_plan)
        scaled = _rates(wrapped.optimizer)
        parts.append(_part(rank, wrapped))
    return Model(whole, name, rates, scaled, tuple(parts))


def _ranks_that_differ(optimizer: Optimizer, strategy: Strategy, grid: Layout) -> list[int]:
    """One rank per pipeline stage: first ranks have the largest shards. Under ZeRO-1, the fullest rank."""
    size = grid.world
    if strategy.sharding is Sharding.OPTIMIZER_STATE and size > 1:
        sizes = [p.numel() for group in optimizer.param_groups for p in group["params"]]
        owners = balanced_owners(sizes, size)
        load = [[s for s, owner in zip(sizes, owners, strict=True) if owner == rank] for rank in range(size)]
        return [max(range(size), key=lambda rank: (sum(load[rank]), len(load[rank])))]
    return [stage * (grid.world // grid.pipeline) for stage in range(grid.pipeline)]


def _part(rank: int, wrapped: Wrapped) -> ModelPart:
    parameters = [p for part in wrapped.parts for p in part.parameters()]
    tensors = tuple(
        Tensor(tuple(p.shape), _local(p).numel(), p.element_size(), p.requires_grad) for p in parameters
    )
    return ModelPart(rank, tensors, sum(map(_groups, wrapped.parts)), _state_bytes(wrapped.optimizer))


def _groups(part: nn.Module) -> int:
    units = units_of(part)
    inside = {id(p) for unit in units for p in unit.parameters()}
    return len(units) + any(id(p) not in inside for p in part.parameters())


def _rates(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def _state_bytes(optimizer: Optimizer) -> int | None:
    """Bytes of state after one step with zero gradients: the optimizer's own step, without our hooks."""
    for group in optimizer.param_groups:
        group.update({name: False for name in ("fused", "foreach", "capturable") if name in group})
        for p in group["params"]:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
    try:
        type(optimizer).step(optimizer)
    except Exception:  # closures, steps that read values: the optimizer may be any
        return None
    states = (_tensors(state) for state in optimizer.state.values())
    return sum(_local(value).nbytes for state in states for value in state)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors(value)


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
