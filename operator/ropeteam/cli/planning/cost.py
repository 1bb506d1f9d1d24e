"""Predicted cost of a job, for people. Pure: a spec and its script's answer in, lines out."""

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

_WIDTH = 16
_WRAP = "model, optimizer = job.wrap(model, optimizer)"
_ADVICE = f"to get a prediction, and to split it by spec.strategy, call {_WRAP}"


TIME = "Memory and bytes are predicted, time is not: ropeteam run measures it."
Row = tuple[str, str]
"""Name and figures; a row without a name continues the one before."""


def plan_of(spec: TrainingJobSpec, answer: DryRunResult | str) -> Iterator[str]:
    return lines(rows_of(spec, answer))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    return (f"{name:<{_WIDTH}}{text}" for name, text in rows)


def rows_of(spec: TrainingJobSpec, answer: DryRunResult | str) -> list[Row]:
    """Rows of one plan. answer: the script's, or why there is none. Raises InvalidInput for a job that cannot
    work."""
    strategy = contract_strategy(spec.strategy) if spec.strategy else Strategy()
    grid = layout(strategy, spec.workers * spec.processes)
    micro_batches = micro_batches_per_step(strategy, grid)
    if isinstance(answer, DryRunResult) and answer.refused:
        raise _refusal(answer.refused)
    rows = [("ranks", f"{grid.world} = {_count(spec.workers, 'worker')} x {spec.processes}")]
    if isinstance(answer, DryRunResult) and answer.model is None:
        rows += _without_wrap(spec, answer.without_wrap)
    else:
        model = answer.model if isinstance(answer, DryRunResult) else None
        unknown = [("model", "unknown, and so memory and traffic"), ("", str(answer))]
        rows += [("mesh", "one rank alone" if grid.world == 1 else str(grid))]
        rows += [*_measured(model, strategy, grid, micro_batches or 1)] if model else unknown
        rows += [
            ("bubble", _bubble(strategy, grid, micro_batches)),
            ("batch", _batch(strategy, grid, micro_batches)),
        ]
        rows += [("learning rate", _rate(strategy, model))]
        rows += (
            [("not counted", note) for note in _notes(model, strategy, grid, micro_batches)] if model else []
        )
    return rows


def side_by_side(plans: Sequence[Sequence[Row]]) -> Iterator[tuple[str, ...]]:
    """Name of each row, and the text of each plan in it."""
    cells: dict[str, list[list[str]]] = {}
    for number, rows in enumerate(plans):
        last = ""
        for name, text in rows:
            last = name or last
            cells.setdefault(last, [[] for _ in plans])[number].append(text)
    for name, found in cells.items():
        yield (name, *("\n".join(texts) or "-" for texts in found))


def _refusal(sentences: tuple[str, ...]) -> InvalidInput:
    return InvalidInput("\n  ".join(["this job is invalid:", *sentences]))


def _without_wrap(spec: TrainingJobSpec, outcome: str) -> list[tuple[str, str]]:
    """Rows of a script without job.wrap(): its partition cannot be read from outside."""
    what = f"the script {outcome} without job.wrap()"
    if spec.strategy is not None:
        raise InvalidInput(f"spec.strategy is given, but {what}: call {_WRAP} before restore() and the loop")
    return [("the rest", f"unknown: {what}, so how it splits the work is not known"), ("", _ADVICE)]


# ---- rows


def _measured(
    model: Model, strategy: Strategy, grid: Layout, micro_batches: int
) -> Iterator[tuple[str, str]]:
    groups = "" if len(model.rates) == 1 else f" in {len(model.rates)} groups"
    yield "model", f"{model.parameters:,} parameters, {model.optimizer}{groups}"
    held = {part.rank: cost.memory(part, strategy, grid, micro_batches) for part in model.parts}
    rank, most = max(held.items(), key=lambda item: item[1].total)
    where = "each rank" if len(model.parts) == 1 else f"the rank that holds most ({rank})"
    state = "unknown" if most.optimizer is None else amount(most.optimizer)
    yield "memory", f"{amount(most.total)} on {where}"
    kinds = {"parameters": amount(most.parameters), "gradients": amount(most.gradients), "optimizer": state}
    yield "", ", ".join(f"{kind} {text}" for kind, text in kinds.items())
    if strategy.servers:
        yield "servers", _servers(cost.fullest_server(model.parts[0], strategy.servers), strategy.servers)
    yield "traffic", _traffic([cost.traffic(part, strategy, grid, micro_batches) for part in model.parts])


def _servers(fullest: cost.Memory, count: int) -> str:
    stored = amount(fullest.parameters + (fullest.optimizer or 0))
    return (
        f"{_count(count, 'pod')} more; the one that holds most has {stored} of parameters and optimizer, "
        f"twice, in /dev/shm, and receives {amount(fullest.gradients)} from each worker and step"
    )


def _traffic(of_parts: list[cost.Traffic]) -> str:
    most = max(of_parts, key=lambda each: each.sent)
    if not most.sent:
        return "none: gradients are not sent"
    calls, messages = _count(most.collectives, "collective"), _count(most.messages, "message")
    return f"{amount(most.sent)} sent by each rank and step, in {calls} ({messages})"


def _bubble(strategy: Strategy, grid: Layout, micro_batches: int | None) -> str:
    if grid.pipeline == 1 or micro_batches is None:
        return "none: no pipeline"
    part = cost.bubble(strategy, grid.pipeline, micro_batches)
    schedule = strategy.pipelining.schedule.value
    return f"{100 * part:.1f} % of a step ({schedule}, {micro_batches} micro-batches, {grid.pipeline} ranks)"


def _batch(strategy: Strategy, grid: Layout, micro_batches: int | None) -> str:
    samples, micro = strategy.batch.global_samples, strategy.batch.micro_samples
    if micro_batches is None:
        split_text = f", in micro-batches of at most {micro}"
    else:
        split_text = f", in {micro_batches} micro-batches" if micro_batches > 1 else ""
    shards = _count(grid.dp_size, "part")
    if samples is None:
        return f"as in the script, in {shards}{split_text} (spec.strategy.batch.globalSamples would set it)"
    later = " at first, then by speed" if strategy.batch.balance else ""
    return f"{samples} samples a step, in {shards} of {math.ceil(samples / grid.dp_size)}{later}{split_text}"


def _rate(strategy: Strategy, model: Model | None) -> str:
    rate = strategy.learning_rate
    factor = learning_rate_factor(rate, strategy.batch.global_samples)
    times = "" if rate.scaling is Scaling.NONE else f" x {factor:g} ({rate.scaling.value})"
    warm = f", after {_count(rate.warmup_steps, 'step')} of warm-up" if rate.warmup_steps else ""
    if model is None:
        return f"the script's{times}{warm}"
    before, after = (", ".join(f"{each:g}" for each in rates) for rates in (model.rates, model.scaled_rates))
    return f"{before}{times} = {after}{warm}" if times else f"{before}{warm}"


def _notes(model: Model, strategy: Strategy, grid: Layout, micro_batches: int | None) -> Iterator[str]:
    split = " and ".join(way for way in ("tensor", "pipeline") if getattr(grid, way) > 1)
    yield "activations" + (f", and those that {split} parallelism sends" if split else "")
    copies = (
        not strategy.servers and strategy.sync.type is not SyncType.LOCAL and grid.pipeline * grid.tensor == 1
    )
    if grid.dp_size > 1 and copies and (grid.shard == 1 or strategy.sharding is Sharding.OPTIMIZER_STATE):
        yield f"DDP's buckets: a second copy of gradients, {amount(_gradients(model.parts[0]))}"
    if micro_batches is None:
        yield "all-gathers of sharded layers, and unsharded gradients, of each micro-batch"
    if any(part.optimizer is None for part in model.parts):
        yield f"the state of {model.optimizer}, which does not step without data"


def _gradients(part: ModelPart) -> int:
    return sum(t.bytes for t in part.tensors if t.trained)


# ---- text


def amount(size: float) -> str:
    """Bytes with three digits: 930 kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _count(number: float, what: str) -> str:
    digits = f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"
    return f"{digits} {what}{'' if number == 1 else 's'}"
