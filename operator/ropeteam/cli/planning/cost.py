"""Predicted cost of a job, for people. No I/O: a spec and the result of its dry run in, lines out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.strategy import contract_strategy
from ropeteam.cli.errors import InvalidInput
from ropeteam_trainer.contract.strategy import Scaling, Sharding, Strategy, SyncType
from ropeteam_trainer.partition import cost
from ropeteam_trainer.partition.answer import DryRunResult, Model, ModelPart
from ropeteam_trainer.partition.layout import Layout, layout, micro_batches_per_step
from ropeteam_trainer.partition.learningrate import learning_rate_factor
from ropeteam_trainer.partition.reductiontree import equal_parts, most_buffers

_WIDTH = 16
_WRAP = "model, optimizer = job.wrap(model, optimizer)"
_ADVICE = f"to get a prediction, and to split it by spec.strategy, call {_WRAP}"
TIME = "Memory and bytes are predicted, time is not: ropeteam run measures it."
Row = tuple[str, str]
"""Name and figures; a row without a name continues the one before."""


def plan_lines(spec: TrainingJobSpec, dry_run: DryRunResult | str) -> Iterator[str]:
    """Lines of one plan; arguments and errors as for plan_rows."""
    return row_lines(plan_rows(spec, dry_run))


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    return (f"{name:<{_WIDTH}}{text}" for name, text in rows)


def plan_rows(spec: TrainingJobSpec, dry_run: DryRunResult | str) -> list[Row]:
    """Rows of one plan. dry_run: a text is the reason why there is no result; then rows about the model are
    unknown, and the others follow from the spec. Raises InvalidInput for a strategy that this script cannot
    use."""
    strategy = contract_strategy(spec.strategy) if spec.strategy else Strategy()
    grid = layout(strategy, spec.workers * spec.processes)
    micro_batches = micro_batches_per_step(strategy, grid)
    if isinstance(dry_run, DryRunResult) and dry_run.refused:
        raise InvalidInput("\n  ".join(["this job is invalid:", *dry_run.refused]))
    rows = [("ranks", f"{grid.world} = {_count_text(spec.workers, 'worker')} x {spec.processes}")]
    if isinstance(dry_run, DryRunResult) and dry_run.model is None:
        rows += _rows_without_wrap(spec, dry_run.without_wrap)
    else:
        model = dry_run.model if isinstance(dry_run, DryRunResult) else None
        unknown = [("model", "unknown, and so memory and traffic"), ("", str(dry_run))]
        rows += [("mesh", "one rank alone" if grid.world == 1 else str(grid))]
        # an unknown number counts as 1; _not_counted lists what is missing then
        rows += [*_model_rows(model, strategy, grid, micro_batches or 1)] if model else unknown
        rows += [
            ("bubble", _bubble_text(strategy, grid, micro_batches)),
            ("batch", _batch_text(strategy, grid, micro_batches)),
        ]
        rows += [("learning rate", _learning_rate_text(strategy, model))]
        if model:
            rows += [("not counted", text) for text in _not_counted(model, strategy, grid, micro_batches)]
    return rows


def table_rows(plans: Sequence[Sequence[Row]]) -> Iterator[tuple[str, ...]]:
    """Rows of a table of several plans: the name of each row that any plan has, then the text of each plan in
    it, `-` where it has none. Rows without a name are added to the row before them."""
    cells: dict[str, list[list[str]]] = {}
    for column, rows in enumerate(plans):
        last = ""
        for name, text in rows:
            last = name or last
            cells.setdefault(last, [[] for _ in plans])[column].append(text)
    for name, columns in cells.items():
        yield (name, *("\n".join(texts) or "-" for texts in columns))


def _rows_without_wrap(spec: TrainingJobSpec, outcome: str) -> list[Row]:
    """Rows of a script without job.wrap(): how it splits the model cannot be read from outside. outcome: as
    DryRunResult.without_wrap. Raises InvalidInput if the spec has a strategy, which nothing would apply."""
    what = f"the script {outcome} without job.wrap()"
    if spec.strategy is not None:
        raise InvalidInput(f"spec.strategy is given, but {what}: call {_WRAP} before restore() and the loop")
    return [("the rest", f"unknown: {what}, so how it splits the work is not known"), ("", _ADVICE)]


# ---- rows


def _model_rows(model: Model, strategy: Strategy, grid: Layout, micro_batches: int) -> Iterator[Row]:
    """Rows that need the model: memory and traffic are those of the rank that has or sends most."""
    groups = "" if len(model.rates) == 1 else f" in {len(model.rates)} groups"
    yield "model", f"{model.parameters:,} parameters, {model.optimizer}{groups}"
    held = {part.rank: cost.memory(part, strategy, grid, micro_batches) for part in model.parts}
    rank, most = max(held.items(), key=lambda item: item[1].total)
    where = "each rank" if len(model.parts) == 1 else f"the rank that holds most ({rank})"
    state = "unknown" if most.optimizer is None else byte_text(most.optimizer)
    yield "memory", f"{byte_text(most.total)} on {where}"
    parameters, gradients = byte_text(most.parameters), byte_text(most.gradients)
    yield "", f"parameters {parameters}, gradients {gradients}, optimizer {state}"
    if strategy.servers:
        fullest = cost.largest_server_memory(model.parts[0], strategy.servers)
        yield "servers", _servers_text(fullest, strategy.servers)
    traffic = [cost.traffic(part, strategy, grid, micro_batches) for part in model.parts]
    yield "traffic", _traffic_text(traffic)


def _servers_text(fullest: cost.Memory, count: int) -> str:
    """Number of parameter servers, and memory and traffic of the fullest one (cost.largest_server_memory)."""
    stored = byte_text(fullest.parameters + (fullest.optimizer or 0))
    return (
        f"{_count_text(count, 'pod')} more; the one that holds most has {stored} of parameters and "
        f"optimizer, twice, in /dev/shm, and receives {byte_text(fullest.gradients)} from each worker and "
        "step"
    )


def _traffic_text(of_parts: list[cost.Traffic]) -> str:
    """Bytes, collectives and messages of the rank that sends most. of_parts: in one step, as cost.traffic."""
    most = max(of_parts, key=lambda each: each.sent)
    if not most.sent:
        return "none: gradients are not sent"
    calls, messages = _count_text(most.collectives, "collective"), _count_text(most.messages, "message")
    return f"{byte_text(most.sent)} sent by each rank and step, in {calls} ({messages})"


def _bubble_text(strategy: Strategy, grid: Layout, micro_batches: int | None) -> str:
    """Idle part of a step; micro_batches is not None in a pipeline."""
    if grid.pipeline == 1 or micro_batches is None:
        return "none: no pipeline"
    part = cost.bubble(strategy, grid.pipeline, micro_batches)
    schedule = strategy.pipelining.schedule.value
    return f"{100 * part:.1f} % of a step ({schedule}, {micro_batches} micro-batches, {grid.pipeline} ranks)"


def _batch_text(strategy: Strategy, grid: Layout, micro_batches: int | None) -> str:
    """Samples of a step, and their split among data-parallel ranks and into micro-batches. micro_batches:
    None if their number depends on the script's batch."""
    samples, micro = strategy.batch.global_samples, strategy.batch.micro_samples
    if micro_batches is None:
        split_text = f", in micro-batches of at most {micro}"
    else:
        split_text = f", in {micro_batches} micro-batches" if micro_batches > 1 else ""
    shards = _count_text(grid.dp_size, "part")
    if samples is None:
        return f"as in the script, in {shards}{split_text} (spec.strategy.batch.globalSamples would set it)"
    later = " at first, then by speed" if strategy.batch.balance else ""
    return f"{samples} samples a step, in {shards} of {math.ceil(samples / grid.dp_size)}{later}{split_text}"


def _learning_rate_text(strategy: Strategy, model: Model | None) -> str:
    """Learning rate of each parameter group: as in the script, times the factor of the strategy, as
    applied."""
    rate = strategy.learning_rate
    factor = learning_rate_factor(rate, strategy.batch.global_samples)
    times = "" if rate.scaling is Scaling.NONE else f" x {factor:g} ({rate.scaling.value})"
    warm = f", after {_count_text(rate.warmup_steps, 'step')} of warm-up" if rate.warmup_steps else ""
    if model is None:
        return f"the script's{times}{warm}"
    before, after = (", ".join(f"{each:g}" for each in rates) for rates in (model.rates, model.scaled_rates))
    return f"{before}{times} = {after}{warm}" if times else f"{before}{warm}"


def _not_counted(model: Model, strategy: Strategy, grid: Layout, micro_batches: int | None) -> Iterator[str]:
    """Memory and traffic that the figures leave out."""
    split = " and ".join(way for way in ("tensor", "pipeline") if getattr(grid, way) > 1)
    yield "activations" + (f", and those that {split} parallelism sends" if split else "")
    unsharded = grid.shard == 1 or strategy.sharding is Sharding.OPTIMIZER_STATE
    syncs_gradients = not strategy.servers and strategy.sync.type is not SyncType.LOCAL
    if strategy.sync.type is SyncType.EXACT:
        parts = equal_parts(strategy.leaves, grid.replicate)
        count = max(most_buffers(part, strategy.leaves) for part in parts)
        yield f"sums of micro-batches: gradients {_count_text(count, 'time')} more on each rank"
    elif grid.dp_size > 1 and unsharded and syncs_gradients and grid.pipeline * grid.tensor == 1:
        yield f"DDP's buckets: a second copy of gradients, {byte_text(_gradient_bytes(model.parts[0]))}"
    if micro_batches is None:
        yield "all-gathers of sharded layers, and unsharded gradients, of each micro-batch"
    if any(part.optimizer is None for part in model.parts):
        yield (
            f"the state of {model.optimizer}: its step() fails in a dry run, which has no data, so its size "
            "is unknown"
        )


def _gradient_bytes(part: ModelPart) -> int:
    return sum(t.bytes for t in part.tensors if t.trained)


# ---- text


def byte_text(size: float) -> str:
    """Bytes with three digits, in powers of 1000: `930 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _count_text(number: float, noun: str) -> str:
    """`1 worker`, `2 workers`, `2.5 collectives`; two digits are enough for a mean below 10."""
    digits = f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"
    return f"{digits} {noun}{'' if number == 1 else 's'}"
