"""Apply a strategy to a model and its optimizer: job.wrap().

Order: broadcast weights; split layers (tensor); keep own stages (pipeline); activation checkpointing;
precision; replicas and shards; then the optimizer is bound to the new parameters and its step gets its hooks.
The loop that uses model and optimizer stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from ropeteam_trainer.contract.strategy import (
    ActivationCheckpointing,
    CatchUp,
    Precision,
    Sharding,
    Strategy,
    StrategyError,
    SyncType,
    TrustRatio,
)
from ropeteam_trainer.data.decisions.plan import Deal, Leaf
from ropeteam_trainer.partition.layout import Layout, layout, leaves_of
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies import (
    activations,
    compression,
    ddp,
    fsdp,
    largebatch,
    pipeline,
    precision,
    ring,
    tensor,
    zero1,
)
from ropeteam_trainer.strategies.ddp import Hook
from ropeteam_trainer.strategies.exact.arrivals import Reception, begin_alone, join_living_replicas
from ropeteam_trainer.strategies.exact.joining import computes_with, join_replicas
from ropeteam_trainer.strategies.exact.members import AgentMembership, Replication, WorldsOfJob
from ropeteam_trainer.strategies.exact.step import ExactStep
from ropeteam_trainer.strategies.facade import Loss, ModelFacade
from ropeteam_trainer.strategies.local import LocalState, PeriodicAveraging
from ropeteam_trainer.strategies.model.microbatch import ModelArguments
from ropeteam_trainer.strategies.model.naming import named_parameters, rebind_optimizer


@dataclass(frozen=True)
class LoopValues:
    """Values of the job that techniques read in each step."""

    batch_weight: Callable[[], float]
    """Job.batch_weight."""
    steps_done: Callable[[], int]
    """Job.step."""
    leaves: Callable[[], tuple[Leaf, ...]] = tuple
    """Micro-batches of the last batch, under sync Exact."""
    other_leaves: Callable[[Sequence[int], Any], tuple[tuple[Leaf, ...], Any]] | None = None
    """Feed.other_leaves()."""
    worlds: WorldsOfJob | None = None
    """None: the first loss of a rank ends its world."""


@dataclass(frozen=True)
class Wrapped:
    """Model and optimizer with a strategy applied, and what checkpoints and clipping need of it."""

    model: nn.Module
    """The module that the loop calls."""
    optimizer: Optimizer
    parts: tuple[nn.Module, ...]
    """Parts of the model that this rank saves in a checkpoint."""
    extra: Mapping[str, Any]
    """More objects to checkpoint, with state_dict() and load_state_dict(), the same on all ranks."""
    own: Mapping[str, Any]
    """More objects to checkpoint, different on each rank. Their names are those in checkpoints: never change
    them."""
    layout: Layout
    local: PeriodicAveraging | None
    scale: precision.LossScale | None
    mesh: DeviceMesh | None
    """None: one rank."""
    deal: Deal | None = None
    """This rank's micro-batches under sync Exact."""
    exact: ExactStep | None = None

    def close(self) -> None:
        """End the connections to other replicas, if there are any."""
        if self.exact is not None:
            self.exact.close()

    def in_sync(self) -> bool:
        """Whether all ranks have the same weights now; a checkpoint needs that."""
        return self.local is None or self.local.in_sync

    def synchronize(self) -> None:
        """Average the weights now if they differ between ranks (local SGD). All ranks call it together."""
        if self.local is not None:
            self.local.synchronize()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Scale gradients in place so that their norm, over all ranks that share the model, is at most
        `max_norm`. Returns the norm that they had. All ranks call it together, after the backward pass.

        Order: gradients are unscaled; the squares of norms are summed over meshes (torch joins tensors of one
        mesh only), then over the stages of a pipeline.
        """
        if self.scale is not None:
            self.scale.unscale()
        grads = [p.grad for part in self.parts for p in part.parameters() if p.grad is not None]
        squares = torch.zeros(())
        for same_mesh in _grouped_by_mesh(grads):
            norm = nn.utils.get_total_norm(same_mesh)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            squares = squares.to(norm.device) + norm**2
        if self.layout.pipeline > 1:
            assert self.mesh is not None
            dist.all_reduce(squares, group=self.mesh["pipeline"].get_group())
        total = squares.sqrt()
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor.to(grad.device))
        return total


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: Strategy,
    world: World,
    progress: LoopValues,
    loss: Loss | None = None,
    tensor_plan: tensor.PlanMaker | None = None,
) -> Wrapped:
    """Apply the strategy to model and optimizer, in place. All ranks call it together, except ranks that join
    others. Raises StrategyError with the field to change; in most cases before any change.

    The order is that of this module's docstring. Each step needs the one before: a stage is split by layers
    that tensor parallelism has replaced, and the optimizer is bound to the parameters that are left.
    """
    grid = layout(strategy, world.size)
    check_settings(strategy, optimizer, loss)
    before = named_parameters([model])
    recovery = _, mates = progress.worlds, _mates(grid, world, progress.worlds)
    mesh = _mesh(grid, world.device, mates.ranks if world.is_apart else range(world.size))
    _broadcast_weights(model, world, mates, progress.worlds)
    if grid.tensor > 1:
        assert mesh is not None
        tensor.split_layers(model, mesh["tensor"], strategy.tensor_parallel, tensor_plan)
    stages = _own_stages(model, strategy, grid, world.rank)
    hook = _comm_hook(strategy)
    stages = [(number, _apply_to_part(part, strategy, grid, mesh, world, hook)) for number, part in stages]
    parts = tuple(part for _, part in stages)
    rebind_optimizer(optimizer, before, parts)
    _wrap_step(optimizer, strategy, grid, progress)
    extra: dict[str, Any] = {}
    own: dict[str, Any] = {f"{type(hook).__name__}'s memory": hook} if hasattr(hook, "state_dict") else {}
    steps = None
    if strategy.sync.type is SyncType.LOCAL and world.size > 1:
        extra["local"] = steps = PeriodicAveraging(list(model.parameters()), optimizer, strategy.sync.local)
        own = {"the local optimizers' state": LocalState(model, optimizer)}
    scale = precision.LossScale(optimizer, world.device) if strategy.precision is Precision.FLOAT16 else None
    if scale is not None:
        extra["loss_scale"] = scale
    facade = ModelFacade(parts, loss, strategy.batch.micro_samples, progress.batch_weight, scale)
    if grid.pipeline > 1:
        assert mesh is not None
        facade.use_pipeline(_pipeline(stages, strategy, grid, mesh, world.device, facade.pipeline_loss))
    exact = deal = None
    if strategy.sync.type is SyncType.EXACT:
        extra["exact"] = exact = _exact_step(parts, optimizer, strategy, grid, world, mesh, recovery)
        deal = _deal(strategy, grid, world.rank)
        facade.use_exact(exact, progress.leaves, progress.steps_done, partial(_more_leaves, progress))
    called = facade if facade.is_needed or parts[0] is not model else model
    return Wrapped(called, optimizer, parts, extra, own, grid, steps, scale, mesh, deal, exact)


def _mates(grid: Layout, world: World, job: WorldsOfJob | None) -> Mates:
    """The ranks that are lost with this one, while other replicas continue; this one alone, if none does."""
    return world.mates(grid.shard * grid.tensor) if job and grid.replicate > 1 else Mates()


def _exact_step(
    parts: tuple[nn.Module, ...],
    optimizer: Optimizer,
    strategy: Strategy,
    grid: Layout,
    world: World,
    mesh: DeviceMesh | None,
    recovery: tuple[WorldsOfJob | None, Mates],
) -> ExactStep:
    """Steps of sync Exact. Raises StrategyError where ranks would not compute the same bits."""
    _check_parameters(optimizer, named_parameters(parts))
    job, mates = recovery
    here = world.of_mates(mates) if world.is_apart else world
    computes = (
        f"{computes_with(here)}, {strategy.leaves} micro-batches, {grid.shard * grid.tensor} ranks a replica"
    )
    seed = here.number_of_rank_0(torch.initial_seed() >> 1)  # an int64
    group = mesh["shard"].get_group() if mesh is not None and grid.shard > 1 else None
    replica = grid.coordinate(world.rank).replicate
    follows = strategy.sync.catch_up is CatchUp.FOLLOW
    if job is None or grid.replicate == 1:
        join = partial(join_replicas, world, grid, strategy.leaves)
        return ExactStep(
            parts, strategy.leaves, seed, join, computes, group, Replication(replica, grid.replicate)
        )
    begins_alone = job.first.begins_alone(world.rank)
    if begins_alone:
        join = partial(begin_alone, replica, grid.replicate, strategy.leaves, world.timeout_seconds)
    elif world.is_apart:
        join = partial(join_living_replicas, world, mates, job.first, strategy.leaves, computes, follows)
    else:
        join = partial(join_replicas, world, grid, strategy.leaves)
    membership = AgentMembership(job.link, job.first, grid.replicate, world.timeout_seconds, mates)
    replicas = Replication(replica, grid.replicate, membership, mates, follows, begins_alone)
    exact = ExactStep(parts, strategy.leaves, seed, join, computes, group, replicas)
    Reception(job, mates, computes, world.timeout_seconds, exact.admitting)
    return exact


def _more_leaves(
    progress: LoopValues, numbers: Sequence[int], own: ModelArguments
) -> tuple[Sequence[Leaf], ModelArguments]:
    """As MoreLeaves."""
    assert progress.other_leaves is not None
    leaves, arguments = progress.other_leaves(numbers, tuple(own))
    return leaves, ModelArguments(*arguments)


def _check_parameters(optimizer: Optimizer, of_model: Mapping[str, nn.Parameter]) -> None:
    """Raise StrategyError for an optimizer with other parameters than the model's: their gradients would stay
    those of this rank's micro-batches."""
    known = {id(parameter) for parameter in of_model.values()}
    others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if any(parameter.requires_grad for parameter in others):
        raise StrategyError(
            "spec.strategy.sync: Exact adds the gradients of the model that job.wrap() gets, and the "
            f"optimizer has {len(others)} parameters that are not in it; make them part of the model, a loss "
            "with weights for example, or use sync AllReduce"
        )


def _deal(strategy: Strategy, grid: Layout, rank: int) -> Deal:
    """Micro-batches of a rank under sync Exact: an equal part for each replica."""
    return Deal(strategy.leaves, leaves_of(strategy, grid, rank), grid.coordinate(rank).shard, grid.shard)


def _own_stages(model: nn.Module, strategy: Strategy, grid: Layout, rank: int) -> list[tuple[int, nn.Module]]:
    """This rank's stages with their numbers; without a pipeline the whole model. Raises StrategyError."""
    if grid.pipeline == 1:
        return [(0, model)]
    stage_rank = grid.coordinate(rank).pipeline
    return [*pipeline.stages_of_rank(model, strategy.pipelining, grid.pipeline, stage_rank)]


def _pipeline(
    stages: list[tuple[int, nn.Module]],
    strategy: Strategy,
    grid: Layout,
    mesh: DeviceMesh,
    device: torch.device,
    loss: Loss,
) -> pipeline.Pipeline:
    """Pipeline of this rank's stages."""
    group, communicates = mesh["pipeline"].get_group(), partial(_replicas_communicate, grid)
    return pipeline.Pipeline(stages, strategy.pipelining, group, device, loss, communicates)


def check_settings(strategy: Strategy, optimizer: Optimizer, loss: Loss | None) -> None:
    """Raise StrategyError for an optimizer that has stepped already, and for settings that cannot work with
    it or without a loss. Changes nothing."""
    rate = strategy.learning_rate
    if optimizer.state:
        raise StrategyError("job.wrap() was called after the optimizer's first step; call it before the loop")
    if strategy.parallelism.pipeline > 1 and loss is None:
        raise StrategyError(
            "spec.strategy.parallelism.pipeline needs the loss function: call job.wrap(model, optimizer, "
            "loss=f)"
        )
    needed: Any = {TrustRatio.LARS: SGD, TrustRatio.LAMB: (Adam, AdamW)}.get(rate.trust_ratio)  # type: ignore[arg-type]
    if needed is not None and not isinstance(optimizer, needed):
        assert rate.trust_ratio is not None
        raise StrategyError(
            f"spec.strategy.learningRate.trustRatio: {rate.trust_ratio.value} requires "
            f"{'SGD' if rate.trust_ratio is TrustRatio.LARS else 'AdamW'}, the script has "
            f"{type(optimizer).__name__}; change the script's optimizer, or leave trustRatio out"
        )


def _mesh(grid: Layout, device: torch.device, ranks: range) -> DeviceMesh | None:
    """Mesh with a dimension for each kind of parallelism above 1, named as in Layout. None: one rank. ranks:
    all, or those of one replica."""
    grid = grid if len(ranks) == grid.world else replace(grid, replicate=1)
    named = [
        (name, size)
        for name in ("pipeline", "replicate", "shard", "tensor")
        if (size := getattr(grid, name)) > 1
    ]
    if not named:
        return None
    names, sizes = zip(*named, strict=True)
    numbers = torch.arange(ranks.start, ranks.stop, device="cpu").view(sizes)
    return DeviceMesh(device.type, numbers, mesh_dim_names=names)


@torch.no_grad()
def _broadcast_weights(model: nn.Module, world: World, mates: Mates, job: WorldsOfJob | None) -> None:
    """Broadcast the first rank's parameters and buffers, in place, so that scripts need no common seed. Ranks
    that join others get theirs later."""
    if world.is_apart and job and job.first.begins_alone(world.rank):
        world = world.of_mates(mates)
    if world.size == 1 or world.is_apart:
        return
    for value in (*model.parameters(), *model.buffers()):
        dist.broadcast(value.detach(), world.first, world.group)


def _comm_hook(strategy: Strategy) -> Hook | None:
    """DDP communication hook that replaces the all-reduce of a gradient bucket. None: DDP's own."""
    if strategy.gradient_compression:
        return compression.comm_hook(strategy.gradient_compression)
    return ring.comm_hook if strategy.sync.type is SyncType.RING else None


def _apply_to_part(
    part: nn.Module,
    strategy: Strategy,
    grid: Layout,
    mesh: DeviceMesh | None,
    world: World,
    hook: Hook | None,
) -> nn.Module:
    """Apply activation checkpointing, precision, replicas and shards to one part of the model, in place.
    Returns the module to call: the part itself, except under DDP.

    First match wins: sharded parameters (FSDP, which has its own precision policy); no replicas that average
    gradients; a model that is split already, or sync Replicate (composable DDP); DDP.
    """
    shards = grid.shard > 1 and strategy.sharding is not Sharding.OPTIMIZER_STATE
    if strategy.activation_checkpointing is not ActivationCheckpointing.NONE:
        activations.checkpoint_activations(part, strategy.activation_checkpointing)
    if strategy.precision is not Precision.FLOAT32 and not shards:
        precision.enable_autocast(part, strategy.precision, world.device)
    if shards:
        assert mesh is not None
        averages = grid.replicate > 1 and strategy.sync.type is not SyncType.EXACT
        mesh_dims = ("replicate", "shard") if averages else ("shard",)
        fsdp.shard_model(part, mesh[mesh_dims], strategy)
        return part
    if grid.dp_size == 1 or strategy.sync.type in (SyncType.LOCAL, SyncType.EXACT):
        return part
    if grid.pipeline * grid.tensor > 1 or strategy.sync.type is SyncType.REPLICATE:
        assert mesh is not None
        ddp.replicate_model(part, mesh["replicate"])
        return part
    if not world.communicates:  # DDP compares values of the ranks, and changes no sizes
        return part
    return ddp.DataParallel(part, hook)


def _replicas_communicate(grid: Layout) -> bool:
    """Whether replicas of a pipeline communicate in this pass: they average gradients, or gather sharded
    layers."""
    return grid.shard > 1 or (grid.replicate > 1 and torch.is_grad_enabled())


def _wrap_step(optimizer: Optimizer, strategy: Strategy, grid: Layout, progress: LoopValues) -> None:
    """Wrap the optimizer's step for learning rates, then for ZeRO-1, whose broadcast must come last: LAMB
    changes weights after the step. Turn off kernels that cannot step tensors of several meshes."""
    if any(len(_distinct_meshes(group["params"])) > 1 for group in optimizer.param_groups):
        for group in optimizer.param_groups:  # many-tensor kernels take tensors of one mesh only
            group.update({name: False for name in ("foreach", "fused") if name in group})
    batch = strategy.batch.global_samples
    largebatch.adapt_optimizer(optimizer, strategy.learning_rate, batch, progress.steps_done)
    if strategy.sharding is Sharding.OPTIMIZER_STATE and grid.shard > 1:
        zero1.shard_optimizer_state(optimizer)


def _distinct_meshes(tensors: list[torch.Tensor]) -> set[DeviceMesh | None]:
    """Meshes of the tensors; None: that of plain tensors."""
    return {t.device_mesh if isinstance(t, DTensor) else None for t in tensors}


def _grouped_by_mesh(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Lists of tensors of one mesh each."""
    for mesh in _distinct_meshes(tensors):
        yield [t for t in tensors if (t.device_mesh if isinstance(t, DTensor) else None) == mesh]
