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
    """Ranks along each dimension of parallelism; their product is the number of ranks."""

    replicate: int | None = Field(default=None, ge=1, le=8192)
    """Copies of the model. Defaults to the number of ranks divided by the other dimensions."""
    shard: int | None = Field(default=None, ge=1, le=8192)
    """Ranks that share one copy. Defaults to the number of ranks divided by the other dimensions, if
    `replicate` or `sharding` is set; else to 1."""
    tensor: int = Field(default=1, ge=1, le=1024)
    """Ranks that split every layer."""
    pipeline: int = Field(default=1, ge=1, le=1024)
    """Ranks that hold different layers."""


class TensorParallel(ApiModel):
    """Settings of tensor parallelism."""

    sequence: bool = False
    """Split activations between the split layers along the sequence too."""
    loss: bool = False
    """Leave the last layer's output split, and compute the loss of its shards."""


class Pipelining(ApiModel):
    """Settings of pipeline parallelism."""

    schedule: Schedule = Schedule.ONE_FORWARD_ONE_BACKWARD
    """Order of forward and backward passes. Interleaved and ZeroBubble have several stages on each rank."""
    micro_batches: int | None = Field(default=None, ge=1, le=4096)
    """Micro-batches of a batch in the pipeline; 1, with GPipe: layer by layer. Other schedules need as many
    as there are ranks in the pipeline, or more. Defaults to twice the stages."""
    stages_per_rank: int | None = Field(default=None, ge=1, le=64)
    """Stages on each rank. Defaults to 1, or to 2 for Interleaved and ZeroBubble."""


class Local(ApiModel):
    """Local SGD: ranks train alone and average their weights periodically."""

    every_steps: int = Field(default=8, ge=1, le=100_000)
    """Number of steps between two averages."""
    groups_of: int | None = Field(default=None, ge=2, le=8192)
    """Ranks in a group of neighbours, which average every everySteps; all ranks do every allEverySteps."""
    all_every_steps: int | None = Field(default=None, ge=1, le=100_000)
    """With groupsOf: number of steps between two averages of all ranks; a multiple of everySteps."""
    outer_learning_rate_per_mille: int | None = Field(default=None, ge=1, le=10_000)
    """DiLoCo: learning rate of the outer step, with the average as its gradient, in thousandths, for example
    700."""
    outer_momentum_per_mille: int = Field(default=900, ge=0, le=999)
    """DiLoCo: Nesterov momentum of the outer step, in thousandths."""


class ParameterServer(ApiModel):
    """Servers hold the parameters and the optimizer; workers push gradients to them and pull weights."""

    servers: int = Field(default=1, ge=1, le=1024)
    """Number of server pods, in addition to the workers; each holds a part of the parameters."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    """Synchronous: a step is the mean of the workers' gradients; Asynchronous: each gradient is a step at
    once; BoundedStaleness: as Asynchronous, but fast workers wait for slow ones."""
    backup_workers: int = Field(default=0, ge=0, le=1024)
    """Synchronous: number of slowest workers that a step does not wait for; their gradients are dropped."""
    staleness: int = Field(default=4, ge=0, le=100_000)
    """BoundedStaleness: gradients by which a worker may be ahead of the slowest one; 0: Synchronous."""
    scale_by_staleness: bool = False
    """Divide a step by the number of other steps since its weights were pulled. Not with Synchronous."""
    resources: Resources | None = None
    """Resources of the servers' trainer container, as in a pod; /dev/shm, where they keep their state, is
    part of its memory. Defaults to those of the workers without devices such as GPUs."""


class Sync(ApiModel):
    """How copies of the model are synchronized."""

    type: SyncType = SyncType.ALL_REDUCE
    """AllReduce: the mean of gradients in every step; Ring: the same, by Ropeteam's own ring, for study;
    Replicate: the same, layer by layer, by torch's composable replicate(), which wraps nothing; Local: the
    mean of weights periodically; ParameterServer: servers hold the weights."""
    local: Local = Local()
    """Settings of type Local."""
    parameter_server: ParameterServer = ParameterServer()
    """Settings of type ParameterServer."""


class PowerSgd(ApiModel):
    """Gradients as products of two narrow matrices."""

    rank: int = Field(default=4, ge=1, le=1024)
    """Width of the matrices."""


class TopK(ApiModel):
    """The largest values of a gradient."""

    keep_per_mille: int = Field(default=10, ge=1, le=1000)
    """Number of values sent of each thousand."""


class Compression(ApiModel):
    """Compression of gradients before they are sent."""

    type: CompressionType
    """Float16, BFloat16: half the bytes; PowerSGD, TopK: far fewer, and the remainder is sent later."""
    power_sgd: PowerSgd = PowerSgd()
    """Settings of type PowerSGD."""
    top_k: TopK = TopK()
    """Settings of type TopK."""


class Batch(ApiModel):
    """Samples per step."""

    global_samples: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Samples of all ranks together, whatever their number. Defaults to the script's batch."""
    micro_samples: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Maximum samples of a micro-batch. A rank splits its part into these and accumulates gradients."""
    balance: bool = False
    """Split the batch in proportion to the measured speed of each rank, adjusted every 20 batches."""
    prefetch: int = Field(default=0, ge=0, le=1024)
    """Number of batches that a thread of each rank loads ahead."""


class LearningRate(ApiModel):
    """Scaling of the learning rate with the batch."""

    scaling: Scaling = Scaling.NONE
    """With k times baseBatch: Linear multiplies the script's rate by k, SquareRoot by the root of k."""
    base_batch: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Global batch that the script's rate was chosen for."""
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Number of steps in which the rate rises to its full value."""
    trust_ratio: TrustRatio | None = None
    """Steps in proportion to each matrix's own norm: LARS with SGD, LAMB with AdamW."""


class Strategy(ApiModel):
    """How the work is split among ranks. The script calls `job.wrap(model, optimizer)`, which applies it."""

    parallelism: Parallelism = Parallelism()
    """Ranks along each dimension of parallelism."""
    sharding: Sharding | None = None
    """State that ranks of a shard group divide: OptimizerState (ZeRO-1), Gradients too (ZeRO-2), Parameters
    too (ZeRO-3, FSDP). Defaults to Parameters, where parallelism.shard is above 1."""
    sync: Sync = Sync()
    """How copies of the model are synchronized."""
    tensor_parallel: TensorParallel = TensorParallel()
    """Settings of tensor parallelism."""
    pipelining: Pipelining = Pipelining()
    """Settings of pipeline parallelism."""
    precision: Precision = Precision.FLOAT32
    """Data type of matrix products; weights keep 32 bits."""
    gradient_compression: Compression | None = None
    """Compression of gradients before they are sent."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    """Recompute activations instead of keeping them. Selective keeps the results of matrix products."""
    offload: Offload = Offload.NONE
    """Parameters: sharded parameters and their optimizer state stay in CPU memory."""
    batch: Batch = Batch()
    """Samples per step."""
    learning_rate: LearningRate = LearningRate()
    """Scaling of the learning rate with the batch."""

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
