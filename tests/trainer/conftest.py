"""Fixtures of trainer tests."""

from __future__ import annotations

import json

import pytest
from lab.ranks.processes import RankGroup
from lab.ranks.recovery import Step, lines_of
from tests.trainer.recovering import STEPS


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """Steps of one process under sync Exact."""
    fields = json.dumps({"sync": {"type": "Exact"}, "batch": {"micro_batches": 6}})
    with RankGroup(tmp_path_factory.mktemp("alone"), 1) as group:
        ended = group.start("exact.py", fields, "everything", str(STEPS)).wait()
    assert not any(ended.codes), ended.output
    lines = lines_of(ended.output[0])
    assert len({line.digest for line in lines}) == len(lines) == STEPS, "each step changes the weights"
    return lines
