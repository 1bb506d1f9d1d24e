"""Cost of a strategy: bytes of memory per rank, bytes and messages per step, idle time, micro-batches.

Pure arithmetic. `sent` is what one rank sends for gradients and parameters, with ring algorithms as in NCCL
(gloo's reduce-scatter is an all-reduce and sends twice as much). Not counted: activations, in memory and on
the wire (tensor parallelism, pipelines); they depend on the batch.
Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009; Rajbhandari et al., "ZeRO",
SC 2020; Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model
Training", SC 2021; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropeteam_trainer.contract.strategy import (
    Compression,
    CompressionType,
    LearningRate,
    Local,
    Pipelining,
    Precision,
    Scaling,
    Schedule,
    Sharding,
    Strategy,
    SyncType,
)
from ropeteam_trainer.partition.answer import ModelPart, Tensor
from ropeteam_trainer.partition.layout import Layout, shared_out

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of a bucket of DDP: the first one is smaller, to start communication early."""
FULL, SHORT, INDEX = 4, 2, 8
"""Bytes of a float32, a 16-bit float, an index."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank, without activations and buffers for communication."""

    parameters: int
    gradients: int
    optimizer: int | None

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + (self.optimizer or 0)


@dataclass(frozen=True)
class Traffic:
    """Traffic that one rank sends in one step, on average."""

    sent: float = 0
    """Bytes."""
    collectives: float = 0
    messages: float = 0
    """Sends to a neighbour."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent + other.sent, self.collectives + other.collectives, self.messages + other.messages
        )

    def __mul__(self, times: float) -> Traffic:
        return Traffic(self.sent * times, self.collectives * times, self.messages * times)


NOTHING = Traffic()


def memory(part: ModelPart, strategy: Strategy, grid: Layout, micro_batches: int) -> Memory:
    """Memory of one rank. micro_batches: per step; sharded gradients are unsharded until the last."""
    gradients = sum(t.bytes for t in part.tensors if t.trained)
    if _is_sharded(strategy, grid) and micro_batches > 1:
        gradients *= grid.shard
    parameters = sum(t.bytes for t in part.tensors)
    optimizer = 0 if strategy.servers else part.optimizer
    if strategy.sync.type is SyncType.LOCAL and grid.world > 1 and optimizer is not None:
        optimizer += parameters * _outer_copies(strategy.sync.local)
    return Memory(parameters, gradients, optimizer)


def traffic(part: ModelPart, strategy: Strategy, grid: Layout, micro_batches: int) -> Traffic:
    """Traffic of one rank. micro_batches: as for memory(); sharded layers are gathered for each of them."""
    trained = [t for t in part.tensors if t.trained]
    whole = sum(t.bytes for t in trained)
    if strategy.servers:
        # A push to each server; before it a request to the chief, after it a report.
        return Traffic(sum(t.bytes for t in part.tensors), 0, strategy.servers + 2)
    if grid.dp_size == 1:
        return NOTHING
    if _is_sharded(strategy, grid):
        return _sharded(part, strategy, grid, micro_batches)
    if grid.pipeline * grid.tensor > 1 or strategy.sync.type is SyncType.REPLICATE:
        return _split_over(_all_reduce(whole, grid.replicate), part.groups)
    buckets = list(buckets_of(trained))
    if strategy.sync.type is SyncType.LOCAL:
        return _local(sum(t.bytes for t in part.tensors), strategy.sync.local, grid.replicate)
    assert strategy.sync.type in (SyncType.ALL_REDUCE, SyncType.RING), "another sync costs something else"
    if strategy.gradient_compression is not None:
        return _compressed(buckets, strategy.gradient_compression, grid.replicate)
    averaged = _split_over(_all_reduce(whole, grid.dp_size), len(buckets))
    return averaged + (_broadcasts(whole, grid.shard) if grid.shard > 1 else NOTHING)


def fullest_server(part: ModelPart, servers: int) -> Memory:
    """Memory of the largest parameter server, which it has twice; gradients: received from each worker in a
    step. part: the full model."""
    owners = shared_out([t.bytes for t in part.tensors], servers)
    largest = max(
        sum(t.bytes for t, owner in zip(part.tensors, owners, strict=True) if owner == server)
        for server in range(servers)
    )
    whole = sum(t.bytes for t in part.tensors)
    return Memory(
        largest, largest, None if part.optimizer is None else round(part.optimizer * largest / whole)
    )


def bubble(strategy: Strategy, ranks: int, micro_batches: int) -> float:
    """Pipeline bubble: the fraction of a step in which a rank waits, if backward passes take twice as long as
    forward passes, half of that for the gradients of weights.
    """
    waits, work = ranks - 1, micro_batches * strategy.pipelining.stage_count_per_rank
    if strategy.pipelining.schedule is Schedule.ZERO_BUBBLE:
        work *= 3  # only the first forward passes are waited for; gradients of weights fill the rest
    return waits / (work + waits)


def micro_batches(samples: int | None, settings: Pipelining, ranks: int) -> int:
    """Number of micro-batches of a rank's part of a batch (None: of any size) that the schedule accepts.

    It is the number in the settings, or the smallest that needs no larger micro-batches.
    """
    target = settings.micro_batches or 2 * ranks * settings.stage_count_per_rank
    if settings.needs_several_stages:
        target = max(target // ranks, 1) * ranks
    count = target if samples is None else math.ceil(samples / math.ceil(samples / target))
    if settings.schedule is Schedule.GPIPE:
        return count
    return math.ceil(count / ranks) * ranks if settings.needs_several_stages else max(count, ranks)


def micro_batch_count(strategy: Strategy, grid: Layout) -> int | None:
    """Number of micro-batches of a rank's part of the batch. None: it depends on the script's batch."""
    batch = strategy.batch
    samples = None if batch.global_samples is None else math.ceil(batch.global_samples / grid.dp_size)
    if grid.pipeline > 1:
        return micro_batches(samples, strategy.pipelining, grid.pipeline)
    if batch.micro_samples is None:
        return 1
    return None if samples is None else math.ceil(samples / batch.micro_samples)


def rate_factor(rate: LearningRate, global_batch: int | None) -> float:
    """Factor of the script's learning rate."""
    if rate.scaling is Scaling.NONE:
        return 1.0
    assert rate.base_batch is not None
    assert global_batch is not None
    ratio = global_batch / rate.base_batch
    return ratio if rate.scaling is Scaling.LINEAR else float(ratio**0.5)


def buckets_of(trained: Sequence[Tensor]) -> list[list[Tensor]]:
    """DDP's buckets of gradients: the last layer's are ready first."""
    buckets: list[list[Tensor]] = []
    limit, full = FIRST_BUCKET, True
    for tensor in reversed(trained):
        if full:
            buckets.append([])
        buckets[-1].append(tensor)
        full = sum(t.bytes for t in buckets[-1]) >= limit
        limit = BUCKET if full else limit
    return buckets


def _is_sharded(strategy: Strategy, grid: Layout) -> bool:
    return grid.shard > 1 and strategy.sharding is not Sharding.OPTIMIZER_STATE


def _outer_copies(local: Local) -> int:
    """Copies of the weights for DiLoCo: the last synchronized weights, and the momentum."""
    if local.outer_learning_rate_per_mille is None:
        return 0
    return 2 if local.outer_momentum_per_mille else 1


# ---- collectives, as rings


def _all_reduce(size: float, ranks: int) -> Traffic:
    """size: bytes on each rank. n-1 steps of reduce-scatter, n-1 of all-gather."""
    return Traffic(2 * (ranks - 1) / ranks * size, 1, 2 * (ranks - 1))


def _gather(size: float, ranks: int) -> Traffic:
    """size: bytes of all ranks' shards. A reduce-scatter costs the same."""
    return Traffic((ranks - 1) / ranks * size, 1, ranks - 1)


def _broadcasts(size: float, ranks: int) -> Traffic:
    """Broadcasts of each rank's part of `size` bytes to all others."""
    return Traffic((ranks - 1) / ranks * size, ranks, ranks - 1)


def _split_over(traffic: Traffic, calls: int) -> Traffic:
    """Traffic of the same bytes, split over `calls` collectives."""
    return Traffic(traffic.sent, traffic.collectives * calls, traffic.messages * calls)


# ---- techniques


def _sharded(part: ModelPart, strategy: Strategy, grid: Layout, micro_batches: int) -> Traffic:
    """Traffic of FSDP: layers are gathered before they compute, and their gradients reduced to shards."""
    short = strategy.precision is not Precision.FLOAT32
    gathered = sum(t.numbers * (SHORT if short else t.number_bytes) for t in part.tensors)
    reduced = sum(t.numbers * (FULL if short else t.number_bytes) for t in part.tensors if t.trained)
    gather = _split_over(_gather(gathered * grid.shard, grid.shard), part.groups)
    scatter = _split_over(_gather(reduced * grid.shard, grid.shard), part.groups)
    between = (
        _split_over(_all_reduce(reduced, grid.replicate), part.groups) if grid.replicate > 1 else NOTHING
    )
    if strategy.sharding is Sharding.GRADIENTS:  # kept from the forward to the backward pass
        times = 1 if grid.pipeline > 1 else micro_batches
    else:  # a pipeline reshards layers after forward passes, and keeps them from the first backward pass on
        times = micro_batches + 1 if grid.pipeline > 1 else 2 * micro_batches
    return gather * times + scatter + between


def _local(size: int, local: Local, ranks: int) -> Traffic:
    """Traffic of periodic averaging of weights; the mean over steps."""
    global_average = _all_reduce(size, ranks)
    if local.groups_of is None or local.all_every_steps is None:
        return global_average * (1 / local.every_steps)
    global_rate = 1 / local.all_every_steps
    return global_average * global_rate + _all_reduce(size, local.groups_of) * (
        1 / local.every_steps - global_rate
    )


def _compressed(buckets: list[list[Tensor]], compression: Compression, ranks: int) -> Traffic:
    numbers = [sum(t.numbers for t in bucket) for bucket in buckets]
    if compression.type is CompressionType.TOP_K:  # indices and values of each rank go to all others
        counts = [max(1, count * compression.top_k.keep_per_mille // 1000) for count in numbers]
        return _split_over(_gather(sum(counts) * (INDEX + FULL) * ranks, ranks), 2 * len(counts))
    if (
        compression.type is CompressionType.POWER_SGD
    ):  # uncompressed tensors, then both factors of all matrices
        sent = sum(_low_rank(t, compression.power_sgd.rank) for bucket in buckets for t in bucket)
        return _split_over(_all_reduce(sent * FULL, ranks), 3 * len(buckets))
    return _split_over(_all_reduce(sum(numbers) * SHORT, ranks), len(buckets))


def _low_rank(tensor: Tensor, rank: int) -> int:
    """Elements that PowerSGD sends for a gradient, viewed as a matrix of its first dimension by the rest."""
    rows = tensor.shape[0] if tensor.shape else 1
    columns = tensor.numbers // rows if rows else 0
    return min((rows + columns) * min(rows, columns, rank), tensor.numbers)
