"""How the work of one world is split: what `spec.strategy` says. layout.py fits it to a world. Pure."""

from __future__ import annotations

import enum
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
class TensorSplit(TensorParallel):
    """What a model's tensor_plan() is told: these wishes, and among how many ranks a layer is split."""

    ranks: int = 1


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
    balance: bool = False
    """Parts in proportion to the measured speed of each rank."""
    prefetch: int = 0
    """Batches that each rank loads ahead."""


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
