"""Strategy of a job, as in `spec.strategy`: how the work of one world is split. partition/layout.py fits it
to a world. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ropeteam_trainer.contract.errors import UserError


class Sharding(str, enum.Enum):
    """State that the ranks of one shard group divide among them (ZeRO stages 1, 2, 3)."""

    OPTIMIZER_STATE = "OptimizerState"
    GRADIENTS = "Gradients"
    PARAMETERS = "Parameters"


class Schedule(str, enum.Enum):
    GPIPE = "GPipe"
    ONE_FORWARD_ONE_BACKWARD = "OneForwardOneBackward"
    INTERLEAVED = "Interleaved"
    ZERO_BUBBLE = "ZeroBubble"


class SyncType(str, enum.Enum):
    """Method that keeps the copies of the model in sync."""

    ALL_REDUCE = "AllReduce"
    EXACT = "Exact"
    RING = "Ring"
    REPLICATE = "Replicate"
    LOCAL = "Local"
    PARAMETER_SERVER = "ParameterServer"


class CatchUp(str, enum.Enum):
    """How new ranks get the state of the others, under sync Exact."""

    PAUSE = "Pause"
    FOLLOW = "Follow"


class ServerMode(str, enum.Enum):
    """Time at which parameter servers apply gradients."""

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
    """Scaling of the learning rate with the batch size."""

    NONE = "None"
    LINEAR = "Linear"
    SQUARE_ROOT = "SquareRoot"


class TrustRatio(str, enum.Enum):
    LARS = "LARS"
    LAMB = "LAMB"


@dataclass(frozen=True)
class Parallelism:
    """Ranks along each dimension of the mesh; their product is the world size. None: all that are left."""

    replicate: int | None = None
    shard: int | None = None
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True)
class TensorParallel:
    sequence: bool = False
    """Sequence parallelism: split the activations between the split layers along the sequence too."""
    loss: bool = False
    """Loss parallelism: leave the last layer's output split and compute the loss of the parts."""


@dataclass(frozen=True)
class TensorSplit(TensorParallel):
    """Argument of a model's tensor_plan(): the requested options, and the number of ranks of a split
    layer."""

    ranks: int = 1


@dataclass(frozen=True)
class Pipelining:
    schedule: Schedule = Schedule.ONE_FORWARD_ONE_BACKWARD
    micro_batches: int | None = None
    """None: twice the stages."""
    stages_per_rank: int | None = None
    """None: one, or two for the schedules that need more."""

    @property
    def needs_several_stages(self) -> bool:
        """Whether the schedule needs several stages per rank."""
        return self.schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)

    @property
    def stage_count_per_rank(self) -> int:
        """Number of stages on each rank: as set, or the default of the schedule."""
        return self.stages_per_rank or (2 if self.needs_several_stages else 1)


@dataclass(frozen=True)
class Local:
    """Local SGD: ranks train alone and average their parameters periodically."""

    every_steps: int = 8
    groups_of: int | None = None
    """Size of groups that average at `every_steps`; all ranks average at `all_every_steps`."""
    all_every_steps: int | None = None
    outer_learning_rate_per_mille: int | None = None
    """DiLoCo: the average is a step of an outer optimizer (SGD with Nesterov momentum)."""
    outer_momentum_per_mille: int = 900


@dataclass(frozen=True)
class ParameterServer:
    """Parameter servers keep the parameters and the optimizer; workers push gradients and pull weights."""

    servers: int = 1
    """Number of pods beside the workers; each keeps a part of the parameters."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    backup_workers: int = 0
    """Synchronous: number of gradients, the slowest ones, that a step does not wait for."""
    staleness: int = 4
    """BoundedStaleness: gradients that a worker may be ahead of the slowest one. 0: Synchronous."""
    scale_by_staleness: bool = False
    """Not Synchronous: divide a step by the number of others applied since its weights were pulled."""


@dataclass(frozen=True)
class Sync:
    type: SyncType = SyncType.ALL_REDUCE
    local: Local = Local()
    parameter_server: ParameterServer = ParameterServer()
    catch_up: CatchUp = CatchUp.PAUSE


@dataclass(frozen=True)
class PowerSgd:
    rank: int = 4


@dataclass(frozen=True)
class TopK:
    keep_per_mille: int = 10
    """Values sent, per thousand."""


@dataclass(frozen=True)
class Compression:
    type: CompressionType
    power_sgd: PowerSgd = PowerSgd()
    top_k: TopK = TopK()


@dataclass(frozen=True)
class Batch:
    """Batch sizes in samples. None: the script's value."""

    global_samples: int | None = None
    micro_samples: int | None = None
    """Upper limit on a micro-batch."""
    micro_batches: int | None = None
    """Sync Exact: micro-batches of a step, on all ranks together; None: 16."""
    balance: bool = False
    """Size each rank's part of the batch in proportion to its measured speed."""
    prefetch: int = 0
    """Batches that each rank loads ahead."""


@dataclass(frozen=True)
class LearningRate:
    scaling: Scaling = Scaling.NONE
    base_batch: int | None = None
    """Global batch that the script's learning rate was chosen for."""
    warmup_steps: int = 0
    trust_ratio: TrustRatio | None = None


@dataclass(frozen=True)
class Strategy:
    parallelism: Parallelism = Parallelism()
    sharding: Sharding | None = None
    """None: Parameters, where `parallelism.shard` is more than one."""
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
    def leaves(self) -> int:
        """Micro-batches of a step under sync Exact, the leaves of its tree."""
        return self.batch.micro_batches or 16

    @property
    def replica_ranks(self) -> int:
        """Ranks of a replica under sync Exact: neighbours, each of which is lost with the others. 1 without
        it: no rank continues without another."""
        is_exact = self.sync.type is SyncType.EXACT
        return (self.parallelism.shard or 1) * self.parallelism.tensor if is_exact else 1

    @property
    def servers(self) -> int:
        """Number of parameter servers, beside the workers."""
        has_servers = self.sync.type is SyncType.PARAMETER_SERVER
        return self.sync.parameter_server.servers if has_servers else 0


class StrategyError(UserError, ValueError):
    """Strategy that cannot be used here. Each argument is a sentence: field, reason and alternative."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))
