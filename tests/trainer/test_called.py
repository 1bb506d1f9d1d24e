"""How a wrapped model may be called, and the names in its state: as the plain one, under any strategy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.ranks.processes import RankGroup

STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "sharded": {"sharding": "Parameters"},
    "micro-batches": {"batch": {"micro_samples": 2}},
    "sharded, micro-batches": {"sharding": "Parameters", "batch": {"micro_samples": 2}},
    "composable replicate": {"sync": {"type": "Replicate"}},
}
NAMES = ["module.weight", "module.bias", "last.weight", "last.bias"]


def called(path: Path, world: int, *requests: tuple[str, dict[str, Any], str]) -> dict[str, dict[str, Any]]:
    path.mkdir(exist_ok=True)
    (path / "requests").write_text(json.dumps(requests))
    ended = RankGroup(path, world).run("called.py", str(path / "requests"))
    assert not any(ended.codes), ended.output
    return ended.result


@pytest.mark.parametrize("world", [1, 2])
def test_keywords_mean_what_positions_mean(world: int, tmp_path: Path) -> None:
    plain = called(tmp_path / "alone", 1, ("plain", {}, "positions"))["plain"]
    ways = ("positions", "keywords", "loss, and a keyword")
    requests = [
        (f"{name}: {how}", strategy, how)
        for name, strategy in STRATEGIES.items()
        for how in ways
        if world > 1 or "sharding" not in strategy
    ]
    for name, found in called(tmp_path / "split", world, *requests).items():
        assert found.get("losses") == pytest.approx(plain["losses"], abs=1e-6), (name, found)
        assert found["weights"] == pytest.approx(plain["weights"], abs=1e-6), name
        assert found["names"] == NAMES, name


def test_an_output_with_attributes_keeps_them_under_a_loss_scale(tmp_path: Path) -> None:
    float16 = {"precision": "Float16"}
    found = called(tmp_path, 2, ("attributes", float16, "attributes"), ("keywords", float16, "keywords"))
    assert found["attributes"]["losses"] == found["keywords"]["losses"]
    assert found["attributes"]["names"] == NAMES


@pytest.mark.parametrize(
    ("strategy", "how", "message"),
    [
        ({"batch": {"micro_samples": 2}}, "no target", "need a model that returns its mean loss"),
        ({}, "loss, and keywords alone", "call the model with the target y as the last positional argument"),
        (
            {"parallelism": {"pipeline": 2}},
            "loss, and a keyword",
            "two positional arguments and no keywords; it was called with 2 and the keywords scale",
        ),
    ],
)
def test_a_refused_call_names_the_fix(
    tmp_path: Path, strategy: dict[str, Any], how: str, message: str
) -> None:
    assert message in called(tmp_path, 2, ("it", strategy, how))["it"]["raised"]
