"""Settings for data in a manifest: a cache of shards, parts that follow speed, batches loaded ahead."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import SCRIPTS, job
from tests.e2e.test_training import surviving

pytestmark = pytest.mark.timeout(300)
SAMPLES, BATCH = 600, 12


def test_a_cache_and_balance_from_the_manifest(cluster: Cluster, name: str, tmp_path: Path):
    numpy.save(tmp_path / "shard.npy", numpy.random.default_rng(0).random((SAMPLES, 4), dtype="float32"))
    made = job(
        name,
        ["python", str(SCRIPTS / "shards.py"), str(tmp_path / "shard.npy"), "20"],
        torch=True,
        shardCache="1Gi",
        strategy={"batch": {"balance": True, "prefetch": 2}},
    )
    made["spec"]["env"] = [{"name": "ROPETEAM_TRACE", "value": str(tmp_path / "trace")}]
    cluster.create(made)
    cluster.wait_condition(name, "Complete")
    for pod in cluster.pods(name):
        logs = cluster.logs(pod["metadata"]["name"])
        assert "/volumes/ropeteam-shard-cache/" in logs, logs
    ranks = [surviving(tmp_path, rank) for rank in (0, 1)]
    steps = range(1, SAMPLES // BATCH + 1)
    parts = [tuple(len(rank[step]["samples"]) for rank in ranks) for step in steps]
    assert parts[0] == (6, 6)
    assert parts[-1][0] > parts[-1][1] > 0, "rank 1 is the slow one"
    used = [sample for step in steps for rank in ranks for sample in rank[step]["samples"]]
    assert sorted(used) == list(range(SAMPLES)), "each sample once"
