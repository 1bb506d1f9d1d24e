"""Real training by the house: bit for bit the same through faults, every sample used once, no step lost."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import SCRIPTS, job
from lab.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
STEPS, RANKS = 60, 3
SAMPLES, BATCH = 90, 9


def tiny(name: str, folder: Path, *arguments: str, workers: int = RANKS, **spec: Any) -> dict[str, Any]:
    """The tiny training at feature level 3, with a checkpoint every 10 steps and a trace per rank."""
    (folder / "volume").mkdir(parents=True, exist_ok=True)
    spec.setdefault(
        "checkpoint", {"volume": {"hostPath": {"path": str(folder / "volume")}}, "everySteps": 10}
    )
    made = job(name, ["python", str(SCRIPTS / "tiny.py"), *arguments], workers=workers, torch=True, **spec)
    made["spec"]["env"] = [
        {"name": "ROPETEAM_TRACE", "value": str(folder / "trace")},
        {"name": "HANG", "value": str(folder / "hang")},
        {"name": "SLOW", "value": str(folder / "slow")},
    ]
    return made


def trace(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"trace.{rank}"
    text = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in text if line.endswith("}")]


def surviving(folder: Path, rank: int) -> dict[int, dict[str, Any]]:
    """For each step the record of its last world: what the final model was made of."""
    return {line["step"]: line for line in trace(folder, rank)}


def wait_step(folder: Path, step: int, rank: int = 0, world_number: int = 1) -> None:
    def reached() -> bool:
        seen = trace(folder, rank)
        worlds = list(dict.fromkeys(line["world"] for line in seen))
        here = worlds[world_number - 1] if len(worlds) >= world_number else None
        return any(line["world"] == here and line["step"] >= step for line in seen)

    wait_until(f"step {step} of rank {rank} in world {world_number}", reached)


@contextmanager
def slowly(folder: Path) -> Iterator[None]:
    """Slow down training, so that an action in this block comes before its end: a step takes half a
    second."""
    (folder / "slow").touch()
    yield
    (folder / "slow").unlink()


def test_faults_leave_no_trace_in_the_losses(cluster: Cluster, name: str, tmp_path: Path):
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    cluster.create(tiny(f"{name}-a", calm, str(STEPS)))
    cluster.wait_condition(f"{name}-a", "Complete")
    cluster.create(tiny(f"{name}-b", stormy, str(STEPS), "0.05"))
    wait_step(stormy, 15)
    with slowly(stormy):
        os.kill(cluster.wait_rank(f"{name}-b", 1), signal.SIGKILL)
    wait_step(stormy, 25, world_number=2)
    with slowly(stormy):
        cluster.delete_pod(f"{name}-b-2-1")
        wait_step(stormy, 1, world_number=3)
    cluster.wait_condition(f"{name}-b", "Complete")
    causes = [seen["cause"] for seen in cluster.status(f"{name}-b")["incidents"]]
    assert causes == ["Signal", "PodDeleted"]
    for rank in range(RANKS):
        a, b = surviving(calm, rank), surviving(stormy, rank)
        assert list(b) == list(a) == list(range(1, STEPS + 1))
        assert [b[step]["loss"] for step in b] == [a[step]["loss"] for step in a]
    for folder in (calm, stormy):
        assert samples_by_epoch(folder) == [Counter(range(SAMPLES))] * (STEPS * BATCH // SAMPLES)


def samples_by_epoch(folder: Path) -> list[Counter[int]]:
    """How often each sample was used, epoch by epoch, in the surviving lineage of all ranks."""
    used: list[Counter[int]] = [Counter() for _ in range(STEPS * BATCH // SAMPLES)]
    for rank in range(RANKS):
        for line in surviving(folder, rank).values():
            used[line["epoch"]].update(line["samples"])
    return used


def test_suspend_saves_and_resume_loses_no_step(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(tiny(name, tmp_path, str(STEPS), "0.05", workers=2))
    wait_step(tmp_path, 13)
    with slowly(tmp_path):
        cluster.patch(name, {"suspend": True})
        cluster.wait_condition(name, "Suspended")
    wait_until("pods gone", lambda: not cluster.pods(name, None))
    stopped = max(line["step"] for line in trace(tmp_path, 0))
    assert cluster.status(name)["checkpoint"]["step"] == stopped
    assert stopped < STEPS, "it was in mid-run"
    cluster.patch(name, {"suspend": False})
    cluster.wait_condition(name, "Complete")
    steps = [line["step"] for line in trace(tmp_path, 0)]
    assert steps == list(range(1, STEPS + 1)), "none lost, none repeated"


def test_a_suspended_job_goes_on_with_more_workers_and_with_fewer(
    cluster: Cluster, name: str, tmp_path: Path
):
    cluster.create(tiny(name, tmp_path, str(STEPS), "0.05", workers=2))
    for world, workers in ((1, RANKS), (2, 1)):
        wait_step(tmp_path, 13 * world, world_number=world)
        with slowly(tmp_path):
            cluster.patch(name, {"suspend": True})
            cluster.wait_condition(name, "Suspended")
        cluster.patch(name, {"workers": workers, "suspend": False})
    cluster.wait_condition(name, "Complete")
    assert [line["step"] for line in trace(tmp_path, 0)] == list(range(1, STEPS + 1)), "none lost or repeated"
    assert samples_by_epoch(tmp_path) == [Counter(range(SAMPLES))] * (STEPS * BATCH // SAMPLES)
    assert 0 < len(trace(tmp_path, 2)) < len(trace(tmp_path, 1)) < STEPS, "three ranks, then one"


def test_a_rank_that_hangs_is_found_and_the_gang_goes_on(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(tiny(name, tmp_path, "40", "0.02", workers=2, recovery={"hangSeconds": 10}))
    wait_step(tmp_path, 12)
    with slowly(tmp_path):
        os.kill(cluster.wait_rank(name, 1), signal.SIGSTOP)
    cluster.wait_condition(name, "Complete")
    (seen,) = cluster.status(name)["incidents"]
    assert seen["cause"] == "Hang"
    assert "hangSeconds" in seen["message"]


def test_a_torn_checkpoint_is_skipped_for_the_one_before(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(tiny(name, tmp_path, str(STEPS), "0.05", workers=2))
    wait_step(tmp_path, 34)
    with slowly(tmp_path):
        cluster.patch(name, {"suspend": True})
        cluster.wait_condition(name, "Suspended")
    wait_until("pods gone", lambda: not cluster.pods(name, None))
    newest = cluster.status(name)["checkpoint"]["step"]
    (state,) = (tmp_path / "volume").glob(f"**/step-{newest}/*/state.pt")
    state.write_bytes(state.read_bytes()[:100])
    cluster.patch(name, {"suspend": False})
    cluster.wait_condition(name, "Complete")
    repeated = [
        step for step, count in Counter(line["step"] for line in trace(tmp_path, 0)).items() if count > 1
    ]
    committed = (newest - 1) // 10 * 10
    assert repeated == list(range(committed + 1, newest + 1)), "it went on from the last good one"
    log = "".join(cluster.logs(pod["metadata"]["name"]) for pod in cluster.pods(name))
    assert f"step-{newest}" in log
