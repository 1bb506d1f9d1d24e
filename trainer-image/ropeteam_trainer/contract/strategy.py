"""How the work of one world is split: what `spec.strategy` says, and which part of it each rank does.

Pure. `Strategy` is the manifest's; `layout()` fits it to a world or says why that cannot be.
Ranks stand in a grid of pipeline x replicate x shard x tensor, the last one running fastest: ranks that talk
most are neighbours, and so share a node.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Sharding(str, enum.Enum):
    """What the ranks of one shard group divide among them (ZeRO stages 1, 2, 3)."""

    OPTIMIZER_STATE = "OptimizerState"
    GRADIENTS = "Gradients"
    PARAMETERS = "Parameters"


class Schedule(str, enum.Enum):
    GPIPE = "GPipe"
    ONE_FORWARD_ONE_BACKWARD = "OneForwardOneBackward"
    INTERLEAVED = "Interleaved"
    ZERO_BUBBLE = "ZeroBubble"


class SyncType(str, enum.Enum):
    """How copies of the model are kept the same."""

    ALL_REDUCE = "AllReduce"
    RING = "Ring"
    REPLICATE = "Replicate"
    LOCAL = "Local"
    PARAMETER_SERVER = "ParameterServer"


class ServerMode(str, enum.Enum):
    """When parameter servers apply gradients."""

    SYNCHRONOUS = "Synchronous"
    ASYNCHRONOUS = "Asynchronous"
    BOUNDED_STALENESS = "BoundedStaleness"


class Precision(str, enum.Enum):
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


class CompressionType(str, enum.Enum):
    FLOAT16 = "Float16"
    BFLOAT16 = "BFloat16"
    POWER_SGD = "PowerSGD"
    TOP_K = "TopK"


class ActivationCheckpointing(str, enum.Enum):
    NONE = "None"
    FULL = "Full"
    SELECTIVE = "Selective"


class Offload(str, enum.Enum):
    NONE = "None"
    PARAMETERS = "Parameters"


class Scaling(str, enum.Enum):
    """How the learning rate follows the batch."""

    NONE = "None"
    LINEAR = "Linear"
    SQUARE_ROOT = "SquareRoot"


class TrustRatio(str, enum.Enum):
    LARS = "LARS"
    LAMB = "LAMB"


@dataclass(frozen=True)
class Parallelism:
    """Ranks along each way to split; their product is the world. None: what is left."""

    replicate: int | None = None
    shard: int | None = None
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True)
class TensorParallel:
    sequence: bool = False
    """Split what lies between the split layers along the sequence too."""
    loss: bool = False
    """Leave the last layer's output split and take the loss of the parts."""


@dataclass(frozen=True)
class Pipelining:
    schedule: Schedule = Schedule.ONE_FORWARD_ONE_BACKWARD
    micro_batches: int | None = None
    """None: twice the stages."""
    stages_per_rank: int | None = None
    """None: one, or two for the schedules that need more."""

    @property
    def several(self) -> bool:
        """Whether the schedule needs several stages on each rank."""
        return self.schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)

    @property
    def per_rank(self) -> int:
        """Stages on each rank."""
        return self.stages_per_rank or (2 if self.several else 1)


@dataclass(frozen=True)
class Local:
    """Ranks train alone and average now and then."""

    every_steps: int = 8
    groups_of: int | None = None
    """Average within groups of so many ranks at `every_steps`, among all of them at `all_every_steps`."""
    all_every_steps: int | None = None
    outer_learning_rate_per_mille: int | None = None
    """DiLoCo: the average is a step of an outer optimizer (SGD with Nesterov momentum)."""
    outer_momentum_per_mille: int = 900


@dataclass(frozen=True)
class ParameterServer:
    """Servers keep the parameters and the optimizer; workers push gradients to them and pull weights."""

    servers: int = 1
    """Pods of their own, beside the workers; each has its part of the parameters."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    backup_workers: int = 0
    """Synchronous: a step takes the gradients of all workers but so many, the slowest ones."""
    staleness: int = 4
    """BoundedStaleness: gradients that a worker may be ahead of the slowest one. 0: Synchronous."""
    scale_by_staleness: bool = False
    """Not Synchronous: divide a step by how many others were applied since its weights were pulled."""


@dataclass(frozen=True)
class Sync:
    type: SyncType = SyncType.ALL_REDUCE
    local: Local = Local()
    parameter_server: ParameterServer = ParameterServer()


@dataclass(frozen=True)
class PowerSgd:
    rank: int = 4


@dataclass(frozen=True)
class TopK:
    keep_per_mille: int = 10
    """Values of a thousand that are sent."""


@dataclass(frozen=True)
class Compression:
    type: CompressionType
    power_sgd: PowerSgd = PowerSgd()
    top_k: TopK = TopK()


@dataclass(frozen=True)
class Batch:
    """Samples. None: what the script says."""

    global_samples: int | None = None
    micro_samples: int | None = None
    """A rank computes its part in pieces of at most so many."""


@dataclass(frozen=True)
class LearningRate:
    scaling: Scaling = Scaling.NONE
    base_batch: int | None = None
    """The global batch that the script's learning rate was chosen for."""
    warmup_steps: int = 0
    trust_ratio: TrustRatio | None = None


@dataclass(frozen=True)
class Strategy:
    parallelism: Parallelism = Parallelism()
    sharding: Sharding | None = None
    """None: Parameters, where `parallelism.shard` asks for it."""
    sync: Sync = Sync()
    tensor_parallel: TensorParallel = TensorParallel()
    pipelining: Pipelining = Pipelining()
    precision: Precision = Precision.FLOAT32
    gradient_compression: Compression | None = None
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    offload: Offload = Offload.NONE
    batch: Batch = Batch()
    learning_rate: LearningRate = LearningRate()

    @property
    def servers(self) -> int:
        """Parameter servers, beside the workers."""
        serves = self.sync.type is SyncType.PARAMETER_SERVER
        return self.sync.parameter_server.servers if serves else 0


class StrategyError(ValueError):
    """The strategy cannot be used here. Each argument is a sentence: the field, the reason, and what can."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


@dataclass(frozen=True)
class Place:
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
    def data_ways(self) -> int:
        """Parts of a global batch."""
        return self.replicate * self.shard

    def place(self, rank: int) -> Place:
        rest, tensor = divmod(rank, self.tensor)
        rest, shard = divmod(rest, self.shard)
        pipeline, replicate = divmod(rest, self.replicate)
        return Place(pipeline, replicate, shard, tensor)

    def data_rank(self, rank: int) -> int:
        """Which part of a global batch a rank works on; ranks that split one model share a part."""
        place = self.place(rank)
        return place.replicate * self.shard + place.shard

    def __str__(self) -> str:
        named = {"pipeline": self.pipeline, "replicate": self.replicate, "shard": self.shard}
        return (
            " x ".join(f"{name} {n}" for name, n in (named | {"tensor": self.tensor}).items() if n > 1) or "1"
        )


def layout(strategy: Strategy, world: int) -> Layout:
    """The grid for `world` ranks, without those of parameter servers. Raises StrategyError."""
    asked = strategy.parallelism
    fixed = asked.tensor * asked.pipeline
    if world % fixed:
        raise StrategyError(
            f"strategy.parallelism: tensor {asked.tensor} x pipeline {asked.pipeline} does not divide "
            f"{world} ranks; {_nearest(fixed, world)}"
        )
    left = world // fixed
    replicate, shard = asked.replicate, asked.shard
    if replicate is None and shard is None:
        replicate, shard = (1, left) if strategy.sharding else (left, 1)
    elif shard is None:
        assert replicate is not None
        shard = left // replicate or 1
    elif replicate is None:
        replicate = left // shard or 1
    assert replicate is not None
    grid = Layout(asked.pipeline, replicate, shard, asked.tensor)
    if grid.world != world:
        raise StrategyError(
            f"strategy.parallelism: {grid} makes {grid.world} ranks, but this world has {world}; "
            f"{_nearest(fixed * (asked.replicate or 1) * (asked.shard or 1), world)}"
        )
    _check(strategy, grid)
    return grid


def _nearest(product: int, world: int) -> str:
    return f"use {_multiple(world, product)} ranks, or numbers whose product is {world}"


def _multiple(number: int, of: int) -> int:
    """The next one from `number` on."""
    return math.ceil(number / of) * of


def _divisor(of: int, near: int) -> int:
    """The one that is nearest to `near`, 1 and `of` itself left out where there are others."""
    found = [d for d in range(1, of + 1) if of % d == 0]
    return min(found[1:-1] or found[-1:], key=lambda d: abs(d - near))


def _check(strategy: Strategy, grid: Layout) -> None:
    """What does not go together. A sentence for each, the field first."""
    rules = (
        *_of_ways(strategy, grid),
        *_of_local(strategy.sync.local, grid),
        *_of_servers(strategy, grid),
        *_of_batch(strategy),
    )
    faults = [f"strategy.{message}" for wrong, message in rules if wrong]
    if faults:
        raise StrategyError(*faults)


def _of_ways(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    averages = strategy.sync.type is SyncType.ALL_REDUCE
    splits_model, shards = grid.pipeline * grid.tensor > 1, grid.shard > 1
    zero_1 = strategy.sharding is Sharding.OPTIMIZER_STATE
    pipelining = strategy.pipelining
    return [
        (
            not averages and (splits_model or shards),
            f"sync: {strategy.sync.type.value} keeps whole copies in step; use AllReduce with "
            "shard, tensor or pipeline above 1",
        ),
        (
            strategy.gradient_compression is not None and (splits_model or shards or not averages),
            "gradientCompression: works on the all-reduce of whole copies; use it with sync AllReduce and "
            "replicate alone",
        ),
        (
            zero_1 and (splits_model or grid.replicate > 1),
            "sharding: OptimizerState goes with shard alone; use Gradients or Parameters in a hybrid",
        ),
        (
            strategy.sharding is not None and grid.shard == 1 and grid.world > 1,
            "sharding: there is nothing to share with shard 1; raise parallelism.shard or leave sharding out",
        ),
        (
            grid.pipeline > 1 and pipelining.several != (pipelining.per_rank > 1),
            "pipelining: Interleaved and ZeroBubble need stagesPerRank above 1, the other schedules need 1",
        ),
        (
            grid.pipeline > 1 and shards and pipelining.schedule is Schedule.ZERO_BUBBLE,
            "pipelining: ZeroBubble leaves the last stage without gradients where shard is above 1; use "
            "Interleaved, or replicate instead of shard",
        ),
        (
            strategy.offload is not Offload.NONE and (not shards or zero_1),
            "offload: goes with sharding Gradients or Parameters",
        ),
    ]


def _of_local(local: Local, grid: Layout) -> list[tuple[bool, str]]:
    groups, all_every = local.groups_of, local.all_every_steps
    return [
        (
            (groups is None) != (all_every is None),
            "sync.local: groupsOf and allEverySteps go together; give both or none",
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


def _of_servers(strategy: Strategy, grid: Layout) -> list[tuple[bool, str]]:
    if not strategy.servers:
        return []
    asked = strategy.sync.parameter_server
    synchronous = asked.mode is ServerMode.SYNCHRONOUS
    return [
        (
            asked.backup_workers > 0 and not synchronous,
            f"sync.parameterServer: backupWorkers goes with mode Synchronous; {asked.mode.value} waits for "
            "no slow worker",
        ),
        (
            asked.backup_workers >= grid.world,
            f"sync.parameterServer: backupWorkers {asked.backup_workers} leaves none of {grid.world} "
            "workers; lower it",
        ),
        (
            asked.scale_by_staleness and synchronous,
            "sync.parameterServer: scaleByStaleness goes with Asynchronous and BoundedStaleness; in mode "
            "Synchronous no gradient is stale",
        ),
        (
            strategy.precision is Precision.FLOAT16,
            "precision: Float16 scales its loss per rank, which parameter servers do not know; use BFloat16",
        ),
    ]


def _of_batch(strategy: Strategy) -> list[tuple[bool, str]]:
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
    ]
