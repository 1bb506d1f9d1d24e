"""Scripts of other frameworks, by their own commands: a rank is killed, and they go on from their files."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import job
from tests.e2e.harness import Cluster, environments, wait_for

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = "120"


def accelerated(folder: Path) -> dict[str, Any]:
    script = [f"{SCRIPTS}/accelerated.py", str(folder), STEPS]
    return {"command": ["accelerate", "launch", "--cpu", *script]}


def accelerated_per_rank(folder: Path) -> dict[str, Any]:
    script = [f"{SCRIPTS}/accelerated.py", str(folder), STEPS]
    command = ["accelerate", "launch", "--cpu", "--num_processes", "1", *script]
    return {"command": command, "launcher": "PerRank", "processesPerWorker": 2}


def zero(folder: Path) -> dict[str, Any]:
    script = [f"{SCRIPTS}/zero.py", "--folder", str(folder), "--steps", STEPS]
    return {"command": ["deepspeed", "--num_nodes", "2", *script]}


def begun(cluster: Cluster, pod: str) -> list[tuple[int, int]]:
    """After which step, and in a world of how many ranks, each start of a rank in this pod began."""
    found = re.findall(r"begins after (\d+) of (\d+)", cluster.logs(pod))
    return [(int(step), int(size)) for step, size in found]


def saved(cluster: Cluster, pod: str) -> int:
    return max((int(step) for step in re.findall(r"saved step (\d+)", cluster.logs(pod))), default=0)


def script(cluster: Cluster, name: str, rank: str) -> int:
    """The process that runs the script as this rank: a launcher has a rank's environment too."""
    run = {"TORCHELASTIC_RUN_ID": cluster.uid(name), "RANK": rank}
    found = [pid for pid, environment in environments() if run.items() <= environment.items()]
    return max(found, key=lambda pid: len(psutil.Process(pid).parents()))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", [accelerated, accelerated_per_rank, zero])
def test_a_script_of_another_framework_goes_on_in_its_pods(
    cluster: Cluster, name: str, tmp_path: Path, frameworks: Path, shape: Any
) -> None:
    spec = shape(tmp_path)
    processes = spec.get("processesPerWorker", 1)
    whole = job(name, torch=True, **spec)
    path = f"{frameworks}/bin:{os.environ['PATH']}"
    for variable, value in (("PYTHONPATH", str(frameworks)), ("PATH", path), ("DS_ACCELERATOR", "cpu")):
        whole["spec"]["env"].append({"name": variable, "value": value})
    cluster.create(whole)
    pods = [f"{name}-{slot}-1" for slot in range(2)]
    cluster.wait_condition(name, "Running")
    uids = cluster.pod_uids(name)
    wait_for("a save", lambda: saved(cluster, pods[0]), 600)
    os.kill(script(cluster, name, "1"), signal.SIGKILL)
    cluster.wait_condition(name, "Complete", 300)
    for pod in pods:
        starts = begun(cluster, pod)
        assert starts[:processes] == [(0, 2 * processes)] * processes
        assert len(starts) == 2 * processes
        assert {size for _, size in starts} == {2 * processes}
        assert all(step >= 10 for step, _ in starts[processes:]), "from its own files"
    assert len(cluster.status(name)["incidents"]) == 1
    assert saved(cluster, pods[0]) == int(STEPS)
    assert cluster.pod_uids(name) == uids, "no pod was replaced"
