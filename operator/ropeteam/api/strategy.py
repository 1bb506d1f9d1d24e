"""spec.strategy: how the work is split. `job.wrap()` in the script applies it.

Enums and rules are the trainer's (ropeteam_trainer.contract.strategy), so that both sides say the same.
"""

from __future__ import annotations

from pydantic import Field

from ropeteam.api.model import ApiModel
from ropeteam.api.podparts import Resources
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract import strategy as contract
from ropeteam_trainer.contract.strategy import (
    ActivationCheckpointing,
    CatchUp,
    CompressionType,
    Offload,
    Precision,
    Scaling,
    Schedule,
    ServerMode,
    Sharding,
    SyncType,
    TrustRatio,
)
from ropeteam_trainer.partition.layout import layout


class Parallelism(ApiModel):
    """Numbers of ranks along each dimension of parallelism. Their product must be the number of ranks of all
    workers."""

    replicate: int | None = Field(default=None, ge=1, le=8192)
    """Number of copies of the model. Defaults to the ranks that the other dimensions leave. If
    spec.strategy.sharding is set and spec.strategy.parallelism.shard is not, defaults to 1."""
    shard: int | None = Field(default=None, ge=1, le=8192)
    """Number of ranks that share one copy of the model. Defaults to the ranks that the other dimensions
    leave, if spec.strategy.parallelism.replicate or spec.strategy.sharding is set. Else defaults to 1."""
    tensor: int = Field(default=1, ge=1, le=1024)
    """Number of ranks that split every layer (tensor parallelism)."""
    pipeline: int = Field(default=1, ge=1, le=1024)
    """Number of ranks that hold different layers (pipeline parallelism)."""


class TensorParallel(ApiModel):
    """Settings of tensor parallelism, passed to the model's `tensor_plan()`."""

    sequence: bool = False
    """Whether activations between split layers are split along the sequence too."""
    loss: bool = False
    """Whether the output of the last layer stays split, and the loss is computed from its shards."""


class Pipelining(ApiModel):
    """Settings of pipeline parallelism. Without it, they have no effect."""

    schedule: Schedule = Schedule.ONE_FORWARD_ONE_BACKWARD
    """Order of forward and backward passes. Interleaved and ZeroBubble need several stages on each rank,
    GPipe and OneForwardOneBackward one."""
    micro_batches: int | None = Field(default=None, ge=1, le=4096)
    """Number of micro-batches that a batch is split into. Schedules other than GPipe raise it to the number
    of ranks in the pipeline at least. Defaults to twice the number of stages."""
    stages_per_rank: int | None = Field(default=None, ge=1, le=64)
    """Number of stages on each rank. Defaults to 2 for Interleaved and ZeroBubble, and else to 1."""


class Local(ApiModel):
    """Settings of type Local: ranks train alone and average their weights periodically (local SGD)."""

    every_steps: int = Field(default=8, ge=1, le=100_000)
    """Number of steps between two averages."""
    groups_of: int | None = Field(default=None, ge=2, le=8192)
    """Number of neighbouring ranks in a group. Groups average after spec.strategy.sync.local.everySteps, all
    ranks after spec.strategy.sync.local.allEverySteps, which is required with it. Must divide the number of
    ranks. Defaults to no groups."""
    all_every_steps: int | None = Field(default=None, ge=1, le=100_000)
    """Number of steps between two averages of all ranks. Requires spec.strategy.sync.local.groupsOf. Must be
    a multiple of spec.strategy.sync.local.everySteps."""
    outer_learning_rate_per_mille: int | None = Field(default=None, ge=1, le=10_000)
    """Learning rate of the outer optimizer of DiLoCo, in thousandths, for example 700. Its gradient is the
    difference between the last common weights and the average. Defaults to no outer optimizer: the average
    replaces the weights."""
    outer_momentum_per_mille: int = Field(default=900, ge=0, le=999)
    """Nesterov momentum of the outer optimizer of DiLoCo, in thousandths."""


class ParameterServer(ApiModel):
    """Settings of type ParameterServer: servers hold parameters and optimizer, workers push gradients and
    pull weights."""

    servers: int = Field(default=1, ge=1, le=1024)
    """Number of parameter server pods, in addition to the workers. Each holds a part of the parameters."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    """Time at which gradients are applied. Synchronous: a step is the mean of the gradients of the workers.
    Asynchronous: each gradient is a step at once. BoundedStaleness: as Asynchronous, but fast workers wait
    for slow ones."""
    backup_workers: int = Field(default=0, ge=0, le=1024)
    """Number of slowest workers that a step does not wait for. Their gradients are dropped. Only with mode
    Synchronous."""
    staleness: int = Field(default=4, ge=0, le=100_000)
    """Number of gradients by which a worker may be ahead of the slowest one, in mode BoundedStaleness. 0 is
    the same as mode Synchronous."""
    scale_by_staleness: bool = False
    """Whether the learning rate of a step is divided by the number of other steps since its weights were
    pulled. Refused with mode Synchronous."""
    resources: Resources | None = None
    """Compute resources of the container `trainer` of parameter servers, as in a pod. Parameters are stored
    in /dev/shm, which counts against the memory limit. Devices such as GPUs are left out. Defaults to the
    resources of workers."""


class Sync(ApiModel):
    """Method that keeps the copies of the model in sync."""

    type: SyncType = SyncType.ALL_REDUCE
    """Method of synchronization. AllReduce: the mean of the gradients in every step. Exact: the same, with
    the same last bits for any number of replicas. Ring: the same as AllReduce by a ring in Python, to study
    it. Replicate: the same for each layer, by torch's replicate(), which does not wrap the model. Local: the
    mean of the weights after several steps. ParameterServer: servers apply the gradients."""
    local: Local = Local()
    """Settings of type Local: ranks train alone and average their weights periodically (local SGD)."""
    parameter_server: ParameterServer = ParameterServer()
    """Settings of type ParameterServer: servers hold parameters and optimizer, workers push gradients and
    pull weights."""
    catch_up: CatchUp = CatchUp.PAUSE
    """Way in which ranks that replace lost ones get the state of the others, under type Exact. Pause: the
    others wait while it is sent, which is the fastest. Follow: they train on while it is sent, and send their
    gradients after it, until the new ranks have made the same steps; for large models. It takes memory for
    the gradients of up to 16 steps."""


class PowerSgd(ApiModel):
    """Settings of type PowerSGD: gradients as products of two narrow matrices."""

    rank: int = Field(default=4, ge=1, le=1024)
    """Rank of the matrices: their width."""


class TopK(ApiModel):
    """Settings of type TopK: only the largest values of gradients are sent."""

    keep_per_mille: int = Field(default=10, ge=1, le=1000)
    """Number of values that are sent of each 1000. Of each bucket of gradients at least one is sent."""


class Compression(ApiModel):
    """Compression of gradients before they are sent."""

    type: CompressionType
    """Method of compression. Float16 and BFloat16 send half the bytes. PowerSGD and TopK send far fewer, and
    add the error to the next gradient."""
    power_sgd: PowerSgd = PowerSgd()
    """Settings of type PowerSGD: gradients as products of two narrow matrices."""
    top_k: TopK = TopK()
    """Settings of type TopK: only the largest values of gradients are sent."""


class Batch(ApiModel):
    """Samples of each step, for scripts that call `job.batches()` or `job.wrap()`."""

    global_samples: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Number of samples of each step of all ranks together, whatever their number. Defaults to global_batch
    of `job.batches()`."""
    micro_batches: int | None = Field(default=None, ge=1, le=4096)
    """Number of micro-batches of each step of all ranks together, whatever their number, with
    spec.strategy.sync.type Exact. Defaults to 16. Refused with other types."""
    micro_samples: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Maximum number of samples of a micro-batch. A rank splits its part of the batch, and accumulates
    gradients. Defaults to no split."""
    balance: bool = False
    """Whether each rank gets a part of the batch in proportion to its measured speed, adjusted every 20
    batches. With false, the argument of `job.batches()` counts."""
    prefetch: int = Field(default=0, ge=0, le=1024)
    """Number of batches that a thread of each rank loads ahead. With 0, the argument of `job.batches()`
    counts."""


class LearningRate(ApiModel):
    """Adjustment of the learning rate to the batch."""

    scaling: Scaling = Scaling.NONE
    """Factor of the learning rate for a batch of k times spec.strategy.learningRate.baseBatch. None: 1.
    Linear: k. SquareRoot: the square root of k. Needs spec.strategy.batch.globalSamples."""
    base_batch: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Number of samples of the global batch that the learning rate of the script was chosen for. Required if
    spec.strategy.learningRate.scaling is not None."""
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Number of steps in which the learning rate rises linearly to its full value."""
    trust_ratio: TrustRatio | None = None
    """Layer-wise learning rates: each matrix gets a step in proportion to its norm. LARS needs SGD, LAMB
    needs Adam or AdamW. Defaults to none."""


class Strategy(ApiModel):
    """Distribution of the work among ranks, for scripts that call `job.wrap()`."""

    parallelism: Parallelism = Parallelism()
    """Numbers of ranks along each dimension of parallelism. Their product must be the number of ranks of all
    workers."""
    sharding: Sharding | None = None
    """State that ranks of a shard group divide. OptimizerState: that of the optimizer (ZeRO-1). Gradients:
    also the gradients (ZeRO-2). Parameters: also the parameters (ZeRO-3, FSDP). Defaults to Parameters if
    spec.strategy.parallelism.shard is above 1, else to none."""
    sync: Sync = Sync()
    """Method that keeps the copies of the model in sync."""
    tensor_parallel: TensorParallel = TensorParallel()
    """Settings of tensor parallelism, passed to the model's `tensor_plan()`."""
    pipelining: Pipelining = Pipelining()
    """Settings of pipeline parallelism. Without it, they have no effect."""
    precision: Precision = Precision.FLOAT32
    """Data type of matrix products. Weights stay in 32 bits. Float16 scales the loss, and is refused with
    parameter servers."""
    gradient_compression: Compression | None = None
    """Compression of gradients before they are sent. Needs spec.strategy.sync.type AllReduce and whole copies
    of the model. Defaults to none."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    """Activations that are recomputed in the backward pass, to save memory. None: no activations. Full: all
    but the inputs of layers. Selective: also the results of matrix products are retained."""
    offload: Offload = Offload.NONE
    """State that is stored in CPU memory. None: no state. Parameters: sharded parameters with their gradients
    and optimizer state, which needs spec.strategy.sharding Gradients or Parameters."""
    batch: Batch = Batch()
    """Samples of each step, for scripts that call `job.batches()` or `job.wrap()`."""
    learning_rate: LearningRate = LearningRate()
    """Adjustment of the learning rate to the batch."""

    @property
    def servers(self) -> int:
        """Number of parameter server pods; 0 with another type of sync."""
        serves = self.sync.type is SyncType.PARAMETER_SERVER
        return self.sync.parameter_server.servers if serves else 0


def contract_strategy(strategy: Strategy) -> contract.Strategy:
    """The strategy as ranks read it: the same fields, in Python's spelling, without the resources of
    parameter servers, which define pods."""
    resources = {"sync": {"parameter_server": {"resources"}}}
    return codec.from_plain(contract.Strategy, strategy.model_dump(mode="json", exclude=resources))


def problems(strategy: Strategy | None, ranks: int) -> tuple[str, ...]:
    """Messages why the strategy cannot be applied to so many ranks, those of the workers. Empty: it can."""
    if strategy is None:
        return ()
    try:
        layout(contract_strategy(strategy), ranks)
    except contract.StrategyError as error:
        return error.args
    return ()
