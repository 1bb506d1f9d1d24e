"""Compressed gradients of a model that fills several buckets."""

from __future__ import annotations

import json
from pathlib import Path

from lab.ranks import tiny
from lab.ranks.processes import RankGroup


def test_sums_of_two_buckets_are_not_mixed_up(tmp_path: Path) -> None:
    """PowerSGD sums three times per bucket. If a bucket does not wait for the one before, ranks pair sums of
    different buckets, and most runs die of it.
    """
    size = tiny.Size(symbols=128, length=16, width=128, blocks=6)
    request = {
        "strategy": {"gradient_compression": {"type": "PowerSGD"}},
        "size": vars(size),
        "batch": 4,
        "warm": 2,
        "steps": 30,
    }
    (tmp_path / "request").write_text(json.dumps(request))
    ended = RankGroup(tmp_path / "group", 4).run("measured.py", str(tmp_path / "request"))
    assert ended.codes == [0] * 4, ended.output
