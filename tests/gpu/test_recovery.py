"""A killed rank on a GPU comes back by fork, finds the memory free, and resumes bit for bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import job
from lab.waiting import wait_until
from tests.e2e.test_training import surviving, wait_step

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
STEPS = 80


def training(name: str, folder: Path, *arguments: str, ranks: int = 1) -> dict[str, Any]:
    (folder / "volume").mkdir(parents=True)
    checkpoint = {"volume": {"hostPath": {"path": str(folder / "volume")}}, "everySteps": 10}
    command = ["python", str(SCRIPT), str(STEPS), *arguments]
    made = job(
        name, command, workers=1, torch=True, checkpoint=checkpoint, processesPerWorker=ranks,
        recovery={"start": "Fork"},
    )  # fmt: skip
    made["spec"]["env"] = [
        {"name": "ROPETEAM_TRACE", "value": str(folder / "trace")},
        {"name": "TOO_MUCH", "value": str(folder / "too-much")},
        {"name": "CUBLAS_WORKSPACE_CONFIG", "value": ":4096:8"},
    ]
    return made


@pytest.mark.parametrize(
    ("precision", "ranks", "ballast"), [("fp32", 1, 60), ("bf16", 1, 0), ("fp16", 1, 0), ("bf16", 2, 20)]
)
def test_a_killed_rank_leaves_no_trace(
    cluster: Cluster, name: str, tmp_path: Path, precision: str, ranks: int, ballast: int
) -> None:
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    cluster.create(training(f"{name}-a", calm, precision, ranks=ranks))
    cluster.wait_condition(f"{name}-a", "Complete")
    cluster.create(training(f"{name}-b", stormy, precision, str(ballast), ranks=ranks))
    for world, victim in ((1, ranks - 1), (2, 0)):
        wait_step(stormy, 25 * world, world_number=world)
        os.kill(cluster.wait_rank(f"{name}-b", victim), signal.SIGKILL)
    cluster.wait_condition(f"{name}-b", "Complete")
    assert [seen["cause"] for seen in cluster.status(f"{name}-b")["incidents"]] == ["Signal", "Signal"]
    for rank in range(ranks):
        a, b = surviving(calm, rank), surviving(stormy, rank)
        assert list(b) == list(a) == list(range(1, STEPS + 1))
        assert [b[step]["loss"] for step in b] == [a[step]["loss"] for step in a]


def test_memory_that_is_not_there_is_named_and_the_job_goes_on(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    cluster.create(training(name, folder, "fp32"))
    wait_step(folder, 5)
    (folder / "too-much").touch()
    found = wait_until("incident", lambda: cluster.status(name).get("incidents"))
    assert found[-1]["cause"] == "OutOfMemory"
    assert "OutOfMemoryError: CUDA out of memory" in found[-1]["message"]
    assert "train.py:" in found[-1]["message"]
    cluster.wait_condition(name, "Complete")
