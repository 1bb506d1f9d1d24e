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
    """Ranks along each way to split the work; their product is the number of ranks."""

    replicate: int | None = Field(default=None, ge=1, le=8192)
    """Copies of the model. Omitted: what is left after the others."""
    shard: int | None = Field(default=None, ge=1, le=8192)
    """Ranks that share one copy. Omitted: what is left, if `replicate` or `sharding` is given; else 1."""
    tensor: int = Field(default=1, ge=1, le=1024)
    """Ranks that split every layer."""
    pipeline: int = Field(default=1, ge=1, le=1024)
    """Ranks that have different layers."""


class TensorParallel(ApiModel):
    """Settings of tensor parallelism."""

    sequence: bool = False
    """Split what lies between the split layers along the sequence too."""
    loss: bool = False
    """Leave the last layer's output split, and take the loss of the parts."""


class Pipelining(ApiModel):
    """Settings of pipeline parallelism."""

    schedule: Schedule = Schedule.ONE_FORWARD_ONE_BACKWARD
    """Order of forward and backward passes. Interleaved and ZeroBubble have several stages on each rank."""
    micro_batches: int | None = Field(default=None, ge=1, le=4096)
    """Pieces of a batch that flow through the pipeline; 1, under GPipe: layer by layer. Other schedules
    take as many as there are ranks in it, or more. Omitted: twice the stages."""
    stages_per_rank: int | None = Field(default=None, ge=1, le=64)
    """Omitted: 1, or 2 for Interleaved and ZeroBubble."""


class Local(ApiModel):
    """Local SGD: ranks train alone and average their weights now and then."""

    every_steps: int = Field(default=8, ge=1, le=100_000)
    """Steps between two averages."""
    groups_of: int | None = Field(default=None, ge=2, le=8192)
    """Average within groups of so many neighbours at everySteps, and among all at allEverySteps."""
    all_every_steps: int | None = Field(default=None, ge=1, le=100_000)
    """With groupsOf: steps between two averages of all; a multiple of everySteps."""
    outer_learning_rate_per_mille: int | None = Field(default=None, ge=1, le=10_000)
    """DiLoCo: take the average for a gradient and step it with this rate in thousandths, for example 700."""
    outer_momentum_per_mille: int = Field(default=900, ge=0, le=999)
    """DiLoCo: Nesterov momentum of the outer step, in thousandths."""


class ParameterServer(ApiModel):
    """Servers keep the parameters and the optimizer; workers push gradients to them and pull weights."""

    servers: int = Field(default=1, ge=1, le=1024)
    """Server pods, beside the workers; each has its part of the parameters."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    """Synchronous: a step is the mean of the workers' gradients; Asynchronous: each gradient is a step at
    once; BoundedStaleness: the same, but fast workers wait for slow ones."""
    backup_workers: int = Field(default=0, ge=0, le=1024)
    """Synchronous: a step does not wait for its slowest workers, so many; their gradients are dropped."""
    staleness: int = Field(default=4, ge=0, le=100_000)
    """BoundedStaleness: gradients that a worker may be ahead of the slowest one; 0: Synchronous."""
    scale_by_staleness: bool = False
    """Divide a step by how many others came since its weights were pulled. Not with Synchronous."""
    resources: Resources | None = None
    """Resources of the servers' trainer container, as in a pod; /dev/shm, where they keep their state, is
    part of its memory. Omitted: those of the workers without devices such as GPUs."""


class Sync(ApiModel):
    """How copies of the model are kept the same."""

    type: SyncType = SyncType.ALL_REDUCE
    """AllReduce: the mean of gradients in every step; Ring: the same, by our own ring, to look at;
    Replicate: the same, layer by layer, by torch's composable replicate(), which wraps nothing; Local:
    weights now and then; ParameterServer: servers keep the weights."""
    local: Local = Local()
    """With type Local."""
    parameter_server: ParameterServer = ParameterServer()
    """With type ParameterServer."""


class PowerSgd(ApiModel):
    """Gradients as products of two narrow matrices."""

    rank: int = Field(default=4, ge=1, le=1024)
    """Width of the matrices."""


class TopK(ApiModel):
    """The largest values of a gradient."""

    keep_per_mille: int = Field(default=10, ge=1, le=1000)
    """Values of a thousand that are sent."""


class Compression(ApiModel):
    """How gradients are made smaller before they are sent."""

    type: CompressionType
    """Float16, BFloat16: half the bytes; PowerSGD, TopK: far fewer, what is left out is sent later."""
    power_sgd: PowerSgd = PowerSgd()
    """With type PowerSGD."""
    top_k: TopK = TopK()
    """With type TopK."""


class Batch(ApiModel):
    """Samples per step."""

    global_samples: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Of all ranks together, whatever their number. Omitted: what the script says."""
    micro_samples: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """A rank computes its part in pieces of at most so many and adds their gradients up."""
    balance: bool = False
    """Parts in proportion to the measured speed of each rank, judged anew every 20 batches."""
    prefetch: int = Field(default=0, ge=0, le=1024)
    """Batches that a thread of each rank loads ahead."""


class LearningRate(ApiModel):
    """A learning rate that follows the batch."""

    scaling: Scaling = Scaling.NONE
    """With k times the batch: Linear k, SquareRoot the root of k times the script's rate."""
    base_batch: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The global batch that the script's rate was chosen for."""
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Climb to the full rate in so many steps."""
    trust_ratio: TrustRatio | None = None
    """Steps in proportion to each matrix's own norm: LARS with SGD, LAMB with AdamW."""


class Strategy(ApiModel):
    """How the work is split among ranks. The script calls `job.wrap(model, optimizer)`, which applies it."""

    parallelism: Parallelism = Parallelism()
    """Ranks along each way to split."""
    sharding: Sharding | None = None
    """What ranks of a shard group divide: OptimizerState (ZeRO-1), Gradients too (ZeRO-2), Parameters too
    (ZeRO-3, FSDP). Omitted: Parameters, where parallelism.shard is above 1."""
    sync: Sync = Sync()
    """How copies are kept the same."""
    tensor_parallel: TensorParallel = TensorParallel()
    """Settings of tensor parallelism."""
    pipelining: Pipelining = Pipelining()
    """Settings of pipeline parallelism."""
    precision: Precision = Precision.FLOAT32
    """Type of matrix products; weights keep 32 bits."""
    gradient_compression: Compression | None = None
    """Fewer bytes per gradient."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    """Compute activations again instead of keeping them. Selective keeps the results of matrix products."""
    offload: Offload = Offload.NONE
    """Parameters: sharded parameters and their optimizer stay in the memory of the CPU."""
    batch: Batch = Batch()
    """Samples per step."""
    learning_rate: LearningRate = LearningRate()
    """How the rate follows the batch."""

    @property
    def servers(self) -> int:
        """Pods of parameter servers."""
        serves = self.sync.type is SyncType.PARAMETER_SERVER
        return self.sync.parameter_server.servers if serves else 0


def of_contract(strategy: Strategy) -> contract.Strategy:
    """As the trainer reads it: the same fields, in Python's spelling."""
    resources = {"sync": {"parameter_server": {"resources"}}}  # of pods, not of ranks
    return codec.from_plain(contract.Strategy, strategy.model_dump(mode="json", exclude=resources))


def problems(strategy: Strategy | None, ranks: int) -> tuple[str, ...]:
    """Why this strategy cannot be used by so many ranks (those of the workers)."""
    if strategy is None:
        return ()
    try:
        layout(of_contract(strategy), ranks)
    except contract.StrategyError as error:
        return tuple(f"spec.{sentence}" for sentence in error.args)
    return ()
