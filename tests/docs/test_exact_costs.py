"""The benchmark `exact` computes bytes and buffers as the pages have them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from benchmarks.exact import LEAVES, MODELS, bytes_as_computed, most_buffers
from benchmarks.results import ROOT
from lab.ranks.processes import FakeAgent, RankGroup

from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.world import WorldId


def test_bytes_are_those_of_the_example() -> None:
    """strategies/exact/__init__.py: 100 MB and 8 micro-batches."""
    computed = [bytes_as_computed(100, ranks) for ranks in (1, 2, 3)]
    assert computed == pytest.approx([0, 100 + 100, 133 + 200 + 200], abs=1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_the_goal_of_buffers_is_a_logarithm(ranks: int) -> None:
    assert most_buffers(ranks) == math.ceil(math.log2(math.ceil(LEAVES / ranks))) + 2


@pytest.mark.parametrize("model", MODELS)
def test_all_loops_train_the_model_and_both_exact_ones_to_the_same_bits(tmp_path: Path, model: str) -> None:
    request = {"model": model, "leaves": LEAVES, "rounds": 1, "steps": 1}
    agent = FakeAgent(tmp_path, 2, CheckpointConfig(str(tmp_path / "saved"), None), WorldId(1, 0, 1))
    try:
        script = str(ROOT / "benchmarks" / "train_turns.py")
        ended = RankGroup(tmp_path, 2).run(script, json.dumps(request), agent=agent)
    finally:
        agent.close()
    assert ended.codes == [0, 0], ended.output
    found = ended.result
    assert {name: len(each) for name, each in found["seconds"].items()} == dict.fromkeys(found["sent"], 1)
    assert len(found["sent"]) == 5
    assert len({each for rank in found["ranks"] for each in rank["digests"].values()}) == 1
    sums = [rank["buffers"]["exact"] for rank in found["ranks"]]
    assert [each["sums"] for each in sums] == [2, 2]
    assert all(3 < each["held"] < 6 for each in sums)
