"""What a strategy costs: bytes of memory per rank, bytes and messages per step, idle time, pieces of a batch.

Pure arithmetic. `sent` is what one rank sends for gradients and parameters, counted as rings, which is what
NCCL does (gloo's reduce-scatter is an all-reduce and sends twice as much). Not counted: activations, and what
tensor parallelism and pipelines send of them; they depend on the batch.
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
from ropeteam_trainer.partition.answer import Part, Tensor
from ropeteam_trainer.partition.layout import Layout, shared_out

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of gradients from which DDP sends them: the first ones sooner, to begin early."""
FULL, SHORT, INDEX = 4, 2, 8
"""Bytes of a float32, of a 16-bit float, of an index."""


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
    """What one rank sends in one step, on average."""

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


def memory(part: Part, strategy: Strategy, grid: Layout, pieces: int) -> Memory:
    """pieces: parts of a rank's batch whose gradients are added up. Sharded ones are whole meanwhile."""
    gradients = sum(t.bytes for t in part.tensors if t.trained)
    if _is_sharded(strategy, grid) and pieces > 1:
        gradients *= grid.shard
    parameters = sum(t.bytes for t in part.tensors)
    optimizer = 0 if strategy.servers else part.optimizer
    if strategy.sync.type is SyncType.LOCAL and grid.world > 1 and optimizer is not None:
        optimizer += parameters * _outer_copies(strategy.sync.local)
    return Memory(parameters, gradients, optimizer)


def traffic(part: Part, strategy: Strategy, grid: Layout, pieces: int) -> Traffic:
    """`pieces`: as for memory(). Sharded layers are gathered for each of them."""
    trained = [t for t in part.tensors if t.trained]
    whole = sum(t.bytes for t in trained)
    if strategy.servers:
        # A push to each server; before it the chief is asked, and after it told.
        return Traffic(sum(t.bytes for t in part.tensors), 0, strategy.servers + 2)
    if grid.dp_size == 1:
        return NOTHING
    if _is_sharded(strategy, grid):
        return _sharded(part, strategy, grid, pieces)
    if grid.pipeline * grid.tensor > 1 or strategy.sync.type is SyncType.REPLICATE:
        return _many(_all_reduce(whole, grid.replicate), part.groups)
    buckets = list(buckets_of(trained))
    if strategy.sync.type is SyncType.LOCAL:
        return _local(sum(t.bytes for t in part.tensors), strategy.sync.local, grid.replicate)
    assert strategy.sync.type in (SyncType.ALL_REDUCE, SyncType.RING), "another sync costs something else"
    if strategy.gradient_compression is not None:
        return _compressed(buckets, strategy.gradient_compression, grid.replicate)
    averaged = _many(_all_reduce(whole, grid.dp_size), len(buckets))
    return averaged + (_broadcasts(whole, grid.shard) if grid.shard > 1 else NOTHING)


def fullest_server(part: Part, servers: int) -> Memory:
    """What a parameter server keeps, twice; as gradients, what it receives from each worker in a step. part:
    the whole model."""
    owners = shared_out([t.bytes for t in part.tensors], servers)
    kept = max(
        sum(t.bytes for t, owner in zip(part.tensors, owners, strict=True) if owner == server)
        for server in range(servers)
    )
    whole = sum(t.bytes for t in part.tensors)
    return Memory(kept, kept, None if part.optimizer is None else round(part.optimizer * kept / whole))


def bubble(strategy: Strategy, ranks: int, micro_batches: int) -> float:
    """The part of a step in which a rank of a pipeline waits, if backward passes take twice as long as
    forward passes, and half of that for the gradients of weights.
    """
    waits, work = ranks - 1, micro_batches * strategy.pipelining.per_rank
    if strategy.pipelining.schedule is Schedule.ZERO_BUBBLE:
        work *= 3  # it waits for first forward passes only; gradients of weights fill the rest
    return waits / (work + waits)


def micro_batches(samples: int | None, settings: Pipelining, ranks: int) -> int:
    """Pieces of a rank's part of a batch (None: of any), in a number that the schedule takes.

    Those that settings ask for, or as few as need no larger pieces.
    """
    wanted = settings.micro_batches or 2 * ranks * settings.per_rank
    if settings.several:
        wanted = max(wanted // ranks, 1) * ranks
    count = wanted if samples is None else math.ceil(samples / math.ceil(samples / wanted))
    if settings.schedule is Schedule.GPIPE:
        return count
    return math.ceil(count / ranks) * ranks if settings.several else max(count, ranks)


def pieces_of(strategy: Strategy, grid: Layout) -> int | None:
    """Pieces of a rank's part of the batch. None: it depends on the script's batch."""
    batch = strategy.batch
    samples = None if batch.global_samples is None else math.ceil(batch.global_samples / grid.dp_size)
    if grid.pipeline > 1:
        return micro_batches(samples, strategy.pipelining, grid.pipeline)
    if batch.micro_samples is None:
        return 1
    return None if samples is None else math.ceil(samples / batch.micro_samples)


def rate_factor(rate: LearningRate, global_batch: int | None) -> float:
    """What the script's learning rate is multiplied with."""
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
    """DiLoCo: the weights that ranks had in common last, and the momentum."""
    if local.outer_learning_rate_per_mille is None:
        return 0
    return 2 if local.outer_momentum_per_mille else 1


# ---- collectives, as rings


def _all_reduce(size: float, ranks: int) -> Traffic:
    """size: bytes that each rank has. In n-1 rounds pieces are added up, in n-1 more they go round."""
    return Traffic(2 * (ranks - 1) / ranks * size, 1, 2 * (ranks - 1))


def _gather(size: float, ranks: int) -> Traffic:
    """size: bytes of all ranks' pieces. A reduce-scatter costs the same."""
    return Traffic((ranks - 1) / ranks * size, 1, ranks - 1)


def _broadcasts(size: float, ranks: int) -> Traffic:
    """Each rank sends its part of `size` bytes to all others."""
    return Traffic((ranks - 1) / ranks * size, ranks, ranks - 1)


def _many(together: Traffic, calls: int) -> Traffic:
    """The same bytes in so many collectives."""
    return Traffic(together.sent, together.collectives * calls, together.messages * calls)


# ---- techniques


def _sharded(part: Part, strategy: Strategy, grid: Layout, pieces: int) -> Traffic:
    """Layers are gathered before they compute, and their gradients reduced to shards."""
    short = strategy.precision is not Precision.FLOAT32
    gathered = sum(t.numbers * (SHORT if short else t.number_bytes) for t in part.tensors)
    reduced = sum(t.numbers * (FULL if short else t.number_bytes) for t in part.tensors if t.trained)
    gather = _many(_gather(gathered * grid.shard, grid.shard), part.groups)
    scatter = _many(_gather(reduced * grid.shard, grid.shard), part.groups)
    between = _many(_all_reduce(reduced, grid.replicate), part.groups) if grid.replicate > 1 else NOTHING
    if strategy.sharding is Sharding.GRADIENTS:  # kept from the forward to the backward pass
        times = 1 if grid.pipeline > 1 else pieces
    else:  # a pipeline drops layers after forward passes, and keeps them from the first backward pass on
        times = pieces + 1 if grid.pipeline > 1 else 2 * pieces
    return gather * times + scatter + between


def _local(size: int, local: Local, ranks: int) -> Traffic:
    """Weights are averaged now and then; the mean over steps."""
    everyone = _all_reduce(size, ranks)
    if local.groups_of is None or local.all_every_steps is None:
        return everyone * (1 / local.every_steps)
    seldom = 1 / local.all_every_steps
    return everyone * seldom + _all_reduce(size, local.groups_of) * (1 / local.every_steps - seldom)


def _compressed(buckets: list[list[Tensor]], how: Compression, ranks: int) -> Traffic:
    numbers = [sum(t.numbers for t in bucket) for bucket in buckets]
    if how.type is CompressionType.TOP_K:  # places and values of each rank go to all others
        kept = [max(1, count * how.top_k.keep_per_mille // 1000) for count in numbers]
        return _many(_gather(sum(kept) * (INDEX + FULL) * ranks, ranks), 2 * len(kept))
    if how.type is CompressionType.POWER_SGD:  # what is not compressed, then both factors of all matrices
        sent = sum(_low_rank(t, how.power_sgd.rank) for bucket in buckets for t in bucket)
        return _many(_all_reduce(sent * FULL, ranks), 3 * len(buckets))
    return _many(_all_reduce(sum(numbers) * SHORT, ranks), len(buckets))


def _low_rank(tensor: Tensor, rank: int) -> int:
    """Numbers that PowerSGD sends for one gradient, seen as a matrix of its first dimension by the others."""
    rows = tensor.shape[0] if tensor.shape else 1
    columns = tensor.numbers // rows if rows else 0
    return min((rows + columns) * min(rows, columns, rank), tensor.numbers)
