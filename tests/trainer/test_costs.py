"""Predictions of a plan, against ranks that train: bytes that they hold, collectives that they call.

A plan's sizes come from a wrap() in a world that talks to nobody; here the same strategy trains over gloo.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lab.ranks import tiny
from lab.ranks.processes import RankGroup
from tests.trainer.test_techniques import compressed, locally, pipelined, ways

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import CompressionType, Strategy, SyncType
from ropeteam_trainer.partition import cost
from ropeteam_trainer.partition.answer import Model
from ropeteam_trainer.partition.cost import Memory, Traffic
from ropeteam_trainer.partition.layout import Layout, layout, micro_batches_per_step
from ropeteam_trainer.partition.reductiontree import equal_parts, maximal_nodes
from ropeteam_trainer.planning.measure import measure_model

BATCH, COUNTED = 32, 3
PIECES = {"micro_samples": 2, "global_samples": BATCH}
WHOLE: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "micro-batches": {"batch": PIECES},
    "ring": {"sync": {"type": "Ring"}},
    "exact": {"sync": {"type": "Exact"}},
    "composable replicate": {"sync": {"type": "Replicate"}},
    "ZeRO-1": {"sharding": "OptimizerState"},
    "DiLoCo": locally(every_steps=3, outer_learning_rate_per_mille=700),
    "DiLoCo without momentum": locally(
        every_steps=3, outer_learning_rate_per_mille=700, outer_momentum_per_mille=0
    ),
    "local": locally(every_steps=3),
    "gradients of bfloat16": compressed("BFloat16"),
    "TopK": compressed("TopK", top_k={"keep_per_mille": 100}),
    "PowerSGD": compressed("PowerSGD", power_sgd={"rank": 2}),
}
SHARDED: dict[str, dict[str, Any]] = {
    "ZeRO-2": {"sharding": "Gradients"},
    "ZeRO-3": {"sharding": "Parameters"},
    "ZeRO-3, bfloat16": {"sharding": "Parameters", "precision": "BFloat16"},
    "ZeRO-2, micro-batches": {"sharding": "Gradients", "batch": PIECES},
    "ZeRO-3, micro-batches": {"sharding": "Parameters", "batch": PIECES},
}
HYBRID: dict[str, dict[str, Any]] = {
    "hybrid shard": ways(replicate=2, shard=2),
    "exact hybrid shard": {"sync": {"type": "Exact"}, **ways(replicate=2, shard=2)},
    "exact hybrid shard of gradients": {
        "sync": {"type": "Exact"},
        "sharding": "Gradients",
        **ways(replicate=2, shard=2),
    },
    "exact replicate x tensor": {"sync": {"type": "Exact"}, **ways(replicate=2, tensor=2)},
    "tensor": ways(tensor=4),
    "shard x tensor": ways(shard=2, tensor=2),
    "replicate x tensor": ways(replicate=2, tensor=2),
    "pipeline": ways(pipeline=4),
    "replicate x pipeline": ways(replicate=2, pipeline=2),
    "shard x pipeline": ways(shard=2, pipeline=2),
    "shard x GPipe": pipelined("GPipe", shard=2),
    "shard x interleaved": pipelined("Interleaved", shard=2),
    "ZeRO-2 x interleaved": {"sharding": "Gradients", **pipelined("Interleaved", shard=2)},
    "replicate x zero bubble": pipelined("ZeroBubble", replicate=2),
    "hierarchical": locally(every_steps=1, groups_of=2, all_every_steps=3),
}
WORLDS = {2: {**WHOLE, **SHARDED}, 3: {**WHOLE, **SHARDED}, 4: {**SHARDED, **HYBRID}}


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_hold_and_send_what_was_planned(world: int, tmp_path: Path) -> None:
    real = trained(tmp_path, world, WORLDS[world])
    for name, fields in WORLDS[world].items():
        strategy, grid, model = planned(world, fields)
        held = [Memory(each["parameters"], each["gradients"], each["optimizer"]) for each in real[name]]
        # One micro-batch: in the end, when all are added up, gradients are shards again.
        expected = {part.rank: cost.memory(part, strategy, grid, 1) for part in model.parts}
        assert {rank: held[rank] for rank in expected} == expected, name
        assert max(each.total for each in held) == max(each.total for each in expected.values()), name
        for part in model.parts:
            predicted = cost.traffic(part, strategy, grid, micro_batches_per_step(strategy, grid) or 1)
            sender = sends_most(strategy, grid, part.rank)
            counted = counted_in(real[name][sender]["calls"], COUNTED, strategy)
            agree(predicted, counted, (name, part.rank))


def sends_most(strategy: Strategy, grid: Layout, rank: int) -> int:
    """Rank that sends most of those with the same part of the model: under sync Exact replicas differ."""
    if strategy.sync.type is not SyncType.EXACT:
        return rank
    parts = equal_parts(strategy.leaves, grid.replicate)
    most = max(range(grid.replicate), key=lambda n: len(maximal_nodes(parts[n], strategy.leaves)))
    return rank + most * (grid.world // grid.replicate)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("kind", ["Gradients", "Parameters"])
def test_shards_are_a_fair_part_of_the_whole(world: int, kind: str) -> None:
    strategy, grid, model = planned(1, {}, "wide")
    alone = cost.memory(model.parts[0], strategy, grid, 1)
    strategy, grid, model = planned(world, {"sharding": kind}, "wide")
    share = cost.memory(model.parts[0], strategy, grid, 1)
    assert share.total == pytest.approx(alone.total / world, rel=0.02)


def test_gradients_travel_in_the_buckets_that_were_planned(tmp_path: Path) -> None:
    names = ("all-reduce", "ring", "gradients of bfloat16", "TopK", "PowerSGD")
    chosen = {name: WHOLE[name] for name in names}
    real = trained(tmp_path, 2, chosen, model="wide", steps=4, counted=1)
    for name, fields in chosen.items():
        strategy, grid, model = planned(2, fields, "wide")
        (part,) = model.parts
        agree(cost.traffic(part, strategy, grid, 1), counted_in(real[name][0]["calls"], 1, strategy), name)
    sizes = [size for size, _ in real["all-reduce"][0]["calls"]["allreduce"]]
    buckets = cost.buckets_of(planned(2, {}, "wide")[2].parts[0].tensors)
    assert sizes == [sum(t.bytes for t in bucket) for bucket in buckets]
    assert len(sizes) == 3


def trained(path: Path, world: int, requests: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    settings = {"model": "tiny", "batch": BATCH, "steps": 5, "counted": COUNTED, **more}
    listed = [{"name": name, "strategy": fields, **settings} for name, fields in requests.items()]
    (path / "requests").write_text(json.dumps(listed))
    with RankGroup(path / "group", world) as group:
        ended = group.start("costs.py", str(path / "requests")).wait(seconds=240)
    assert not any(ended.codes), ended.output
    return ended.result


def planned(world: int, fields: dict[str, Any], model: str = "tiny") -> tuple[Strategy, Layout, Model]:
    strategy = codec.from_plain(Strategy, {"batch": {"global_samples": BATCH}, **fields})
    with torch.device("meta"):
        made = tiny.made("AdamW", model)
    return strategy, layout(strategy, world), measure_model(*made, strategy, world, tiny.LOSSES[model])


def agree(predicted: Traffic, counted: Traffic, where: Any) -> None:
    assert predicted.sent == pytest.approx(counted.sent, abs=1), where
    assert counted.collectives in (0, pytest.approx(predicted.collectives)), where
    assert counted.messages == pytest.approx(predicted.messages), where


def counted_in(calls: dict[str, list[list[int]]], steps: int, strategy: Strategy) -> Traffic:
    """The mean step of one rank, whose collectives are rings. A loss or a count is no gradient."""
    if strategy.sync.type is SyncType.RING:  # really sent, by our own ring
        sizes = [size for size, _ in calls["send"]]
        return Traffic(sum(sizes), 0, len(sizes)) * (1 / steps)
    compression = strategy.gradient_compression
    hidden = compression is not None and compression.type is CompressionType.POWER_SGD
    total = Traffic()
    for name in [each for each in calls if each.startswith("bucket")]:  # sync Exact, to other replicas
        total += Traffic(sum(size for size, _ in calls[name]), 0, len(calls[name]))
    calls = {name: found for name, found in calls.items() if not name.startswith("bucket")}
    for name in {"by hand"} if hidden else calls.keys() - {"by hand", "send", "recv"}:
        turns = 2 if name in ("allreduce", "by hand") else 1
        for size, ranks in calls[name]:
            part = (ranks - 1) / ranks * turns
            messages = part if name == "broadcast" else part * ranks
            total += Traffic() if size in (4, 8) else Traffic(part * size, 1, messages)
    return total * (1 / steps)
