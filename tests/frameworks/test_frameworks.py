"""Scripts of other frameworks, by their own commands: a rank is killed, and they resume from their files."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import job
from lab.processes import environments
from lab.waiting import wait_until
from tests.frameworks.conftest import SCRIPTS

STEPS = "120"
EVERYTHING = bool(os.environ.get("ROPETEAM_E2E"))
"""`make e2e`. `make test` has one of each framework."""
TORCHRUN = ["torchrun", "--nproc-per-node", "1"]


def accelerated(folder: Path) -> dict[str, Any]:
    script = [f"{SCRIPTS}/accelerated.py", str(folder), STEPS]
    return {"command": ["accelerate", "launch", "--cpu", *script]}


def accelerated_per_rank(folder: Path) -> dict[str, Any]:
    script = [f"{SCRIPTS}/accelerated.py", str(folder), STEPS]
    command = ["accelerate", "launch", "--cpu", "--num_processes", "1", *script]
    return {"command": command, "launcher": "PerRank", "processesPerWorker": 2}


def fabric(folder: Path) -> dict[str, Any]:
    return {"command": [*TORCHRUN, f"{SCRIPTS}/fabric.py", str(folder), STEPS]}


def plain(*launcher: str) -> Callable[[Path], dict[str, Any]]:
    """A script that knows of no launcher, under this one."""
    return lambda folder: {"command": [*launcher, f"{SCRIPTS}/plain.py", str(folder), STEPS]}


def zero(folder: Path, stage: int) -> dict[str, Any]:
    script = [f"{SCRIPTS}/zero.py", "--folder", str(folder), "--steps", STEPS, "--stage", str(stage)]
    return {"command": ["deepspeed", "--num_nodes", "2", *script]}


def begun(cluster: Cluster, pod: str) -> list[tuple[int, int]]:
    """After which step, and in a world of how many ranks, each start of a rank in this pod began."""
    found = re.findall(r"begins after (\d+) of (\d+)", cluster.logs(pod))
    return [(int(step), int(size)) for step, size in found]


def saved(cluster: Cluster, pod: str) -> int:
    return max((int(step) for step in re.findall(r"saved step (\d+)", cluster.logs(pod))), default=0)


def script(cluster: Cluster, name: str, rank: str) -> int:
    """The process that runs the script as this rank: a launcher has a rank's environment too."""
    uid = cluster.uid(name)
    found = [
        pid
        for pid, environment in environments()
        if environment.get("RANK") == rank and uid in environment.get("ROPETEAM_RANK_PLAN", "")
    ]
    return max(found, key=lambda pid: len(psutil.Process(pid).parents()))


class Killed:
    """A job whose rank 1 is killed once it has saved; all ranks resume from there, in their pods. Its script
    waits at some step for the file `seen`: it may not be through before it is killed."""

    def __init__(
        self, cluster: Cluster, name: str, spec: dict[str, Any], environment: dict[str, str]
    ) -> None:
        self.cluster, self.name = cluster, name
        self.processes = spec.get("processesPerWorker", 1)
        self.pods = [f"{name}-{slot}-1" for slot in range(2)]
        whole = job(name, torch=True, **spec)
        whole["spec"]["env"] += [{"name": key, "value": value} for key, value in environment.items()]
        cluster.create(whole)
        cluster.wait_condition(name, "Running")
        self.uids = cluster.pod_uids(name)

    def kill(self, folder: Path) -> None:
        wait_until("a save", lambda: saved(self.cluster, self.pods[0]), 300)
        os.kill(script(self.cluster, self.name, "1"), signal.SIGKILL)
        (folder / "seen").touch()

    def assert_it_goes_on(self) -> None:
        self.cluster.wait_condition(self.name, "Complete", 300)
        for pod in self.pods:
            starts = begun(self.cluster, pod)
            assert starts[: self.processes] == [(0, 2 * self.processes)] * self.processes
            assert len(starts) == 2 * self.processes
            assert {size for _, size in starts} == {2 * self.processes}
            assert all(step >= 10 for step, _ in starts[self.processes :]), "from its own files"
        assert len(self.cluster.status(self.name)["incidents"]) == 1
        assert saved(self.cluster, self.pods[0]) == int(STEPS)
        assert self.cluster.pod_uids(self.name) == self.uids, "no pod was replaced"


@pytest.mark.timeout(2700)
@pytest.mark.parametrize(
    "shape",
    [
        accelerated,
        fabric,
        plain("fabric", "run", "--accelerator=cpu", "--strategy=ddp"),
        *[accelerated_per_rank, plain("python", "-m", "accelerate.commands.launch", "--cpu")] * EVERYTHING,
        *[plain("uv", "run", "--no-project", "torchrun")] * EVERYTHING,
    ],
    ids=["accelerate", "fabric", "fabric run", *["per rank", "module", "uv"] * EVERYTHING],
)
def test_a_script_of_another_framework_goes_on_in_its_pods(
    cluster: Cluster, name: str, tmp_path: Path, frameworks: dict[str, str], shape: Any
) -> None:
    killed = Killed(cluster, name, shape(tmp_path), frameworks)
    killed.kill(tmp_path)
    killed.assert_it_goes_on()


@pytest.mark.skipif(not EVERYTHING, reason="a part of make e2e: it takes a minute to install")
@pytest.mark.timeout(2700)
def test_the_launcher_of_composer_makes_one_world_that_goes_on(
    cluster: Cluster, name: str, tmp_path: Path, composer: dict[str, str]
) -> None:
    killed = Killed(cluster, name, plain("composer")(tmp_path), composer)
    killed.kill(tmp_path)
    killed.assert_it_goes_on()


@pytest.mark.timeout(2700)
@pytest.mark.parametrize("stage", [3, *[1, 2] * EVERYTHING])
def test_zero_of_deepspeed_goes_on_in_its_pods(
    cluster: Cluster, name: str, tmp_path: Path, deepspeed: dict[str, str], stage: int
) -> None:
    killed = Killed(cluster, name, zero(tmp_path, stage), deepspeed)
    killed.kill(tmp_path)
    killed.assert_it_goes_on()


@pytest.mark.timeout(2700)
def test_the_trainer_of_transformers_reports_its_progress_and_resumes(
    cluster: Cluster, name: str, tmp_path: Path, frameworks: dict[str, str]
) -> None:
    spec = {"command": [*TORCHRUN, f"{SCRIPTS}/trainer.py", str(tmp_path), STEPS]}
    killed = Killed(cluster, name, spec, frameworks)

    def progress() -> dict[str, Any]:
        return cluster.status(name).get("progress") or {}

    wait_until("progress of the first world", progress, 300)
    assert 0 < progress()["step"] <= 30
    wait_until("step 30", lambda: "at step 30" in cluster.logs(killed.pods[1]))
    killed.kill(tmp_path)
    killed.assert_it_goes_on()
    reported = progress()
    assert reported["step"] == reported["totalSteps"] == int(STEPS)
    assert float(reported["loss"]) > 0
    assert float(reported["samplesPerSecond"]) > 0
    status = cluster.status(name)
    assert status["incidents"][0]["stepsLost"] == 10, "killed at step 30, saved at step 20"
    assert status["featureLevel"] == 0, "no more is expected of it than of any script"
