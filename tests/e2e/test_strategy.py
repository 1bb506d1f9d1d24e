"""spec.strategy from the manifest to the ranks, through a fault and a change of mind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import job
from lab.processes import environments
from lab.waiting import wait_until
from tests.e2e.test_training import surviving, trace, wait_step

from ropeteam_trainer.contract.local import Beat, read_beat

pytestmark = pytest.mark.timeout(400)
STEPS = 110


def recipe(name: str, folder: Path, strategy: dict[str, Any], epochs: int = 10) -> dict[str, Any]:
    """The character model on a text of its own, on two workers."""
    (folder / "volume").mkdir(parents=True)
    (folder / "fox.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    options = ["--text", str(folder / "fox.txt"), "--epochs", str(epochs), "--global-batch", "12"]
    made = job(
        name,
        ["python", "-m", "ropeteam_trainer.recipes.char_gpt", *options],
        workers=2,
        torch=True,
        checkpoint={"volume": {"hostPath": {"path": str(folder / "volume")}}, "everySteps": 10},
        strategy=strategy,
    )
    made["spec"]["env"] = [{"name": "ROPETEAM_TRACE", "value": str(folder / "trace")}]
    return made


def test_a_pipeline_survives_a_fault_and_goes_on_as_shards(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(recipe(name, tmp_path, {"parallelism": {"pipeline": 2}}))
    wait_step(tmp_path, 12)
    os.kill(cluster.wait_rank(name, 1), signal.SIGKILL)
    wait_step(tmp_path, 14, world_number=2)
    cluster.patch(name, {"suspend": True})
    cluster.wait_condition(name, "Suspended")
    stopped = max(line["step"] for line in trace(tmp_path, 0))
    cluster.patch(name, {"strategy": {"parallelism": {"pipeline": 1, "shard": 2}}})
    cluster.patch(name, {"suspend": False})
    cluster.wait_condition(name, "Complete")
    assert [seen["cause"] for seen in cluster.status(name)["incidents"]] == ["Signal"]
    zero, one = surviving(tmp_path, 0), surviving(tmp_path, 1)
    assert list(zero) == list(one) == list(range(1, STEPS + 1))
    alike = {step for step in zero if zero[step]["samples"] == one[step]["samples"]}
    assert alike == set(range(1, stopped + 1)), "stages of one model see the same samples, shards do not"
    begin, end = (float.fromhex(zero[step]["loss"]) for step in (1, STEPS))
    assert end < 0.5 * begin, "it learned through all of it"


def test_a_drain_loses_no_step_though_an_agent_is_late(cluster: Cluster, name: str, tmp_path: Path):
    """Else its rank makes one step too many, and waits there for the other, which waits for its shard."""
    cluster.create(recipe(name, tmp_path, {"parallelism": {"pipeline": 2}}, epochs=100))
    wait_step(tmp_path, 12)
    (first,) = (pod for pod in cluster.pods(name) if pod["metadata"]["labels"]["ropeteam.dev/slot"] == "0")
    late = cluster.agent_pid(first["metadata"]["uid"])
    page = Path(dict(environments())[cluster.wait_rank(name, 1)]["ROPETEAM_RANK_PAGE"])
    os.kill(late, signal.SIGSTOP)
    try:
        cluster.patch(name, {"suspend": True})
        wait_until("rank 1 waits in a step", lambda: heartbeat(page).phase == "paused")
    finally:
        os.kill(late, signal.SIGCONT)
    cluster.wait_condition(name, "Suspended")
    stopped = [trace(tmp_path, rank)[-1]["step"] for rank in (0, 1)]
    lineage = cluster.status(name)["checkpoint"]["lineage"]
    assert stopped == [lineage[0]["step"]] * 2


def heartbeat(page: Path) -> Beat:
    return wait_until("a heartbeat", lambda: read_beat(memoryview(page.read_bytes())))


def test_a_strategy_that_does_not_fit_is_refused_with_the_fix(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(recipe(name, tmp_path, {"parallelism": {"tensor": 3}}))
    wait_until("the refusal", lambda: cluster.status(name).get("state") == "Invalid")
    messages = [each["message"] for each in cluster.status(name)["conditions"] if each["type"] == "Accepted"]
    assert "spec.strategy.parallelism: tensor 3 x pipeline 1 does not divide 2 ranks" in messages[0]
    assert cluster.pods(name, None) == []
