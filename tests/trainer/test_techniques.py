"""Every technique trains what one process trains.

The worlds of one size are one world here, which trains under one strategy after another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.ranks.processes import RankGroup

Figures = dict[str, Any]


def ways(**parallelism: int) -> dict[str, Any]:
    return {"parallelism": parallelism}


def pipelined(schedule: str, **parallelism: int) -> dict[str, Any]:
    return {"pipelining": {"schedule": schedule}, **ways(pipeline=2, **parallelism)}


def locally(**local: int) -> dict[str, Any]:
    return {"sync": {"type": "Local", "local": local}}


def compressed(kind: str, **settings: Any) -> dict[str, Any]:
    return {"gradient_compression": {"type": kind, **settings}}


ANY_WORLD: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "ring": {"sync": {"type": "Ring"}},
    "exact": {"sync": {"type": "Exact"}},
    "micro-batches": {"batch": {"micro_samples": 5}},
    "recompute all": {"activation_checkpointing": "Full"},
    "recompute some": {"activation_checkpointing": "Selective"},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "ZeRO-1": {"sharding": "OptimizerState"},
    "ZeRO-2": {"sharding": "Gradients"},
    "ZeRO-3": {"sharding": "Parameters"},
    "ZeRO-3, micro-batches, recompute": {
        "sharding": "Parameters",
        "batch": {"micro_samples": 5},
        "activation_checkpointing": "Full",
    },
    "composable replicate": {"sync": {"type": "Replicate"}},
    "composable replicate, micro-batches": {"sync": {"type": "Replicate"}, "batch": {"micro_samples": 5}},
    "PowerSGD of full rank": compressed("PowerSGD", power_sgd={"rank": 64}),
    "TopK of all": compressed("TopK", top_k={"keep_per_mille": 1000}),
}
EXACT: dict[int, dict[str, dict[str, Any]]] = {
    1: ANY_WORLD,
    2: {
        **ANY_WORLD,
        **SEVERAL,
        "tensor": ways(tensor=2),
        "tensor, loss of parts": {"tensor_parallel": {"loss": True}, **ways(tensor=2)},
        "tensor, sequence": {"tensor_parallel": {"sequence": True, "loss": True}, **ways(tensor=2)},
        "layer-wise": {**ways(pipeline=2), "pipelining": {"schedule": "GPipe", "micro_batches": 1}},
        **{name: pipelined(name) for name in ("GPipe", "OneForwardOneBackward", "Interleaved", "ZeroBubble")},
        "pipeline, recompute": {**pipelined("OneForwardOneBackward"), "activation_checkpointing": "Full"},
        "zero bubble, recompute": {**pipelined("ZeroBubble"), "activation_checkpointing": "Full"},
    },
    3: {**ANY_WORLD, **SEVERAL, "pipeline of 3": ways(pipeline=3)},
    4: {
        **SEVERAL,
        "hybrid shard": ways(replicate=2, shard=2),
        "exact hybrid shard": {"sync": {"type": "Exact"}, **ways(replicate=2, shard=2)},
        "shard x tensor": ways(shard=2, tensor=2),
        "replicate x tensor": ways(replicate=2, tensor=2),
        "exact replicate x tensor": {"sync": {"type": "Exact"}, **ways(replicate=2, tensor=2)},
        "exact replicate x tensor, sequence": {
            "sync": {"type": "Exact"},
            "tensor_parallel": {"sequence": True, "loss": True},
            **ways(replicate=2, tensor=2),
        },
        "replicate x pipeline": pipelined("OneForwardOneBackward", replicate=2),
        "replicate x GPipe": pipelined("GPipe", replicate=2),
        "shard x interleaved": pipelined("Interleaved", shard=2),
        "tensor x pipeline": ways(tensor=2, pipeline=2),
    },
}


def trained(
    path: Path, world: int, requests: dict[str, dict[str, Any]], device: str = "cpu", **settings: Any
) -> dict[str, Figures]:
    settings = {"optimizer": "AdamW", "steps": 10, "batch": 24, "alone": {}, **settings}
    listed = [{"last": settings["batch"], "name": n, "strategy": s, **settings} for n, s in requests.items()]
    (path / "requests").write_text(json.dumps(listed))
    with RankGroup(path / "group", world) as group:
        ended = group.start("techniques.py", str(path / "requests"), device).wait(seconds=300)
    assert not any(ended.codes), ended.output
    return ended.result


@pytest.mark.parametrize("world", EXACT)
def test_losses_gradients_and_weights_are_those_of_one_process(world: int, tmp_path: Path) -> None:
    for name, found in trained(tmp_path, world, EXACT[world]).items():
        assert found["loss"] <= 1e-5, (name, found)
        assert found["gradient"] <= 1e-5, (name, found)
        assert found["weight"] <= 2e-4, (name, found)


@pytest.mark.parametrize(("optimizer", "ratio"), [("AdamW", "LAMB"), ("SGD", "LARS")])
def test_layer_wise_rates_are_those_of_one_process(optimizer: str, ratio: str, tmp_path: Path) -> None:
    rates = {"learning_rate": {"trust_ratio": ratio, "warmup_steps": 2}}
    shards: dict[str, dict[str, Any]] = {
        "all-reduce": {},
        "ZeRO-1": {"sharding": "OptimizerState"},
        "ZeRO-3": {"sharding": "Parameters"},
        "tensor": ways(tensor=2),
    }
    requests = {name: strategy | rates for name, strategy in shards.items()}
    for name, found in trained(tmp_path, 2, requests, optimizer=optimizer, alone=rates).items():
        assert found["loss"] <= 1e-5, (name, found)
        assert found["weight"] <= 2e-4, (name, found)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_parts_that_differ_by_a_sample_and_by_a_piece_change_nothing(world: int, tmp_path: Path) -> None:
    requests: dict[str, dict[str, Any]] = {
        "all-reduce": {},
        "micro-batches": {"batch": {"micro_samples": 6}},
        "ZeRO-3, micro-batches": {"sharding": "Parameters", "batch": {"micro_samples": 6}},
        "ZeRO-3, one by one": {"sharding": "Parameters", "batch": {"micro_samples": 1}},
        "offloaded": {"sharding": "Parameters", "offload": "Parameters"},
    }
    for name, found in trained(tmp_path, world, requests, batch=25).items():
        assert found["loss"] <= 1e-5, (name, found)
        assert found["gradient"] <= 1e-5, (name, found)


PIPELINES: dict[int, dict[str, dict[str, Any]]] = {
    2: {name: pipelined(name) for name in ("GPipe", "OneForwardOneBackward", "Interleaved", "ZeroBubble")},
    4: {
        **{
            f"replicate x {name}": pipelined(name, replicate=2)
            for name in ("GPipe", "OneForwardOneBackward", "Interleaved", "ZeroBubble")
        },
        "shard x GPipe": pipelined("GPipe", shard=2),
        "shard x OneForwardOneBackward": pipelined("OneForwardOneBackward", shard=2),
        "ZeRO-2 x Interleaved": {"sharding": "Gradients", **pipelined("Interleaved", shard=2)},
        "tensor x OneForwardOneBackward": pipelined("OneForwardOneBackward", tensor=2),
    },
}


@pytest.mark.parametrize("last", [11, 3])
@pytest.mark.parametrize("world", PIPELINES)
def test_a_pipeline_takes_any_batch(world: int, last: int, tmp_path: Path) -> None:
    """25 samples, in copies of 12 and 13, and a last batch that is split otherwise, or has fewer samples than
    micro-batches."""
    for name, found in trained(tmp_path, world, PIPELINES[world], batch=25, last=last, steps=7).items():
        assert found["loss"] <= 1e-5, (name, found)
        assert found["gradient"] <= 1e-5, (name, found)
        assert found["weight"] <= 2e-4, (name, found)


def test_under_sgd_weights_are_the_same_more_closely(tmp_path: Path) -> None:
    requests = {"all-reduce": {}, "ZeRO-3": {"sharding": "Parameters"}, "GPipe": pipelined("GPipe")}
    for name, found in trained(tmp_path, 2, requests, optimizer="SGD").items():
        assert found["loss"] <= 1e-5, (name, found)
        assert found["weight"] <= 1e-6, (name, found)


def test_an_average_in_every_step_is_the_step_of_one_process(tmp_path: Path) -> None:
    requests = {
        "local": locally(every_steps=1),
        "DiLoCo": locally(every_steps=1, outer_learning_rate_per_mille=1000, outer_momentum_per_mille=0),
        "hierarchical": locally(every_steps=1, groups_of=2, all_every_steps=1),
    }
    for name, found in trained(tmp_path, 2, requests, optimizer="SGD without momentum").items():
        assert found["loss"] <= 1e-5, (name, found)
        assert found["weight"] <= 1e-5, (name, found)


def test_neighbours_average_often_and_all_of_them_rarely(tmp_path: Path) -> None:
    """Groups of two after every second step, all four after every fourth."""
    strategy = json.dumps(locally(every_steps=2, groups_of=2, all_every_steps=4))
    ended = RankGroup(tmp_path, 4).run("averaging.py", strategy)
    assert not any(ended.codes), ended.output
    alone, pairs, everybody = [[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2, 3]]
    assert ended.result["alike"] == [alone, pairs, alone, everybody] * 2
    assert ended.result["in_sync"] == [False, False, False, True] * 2, "only then a checkpoint is saved"


def test_short_types_end_within_a_percent(tmp_path: Path) -> None:
    requests = {
        "bfloat16": {"precision": "BFloat16"},
        "float16": {"precision": "Float16"},
        "bfloat16 sharded": {"precision": "BFloat16", "sharding": "Parameters"},
        "float16 sharded": {"precision": "Float16", "sharding": "Parameters"},
        "gradients of float16": compressed("Float16"),
        "gradients of bfloat16": compressed("BFloat16"),
    }
    for name, found in trained(tmp_path, 2, requests, steps=60).items():
        assert found["losses"][-1] == pytest.approx(found["alone"][-1], rel=0.01), (name, found)


def test_lossy_techniques_get_there_in_a_fifth_more_steps(tmp_path: Path) -> None:
    requests = {
        "PowerSGD": compressed("PowerSGD"),
        "TopK": compressed("TopK", top_k={"keep_per_mille": 100}),
        "local": locally(every_steps=4),
        "DiLoCo": locally(every_steps=4, outer_learning_rate_per_mille=700),
    }
    for name, found in trained(tmp_path, 2, requests, steps=72).items():
        threshold = found["alone"][59]
        assert min(found["losses"]) <= threshold, (name, threshold, found["losses"])
