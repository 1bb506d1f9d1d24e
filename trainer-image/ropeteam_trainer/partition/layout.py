"""Layout: each rank's part of the work in a world, or why a strategy cannot be used there. Pure.

Ranks form a grid of pipeline x replicate x shard x tensor, in row-major order: ranks that communicate most
are neighbours, and so share a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropeteam_trainer.contract.strategy import (
    Local,
    Offload,
    Precision,
    Scaling,
    Schedule,
    ServerMode,
    Sharding,
    Strategy,
    StrategyError,
    SyncType,
)


@dataclass(frozen=True)
class GridCoordinate:
    """Coordinates of one rank."""

    pipeline: int
    replicate: int
    shard: int
    tensor: int


@dataclass(frozen=True)
class Layout:
    """The grid of one world. All four numbers are at least 1."""

    pipeline: int
    replicate: int
    shard: int
    tensor: int

    @property
    def world(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def dp_size(self) -> int:
        """Data-parallel world size: the number of parts of a global batch."""
        return self.replicate * self.shard

    def coordinate(self, rank: int) -> GridCoordinate:
        rest, tensor = divmod(rank, self.tensor)
        rest, shard = divmod(rest, self.shard)
        pipeline, replicate = divmod(rest, self.replicate)
        return GridCoordinate(pipeline, replicate, shard, tensor)

    def dp_rank(self, rank: int) -> int:
        """Data-parallel rank: the rank's part of a global batch; ranks that split one model share a part."""
        coordinate = self.coordinate(rank)
        return coordinate.replicate * self.shard + coordinate.shard

    def __str__(self) -> str:
        named = {"pipeline": self.pipeline, "replicate": self.replicate, "shard": self.shard}
        return (
            " x ".join(f"{name} {n}" for name, n in (named | {"tensor": self.tensor}).items() if n > 1) or "1"
        )


def layout(strategy: Strategy, world: int) -> Layout:
    """Grid for `world` ranks, without those of parameter servers. Raises StrategyError."""
    requested = strategy.parallelism
    fixed = requested.tensor * requested.pipeline
    if world % fixed:
        raise StrategyError(
            f"spec.strategy.parallelism: tensor {requested.tensor} x pipeline {requested.pipeline} does not "
            f"divide {world} ranks; {_suggestion(fixed, world)}"
        )
    left = world // fixed
    replicate, shard = requested.replicate, requested.shard
    if replicate is None and shard is None:
        replicate, shard = (1, left) if strategy.sharding else (left, 1)
    elif shard is None:
        assert replicate is not None
        shard = left // replicate or 1
    elif replicate is None:
        replicate = left // shard or 1
    assert replicate is not None
    grid = Layout(requested.pipeline, replicate, shard, requested.tensor)
    if grid.world != world:
        raise StrategyError(
            f"spec.strategy.parallelism: {grid} makes {grid.world} ranks, but this world has {world}; "
            f"{_suggestion(fixed * (requested.replicate or 1) * (requested.shard or 1), world)}"
        )
    _check(strategy, grid)
    return grid


def shared_out(sizes: Sequence[int], ranks: int) -> list[int]:
    """Owner of each item: greedily, the largest first, each to the rank with the least load."""
    load = [0] * ranks
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = min(range(ranks), key=lambda rank: load[rank])
        load[owners[index]] += sizes[index]
    return owners


def _suggestion(product: int, world: int) -> str:
    return f"use {_multiple(world, product)} ranks, or numbers whose product is {world}"


def _multiple(number: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `number`."""
    return math.ceil(number / of) * of


def _divisor(of: int, near: int) -> int:
    """The divisor of `of` nearest to `near`, except 1 and `of` itself where there are others."""
    found = [d for d in range(1, of + 1) if of % d == 0]
    return min(found[1:-1] or found[-1:], key=lambda d: abs(d - near))


def _check(strategy: Strategy, grid: Layout) -> None:
    """Raise StrategyError for incompatible settings, with one sentence for each, the field first."""
    rules = (
        *_parallelism_rules(strategy, grid),
        *_local_rules(strategy.sync.local, grid),
        *_server_rules(strategy, grid),
        *_batch_rules(strategy, grid),
    )
    errors = [f"spec.strategy.{message}" for wrong, message in rules if wrong]
    if errors:
        raise StrategyError(*errors)


def _parallelism_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    averages = strategy.sync.type is SyncType.ALL_REDUCE
    splits_model, shards = grid.pipeline * grid.tensor > 1, grid.shard > 1
    zero_1 = strategy.sharding is Sharding.OPTIMIZER_STATE
    pipelining = strategy.pipelining
    return [
        (
            not averages and (splits_model or shards),
            f"sync: {strategy.sync.type.value} synchronizes whole copies; use AllReduce with "
            f"{_splitting(strategy, grid)}, or leave that out",
        ),
        (
            strategy.gradient_compression is not None and (splits_model or shards or not averages),
            "gradientCompression: works on the all-reduce of whole copies; use it with sync AllReduce and "
            "replicate alone",
        ),
        (
            zero_1 and (splits_model or grid.replicate > 1),
            "sharding: OptimizerState works with shard alone; use Gradients or Parameters in a hybrid",
        ),
        (
            strategy.sharding is not None and grid.shard == 1 and grid.world > 1,
            "sharding: there is nothing to split with shard 1; raise parallelism.shard or leave sharding out",
        ),
        (
            grid.pipeline > 1 and pipelining.needs_several_stages != (pipelining.stage_count_per_rank > 1),
            "pipelining: Interleaved and ZeroBubble need stagesPerRank above 1, the other schedules need 1",
        ),
        (
            grid.pipeline > 1 and shards and pipelining.schedule is Schedule.ZERO_BUBBLE,
            "pipelining: ZeroBubble leaves the last stage without gradients where shard is above 1; use "
            "Interleaved, or replicate instead of shard",
        ),
        (
            strategy.offload is not Offload.NONE and (not shards or zero_1),
            "offload: works with sharding Gradients or Parameters over two ranks or more",
        ),
    ]


def _splitting(strategy: Strategy, grid: Layout) -> str:
    """Settings that split the model among ranks, by their names in the manifest."""
    requested, sharding = strategy.parallelism, strategy.sharding
    settings = [f"sharding {sharding.value}"] if sharding and grid.shard > 1 else []
    named = {"shard": requested.shard or 1, "tensor": requested.tensor, "pipeline": requested.pipeline}
    settings += [f"parallelism.{name} {number}" for name, number in named.items() if number > 1]
    return " and ".join(settings) or f"parallelism.replicate {requested.replicate} of {grid.world} ranks"


def _local_rules(local: Local, grid: Layout) -> list[tuple[bool, str]]:
    groups, all_every = local.groups_of, local.all_every_steps
    return [
        (
            (groups is None) != (all_every is None),
            "sync.local: groupsOf and allEverySteps belong together; set both or none",
        ),
        (
            all_every is not None and all_every % local.every_steps > 0,
            f"sync.local: allEverySteps must be a multiple of everySteps; use "
            f"{_multiple(all_every or 1, local.every_steps)}",
        ),
        (
            groups is not None and grid.world % groups > 0,
            f"sync.local: groupsOf {groups} does not divide {grid.world} ranks; use "
            f"{_divisor(grid.world, groups or 1)}",
        ),
    ]


def _server_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    if not strategy.servers:
        return []
    requested = strategy.sync.parameter_server
    synchronous = requested.mode is ServerMode.SYNCHRONOUS
    return [
        (
            requested.backup_workers > 0 and not synchronous,
            f"sync.parameterServer: backupWorkers works with mode Synchronous; {requested.mode.value} waits "
            "for no slow worker",
        ),
        (
            requested.backup_workers >= grid.world,
            f"sync.parameterServer: backupWorkers {requested.backup_workers} leaves none of {grid.world} "
            "workers; lower it",
        ),
        (
            requested.scale_by_staleness and synchronous,
            "sync.parameterServer: scaleByStaleness works with Asynchronous and BoundedStaleness; in mode "
            "Synchronous no gradient is stale",
        ),
        (
            strategy.precision is Precision.FLOAT16,
            "precision: Float16 scales its loss per rank, which parameter servers cannot do; use BFloat16",
        ),
    ]


def _batch_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    rate, batch = strategy.learning_rate, strategy.batch
    scales = rate.scaling is not Scaling.NONE
    return [
        (
            scales and rate.base_batch is None,
            "learningRate: scaling needs baseBatch, the global batch that the learning rate was chosen for",
        ),
        (
            scales and batch.global_samples is None,
            "learningRate: scaling needs batch.globalSamples, the batch to scale the learning rate to",
        ),
        (
            batch.global_samples is not None and (batch.micro_samples or 0) > batch.global_samples,
            f"batch: microSamples must not be above globalSamples; use at most {batch.global_samples}",
        ),
        (
            batch.balance and grid.tensor * grid.pipeline > 1,
            "batch: balance works with replicate and shard; leave it out with tensor or pipeline above 1",
        ),
        (
            batch.balance and strategy.servers > 0,
            "batch: balance measures ranks that wait for each other; with sync ParameterServer use mode "
            "Asynchronous or backupWorkers against slow workers",
        ),
    ]
