"""Cost of a strategy: bytes of memory per rank, bytes and messages per step, idle time.

Pure arithmetic. `sent` is what one rank sends for gradients and parameters, with ring algorithms as in NCCL
(gloo's reduce-scatter is an all-reduce and sends twice as much). Not counted: activations, in memory and on
the wire (tensor parallelism, pipelines); they depend on the batch.
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009; Rajbhandari et al., "ZeRO",
SC 2020; Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model
Training", SC 2021; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ropeteam_trainer.contract.strategy import (
    Compression,
    CompressionType,
    Local,
    Precision,
    Schedule,
    Sharding,
    Strategy,
    SyncType,
)
from ropeteam_trainer.partition.answer import ModelPart, Tensor
from ropeteam_trainer.partition.layout import Layout, balanced_owners
from ropeteam_trainer.partition.reductiontree import equal_parts, maximal_nodes

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of a bucket of DDP, as torch has them: the first one is smaller, to start communication early."""
EXACT_BUCKET = 4 << 20
"""Bytes of a bucket of sync Exact. Smaller ones are sent earlier, and cost more messages."""
FLOAT32_BYTES, FLOAT16_BYTES, INDEX_BYTES = 4, 2, 8


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank, without activations and buffers for communication."""

    parameters: int
    gradients: int
    optimizer: int | None
    """None: unknown."""

    @property
    def total(self) -> int:
        """Sum; without the optimizer if that is unknown."""
        return self.parameters + self.gradients + (self.optimizer or 0)


@dataclass(frozen=True)
class Traffic:
    """Traffic that one rank sends in one step, on average."""

    sent: float = 0
    """Bytes."""
    collectives: float = 0
    messages: float = 0
    """Sends to a neighbour in the ring, or to a parameter server."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent + other.sent, self.collectives + other.collectives, self.messages + other.messages
        )

    def __mul__(self, times: float) -> Traffic:
        return Traffic(self.sent * times, self.collectives * times, self.messages * times)


NO_TRAFFIC = Traffic()


def memory(part: ModelPart, strategy: Strategy, grid: Layout, micro_batches: int) -> Memory:
    """Memory of one rank. part: its part of the model. micro_batches: per step; with several of them, sharded
    gradients stay unsharded until the last, except under sync Exact. With parameter servers that of a worker,
    which has no optimizer state.
    """
    gradients = sum(t.bytes for t in part.tensors if t.trained)
    if _is_sharded(strategy, grid) and micro_batches > 1 and strategy.sync.type is not SyncType.EXACT:
        gradients *= grid.shard
    parameters = sum(t.bytes for t in part.tensors)
    optimizer = 0 if strategy.servers else part.optimizer
    if strategy.sync.type is SyncType.LOCAL and grid.world > 1 and optimizer is not None:
        optimizer += parameters * _outer_copies(strategy.sync.local)
    return Memory(parameters, gradients, optimizer)


def traffic(part: ModelPart, strategy: Strategy, grid: Layout, micro_batches: int) -> Traffic:
    """Traffic that one rank sends in a step, in the same order as wrap() chooses the technique.

    First match wins: parameter servers; no replicas (nothing is sent for gradients); sync Exact; sharded
    parameters (FSDP); replicas of a split model, or sync Replicate (composable DDP); local SGD; DDP with a
    compressed all-reduce; DDP or ring, and with ZeRO-1 the broadcasts of each rank's part. micro_batches: as
    for memory(); sharded layers are gathered for each.
    """
    trained = [t for t in part.tensors if t.trained]
    gradients = sum(t.bytes for t in trained)
    if strategy.servers:
        # A push to each server; before it a request to the chief, after it a report.
        return Traffic(sum(t.bytes for t in part.tensors), 0, strategy.servers + 2)
    if grid.dp_size == 1:
        return NO_TRAFFIC
    if strategy.sync.type is SyncType.EXACT:
        return _exact(part, strategy, grid)
    if _is_sharded(strategy, grid):
        return _sharded(part, strategy, grid, micro_batches)
    if grid.pipeline * grid.tensor > 1 or strategy.sync.type is SyncType.REPLICATE:
        # One all-reduce for each unit, among the replicas (there are no shards here).
        return _split_over(_all_reduce(gradients, grid.replicate), part.groups)
    buckets = list(buckets_of(trained))
    if strategy.sync.type is SyncType.LOCAL:
        return _local(sum(t.bytes for t in part.tensors), strategy.sync.local, grid.replicate)
    assert strategy.sync.type in (SyncType.ALL_REDUCE, SyncType.RING), "no cost is known for this sync"
    if strategy.gradient_compression is not None:
        return _compressed(buckets, strategy.gradient_compression, grid.replicate)
    averaged = _split_over(_all_reduce(gradients, grid.dp_size), len(buckets))
    # shard > 1 is ZeRO-1 here: each rank steps its part of the parameters and broadcasts it.
    return averaged + (_broadcasts(gradients, grid.shard) if grid.shard > 1 else NO_TRAFFIC)


def largest_server_memory(part: ModelPart, servers: int) -> Memory:
    """Memory of the largest parameter server. Its parameters and optimizer state exist twice
    (doublebuffer.py); they are counted once here, as what the strategy needs. Gradients are those of one
    worker. part: the full model. The optimizer's state is taken to be spread as the parameters are."""
    owners = balanced_owners([t.bytes for t in part.tensors], servers)
    largest = max(
        sum(t.bytes for t, owner in zip(part.tensors, owners, strict=True) if owner == server)
        for server in range(servers)
    )
    whole = sum(t.bytes for t in part.tensors)
    return Memory(
        largest, largest, None if part.optimizer is None else round(part.optimizer * largest / whole)
    )


def bubble(strategy: Strategy, ranks: int, micro_batches: int) -> float:
    """Pipeline bubble: the fraction of a step in which a rank waits, 0 to 1. ranks: of the pipeline. Assumes
    that backward passes take twice as long as forward passes, half of that for the gradients of weights.
    """
    waits, work = ranks - 1, micro_batches * strategy.pipelining.stage_count_per_rank
    if strategy.pipelining.schedule is Schedule.ZERO_BUBBLE:
        work *= 3  # only the first forward passes are waited for; gradients of weights fill the rest
    return waits / (work + waits)


def buckets_of(trained: Sequence[Tensor]) -> list[list[Tensor]]:
    """DDP's buckets of gradients, in the order in which they are ready: the last layer's first."""
    buckets: list[list[Tensor]] = []
    limit, full = FIRST_BUCKET, True
    for tensor in reversed(trained):
        if full:
            buckets.append([])
        buckets[-1].append(tensor)
        full = sum(t.bytes for t in buckets[-1]) >= limit
        limit = BUCKET if full else limit
    return buckets


def filled_buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Buckets of gradients under sync Exact: the last parameter first, at most EXACT_BUCKET bytes each or one
    parameter. sizes: bytes of each parameter. Returns their indices."""
    buckets: list[list[int]] = []
    free = 0
    for index in reversed(range(len(sizes))):
        if not buckets or sizes[index] > free:
            buckets.append([])
            free = EXACT_BUCKET
        buckets[-1].append(index)
        free -= sizes[index]
    return buckets


def _is_sharded(strategy: Strategy, grid: Layout) -> bool:
    """Whether parameters and gradients are sharded (FSDP); ZeRO-1 shards the optimizer's state only."""
    return grid.shard > 1 and strategy.sharding is not Sharding.OPTIMIZER_STATE


def _outer_copies(local: Local) -> int:
    """Copies of the weights that DiLoCo's outer optimizer keeps: the last synchronized weights, and its
    momentum. 0: none, plain averaging."""
    if local.outer_learning_rate_per_mille is None:
        return 0
    return 2 if local.outer_momentum_per_mille else 1


# ---- collectives, as rings


def _all_reduce(size: float, ranks: int) -> Traffic:
    """Traffic of one all-reduce: n-1 steps of reduce-scatter, n-1 of all-gather. size: bytes on each rank."""
    return Traffic(2 * (ranks - 1) / ranks * size, 1, 2 * (ranks - 1))


def _all_gather(size: float, ranks: int) -> Traffic:
    """Traffic of one all-gather, or of one reduce-scatter, which costs the same. size: bytes of all ranks'
    shards."""
    return Traffic((ranks - 1) / ranks * size, 1, ranks - 1)


def _broadcasts(size: float, ranks: int) -> Traffic:
    """Traffic of broadcasts of each rank's part of `size` bytes to all others."""
    return Traffic((ranks - 1) / ranks * size, ranks, ranks - 1)


def _split_over(one: Traffic, calls: int) -> Traffic:
    """Traffic of `calls` collectives that together send the bytes of `one`: more messages, not more bytes."""
    return Traffic(one.sent, one.collectives * calls, one.messages * calls)


# ---- techniques


def _sharded(part: ModelPart, strategy: Strategy, grid: Layout, micro_batches: int) -> Traffic:
    """Traffic of FSDP: layers are gathered before they compute, and their gradients reduced to shards; hybrid
    sharding then averages the shards over the replicas. With 16-bit precision layers are gathered in 16 bits,
    and gradients reduced in 32.
    """
    short = strategy.precision is not Precision.FLOAT32
    gathered = sum(t.numbers * (FLOAT16_BYTES if short else t.number_bytes) for t in part.tensors)
    reduced = sum(t.numbers * (FLOAT32_BYTES if short else t.number_bytes) for t in part.tensors if t.trained)
    gathers = _split_over(_all_gather(gathered * grid.shard, grid.shard), part.groups)
    reduce_scatters = _split_over(_all_gather(reduced * grid.shard, grid.shard), part.groups)
    all_reduces = (
        _split_over(_all_reduce(reduced, grid.replicate), part.groups) if grid.replicate > 1 else NO_TRAFFIC
    )
    if strategy.sharding is Sharding.GRADIENTS:  # kept from the forward to the backward pass
        times = 1 if grid.pipeline > 1 else micro_batches
    else:  # a pipeline reshards layers after forward passes, and keeps them from the first backward pass on
        times = micro_batches + 1 if grid.pipeline > 1 else 2 * micro_batches
    return gathers * times + reduce_scatters + all_reduces


def _exact(part: ModelPart, strategy: Strategy, grid: Layout) -> Traffic:
    """Traffic of sync Exact, of the replica that sends most: slices of its nodes to each other replica, and
    the sum of its own slice. Shards are gathered, and their gradients reduced, for each micro-batch."""
    trained = [t for t in part.tensors if t.trained]
    parts = equal_parts(strategy.leaves, grid.replicate)
    mine = max(parts, key=lambda leaves: (len(maximal_nodes(leaves, strategy.leaves)), len(leaves)))
    nodes = len(maximal_nodes(mine, strategy.leaves))
    others, buckets = grid.replicate - 1, filled_buckets([t.bytes for t in trained])
    sent = sum(t.bytes for t in trained) * others / grid.replicate * (nodes + 1)
    between = Traffic(sent, 0, others * (nodes + 1) * len(buckets))
    if not _is_sharded(strategy, grid):
        return between
    one = _sharded(part, strategy, replace(grid, replicate=1), 1)
    return between + one * len(mine)


def _local(size: int, local: Local, ranks: int) -> Traffic:
    """Traffic of periodic averaging of weights, as the mean over steps. size: bytes of the weights.
    Hierarchical: where a global average is due, it takes the place of that within groups."""
    global_average = _all_reduce(size, ranks)
    if local.groups_of is None or local.all_every_steps is None:
        return global_average * (1 / local.every_steps)
    global_rate = 1 / local.all_every_steps
    return global_average * global_rate + _all_reduce(size, local.groups_of) * (
        1 / local.every_steps - global_rate
    )


def _compressed(buckets: list[list[Tensor]], compression: Compression, ranks: int) -> Traffic:
    """Traffic of an all-reduce of gradients that compression.py replaces, after its first steps."""
    numbers = [sum(t.numbers for t in bucket) for bucket in buckets]
    if compression.type is CompressionType.TOP_K:  # two all-gathers per bucket: indices and values
        counts = [max(1, count * compression.top_k.keep_per_mille // 1000) for count in numbers]
        return _split_over(
            _all_gather(sum(counts) * (INDEX_BYTES + FLOAT32_BYTES) * ranks, ranks), 2 * len(counts)
        )
    # Three all-reduces per bucket: tensors that are not compressed, then the two factors of all matrices.
    if compression.type is CompressionType.POWER_SGD:
        sent = sum(_low_rank(t, compression.power_sgd.rank) for bucket in buckets for t in bucket)
        return _split_over(_all_reduce(sent * FLOAT32_BYTES, ranks), 3 * len(buckets))
    return _split_over(_all_reduce(sum(numbers) * FLOAT16_BYTES, ranks), len(buckets))


def _low_rank(tensor: Tensor, rank: int) -> int:
    """Elements that PowerSGD sends for a gradient: two factors of at most `rank` columns, or all if that is
    less. The gradient is a matrix of its first dimension by the rest."""
    rows = tensor.shape[0] if tensor.shape else 1
    columns = tensor.numbers // rows if rows else 0
    return min((rows + columns) * min(rows, columns, rank), tensor.numbers)
