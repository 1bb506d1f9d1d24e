"""Layout: each rank's part of the work in a world, or why a strategy cannot be used there. Pure.

Ranks form a grid of pipeline x replicate x shard x tensor, in row-major order: ranks that communicate most
are neighbours, and so share a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropeteam_trainer.contract.strategy import (
    CatchUp,
    Local,
    Offload,
    Pipelining,
    Precision,
    Scaling,
    Schedule,
    ServerMode,
    Sharding,
    Strategy,
    StrategyError,
    SyncType,
)
from ropeteam_trainer.partition.reductiontree import equal_parts


@dataclass(frozen=True)
class GridCoordinate:
    """Coordinate of one rank in the grid."""

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
        """Number of ranks."""
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def dp_size(self) -> int:
        """Data-parallel world size: number of parts of a global batch."""
        return self.replicate * self.shard

    def coordinate(self, rank: int) -> GridCoordinate:
        """Coordinate of a rank; the tensor dimension changes fastest."""
        rest, tensor = divmod(rank, self.tensor)
        rest, shard = divmod(rest, self.shard)
        pipeline, replicate = divmod(rest, self.replicate)
        return GridCoordinate(pipeline, replicate, shard, tensor)

    def dp_rank(self, rank: int) -> int:
        """Data-parallel rank: number of the part of a global batch that `rank` computes. Ranks that split one
        model have the same."""
        coordinate = self.coordinate(rank)
        return coordinate.replicate * self.shard + coordinate.shard

    def __str__(self) -> str:
        """Dimensions above 1, for messages: `replicate 2 x tensor 4`."""
        named = {"pipeline": self.pipeline, "replicate": self.replicate, "shard": self.shard}
        return (
            " x ".join(f"{name} {n}" for name, n in (named | {"tensor": self.tensor}).items() if n > 1) or "1"
        )


def layout(strategy: Strategy, world: int) -> Layout:
    """Grid for `world` ranks; parameter servers do not count. Raises StrategyError, with one sentence for
    each field that is wrong.

    Tensor and pipeline are taken as requested; of replicate and shard, the one that is not given takes the
    ranks that are left. If neither is given, all are for shard if the strategy has sharding, else for
    replicate.
    """
    requested = strategy.parallelism
    fixed = requested.tensor * requested.pipeline
    if world % fixed:
        raise StrategyError(
            f"spec.strategy.parallelism: tensor {requested.tensor} x pipeline {requested.pipeline} does not "
            f"divide {world} ranks; use {_next_multiple(world, fixed)} ranks, or tensor and pipeline whose "
            f"product divides {world}"
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
            f"spec.strategy.parallelism: {grid} makes {grid.world} ranks, but this world has {world}; use "
            f"{_next_multiple(world, fixed * (requested.replicate or 1) * (requested.shard or 1))} ranks, or "
            f"numbers whose product is {world}"
        )
    _check(strategy, grid)
    return grid


def balanced_owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Owner of each item, as a rank in 0..ranks-1: the largest first, each to the rank with the least load so
    far. The same on all ranks."""
    load = [0] * ranks
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = min(range(ranks), key=lambda rank: load[rank])
        load[owners[index]] += sizes[index]
    return owners


def scheduled_micro_batches(samples: int | None, settings: Pipelining, ranks: int) -> int:
    """Number of micro-batches into which a pipeline of `ranks` splits a batch of `samples`. None: of any
    size.

    First the target: that of the settings, or twice the stages, which keeps the bubble below a third; a
    multiple of the ranks for schedules with several stages per rank. Then as few as possible with
    micro-batches no larger than those of the target. Then rounded up to what the schedule accepts: at least
    one per rank, except for GPipe.
    """
    target = settings.micro_batches or 2 * ranks * settings.stage_count_per_rank
    if settings.needs_several_stages:
        target = max(target // ranks, 1) * ranks
    count = target if samples is None else math.ceil(samples / math.ceil(samples / target))
    if settings.schedule is Schedule.GPIPE:
        return count
    return math.ceil(count / ranks) * ranks if settings.needs_several_stages else max(count, ranks)


def leaves_of(strategy: Strategy, grid: Layout, rank: int) -> range:
    """Micro-batches that the replica of a rank computes in each step, under sync Exact."""
    return equal_parts(strategy.leaves, grid.replicate)[grid.coordinate(rank).replicate]


def micro_batches_per_step(strategy: Strategy, grid: Layout) -> int | None:
    """Number of micro-batches into which a rank's part of the global batch is split; 1: not split. None: it
    depends on the script's batch."""
    batch = strategy.batch
    if strategy.sync.type is SyncType.EXACT:
        return math.ceil(strategy.leaves / grid.replicate)
    samples = None if batch.global_samples is None else math.ceil(batch.global_samples / grid.dp_size)
    if grid.pipeline > 1:
        return scheduled_micro_batches(samples, strategy.pipelining, grid.pipeline)
    if batch.micro_samples is None:
        return 1
    return None if samples is None else math.ceil(samples / batch.micro_samples)


def _next_multiple(number: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `number`."""
    return math.ceil(number / of) * of


def _nearest_divisor(of: int, near: int) -> int:
    """The divisor of `of` nearest to `near`; 1 and `of` itself only if there is no other."""
    found = [d for d in range(1, of + 1) if of % d == 0]
    return min(found[1:-1] or found[-1:], key=lambda d: abs(d - near))


def _check(strategy: Strategy, grid: Layout) -> None:
    """Raise StrategyError for incompatible settings, with a message for each. The rules are (is broken,
    message)."""
    rules = (
        *_parallelism_rules(strategy, grid),
        *_local_rules(strategy.sync.local, grid),
        *_server_rules(strategy, grid),
        *_exact_rules(strategy, grid),
        *_batch_rules(strategy, grid),
    )
    errors = [f"spec.strategy.{message}" for is_broken, message in rules if is_broken]
    if errors:
        raise StrategyError(*errors)


def _parallelism_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    """Rules of parallelism, sharding, sync, gradientCompression, pipelining and offload: (is broken,
    message)."""
    averages = strategy.sync.type is SyncType.ALL_REDUCE
    exact = strategy.sync.type is SyncType.EXACT
    splits_model, shards = grid.pipeline * grid.tensor > 1, grid.shard > 1
    zero_1 = strategy.sharding is Sharding.OPTIMIZER_STATE
    pipelining = strategy.pipelining
    return [
        (
            not averages and not exact and (splits_model or shards),
            f"sync: {strategy.sync.type.value} synchronizes whole copies of the model; use AllReduce with "
            f"{_splitting(strategy, grid)}, or leave that out",
        ),
        (
            strategy.gradient_compression is not None and (splits_model or shards or not averages),
            "gradientCompression: works on the all-reduce of whole copies of the model; use it with sync "
            "AllReduce and parallelism.replicate alone, or leave it out",
        ),
        (
            zero_1 and (splits_model or grid.replicate > 1),
            "sharding: OptimizerState works with parallelism.shard alone; with replicate, tensor or "
            "pipeline above 1 use Gradients or Parameters",
        ),
        (
            strategy.sharding is not None and grid.shard == 1 and grid.world > 1,
            "sharding: there is nothing to split with shard 1; raise parallelism.shard or leave sharding out",
        ),
        (
            grid.pipeline > 1 and pipelining.needs_several_stages != (pipelining.stage_count_per_rank > 1),
            f"pipelining: {pipelining.schedule.value} does not work with stagesPerRank "
            f"{pipelining.stage_count_per_rank}; Interleaved and ZeroBubble need 2 or more, the others 1",
        ),
        (
            grid.pipeline > 1 and shards and pipelining.schedule is Schedule.ZERO_BUBBLE,
            "pipelining: ZeroBubble leaves the last stage without gradients where shard is above 1; use "
            "Interleaved, or replicate instead of shard",
        ),
        (
            strategy.offload is not Offload.NONE and (not shards or zero_1),
            "offload: works with sharding Gradients or Parameters over two ranks or more; set these, or "
            "leave offload out",
        ),
    ]


def _splitting(strategy: Strategy, grid: Layout) -> str:
    """Settings that split the model among ranks, by their fields in the manifest, for a message. If
    none does: the replicate that leaves ranks for shard; it is set then."""
    requested, sharding = strategy.parallelism, strategy.sharding
    settings = [f"sharding {sharding.value}"] if sharding and grid.shard > 1 else []
    named = {"shard": requested.shard or 1, "tensor": requested.tensor, "pipeline": requested.pipeline}
    settings += [f"parallelism.{name} {number}" for name, number in named.items() if number > 1]
    return " and ".join(settings) or f"parallelism.replicate {requested.replicate} of {grid.world} ranks"


def _local_rules(local: Local, grid: Layout) -> list[tuple[bool, str]]:
    """Rules of sync.local: (is broken, message)."""
    groups, all_every = local.groups_of, local.all_every_steps
    return [
        (
            (groups is None) != (all_every is None),
            "sync.local: groupsOf and allEverySteps belong together; set both or none",
        ),
        (
            all_every is not None and all_every % local.every_steps > 0,
            f"sync.local: allEverySteps must be a multiple of everySteps; use "
            f"{_next_multiple(all_every or 1, local.every_steps)}",
        ),
        (
            groups is not None and grid.world % groups > 0,
            f"sync.local: groupsOf {groups} does not divide {grid.world} ranks; use "
            f"{_nearest_divisor(grid.world, groups or 1)}",
        ),
    ]


def _server_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    """Rules of sync.parameterServer: (is broken, message). grid: of the workers."""
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


def _exact_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    """Rules of sync Exact: (is broken, message)."""
    batch = strategy.batch
    if strategy.sync.type is not SyncType.EXACT:
        return [
            (
                strategy.sync.catch_up is CatchUp.FOLLOW,
                "sync: catchUp Follow works with type Exact, under which lost ranks are replaced while the "
                "others train; leave it out",
            ),
            (
                batch.micro_batches is not None,
                "batch: microBatches works with sync Exact; use microSamples to split a rank's part of a "
                "batch, or leave it out",
            ),
        ]
    return [
        (
            grid.shard > 1 and strategy.parallelism.shard is None,
            f"parallelism: shard {grid.shard} follows from the number of ranks here, and under sync Exact "
            "each shard of a micro-batch is a part of the sum; set parallelism.shard, so that it stays",
        ),
        (
            strategy.leaves < grid.replicate,
            f"batch: microBatches {strategy.leaves} leaves some of {grid.replicate} replicas idle; raise it "
            f"to {grid.replicate} or more",
        ),
        (
            batch.micro_samples is not None,
            "batch: microSamples has no effect on sync Exact, which computes a micro-batch at once; raise "
            "microBatches, or leave microSamples out",
        ),
        (
            batch.balance,
            "batch: balance would deal parts of micro-batches, and sync Exact deals whole ones; leave "
            "balance out",
        ),
        (
            grid.pipeline > 1,
            "sync: Exact works with replicate, shard and tensor; a pipeline adds its own micro-batches in an "
            "order of its own, so use AllReduce with parallelism.pipeline above 1",
        ),
        (
            strategy.sharding is Sharding.OPTIMIZER_STATE,
            "sharding: OptimizerState averages gradients over all ranks at once, whose order sync Exact "
            "cannot fix; use Gradients or Parameters",
        ),
    ]


def _batch_rules(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    """Rules of batch and learningRate: (is broken, message)."""
    rate, batch = strategy.learning_rate, strategy.batch
    scales = rate.scaling is not Scaling.NONE
    return [
        (
            scales and rate.base_batch is None,
            "learningRate: scaling needs baseBatch, the global batch that the script's learning rate was "
            "chosen for",
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
