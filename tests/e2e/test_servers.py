"""A job with parameter servers: a process that dies is replaced alone, the other processes stay.

The script here counts steps and serves nobody: whose processes end is the control plane's doing alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import ticking
from lab.local.steps import order, wait_steps, worlds
from lab.processes import environments
from lab.waiting import wait_until

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan

WORKERS, SERVERS = (0, 1, 2), (3, 4)
RANKS = (*WORKERS, *SERVERS)


@pytest.fixture
def running(cluster: Cluster, name: str, tmp_path: Path) -> Cluster:
    """Three workers and two servers that make steps."""
    served = {"type": "ParameterServer", "parameterServer": {"servers": 2}}
    cluster.create(ticking(name, tmp_path, workers=3, strategy={"sync": served}))
    wait_steps(tmp_path, ranks=5, count=60)
    return cluster


def pids(cluster: Cluster, name: str) -> dict[int, int]:
    return {rank: cluster.wait_rank(name, rank) for rank in RANKS}


def environment(pid: int) -> dict[str, str]:
    return next(found for number, found in environments() if number == pid)


def pod_of(cluster: Cluster, name: str, slot: int) -> dict[str, Any]:
    label = "ropeteam.dev/slot"
    return next(p for p in cluster.pods(name, None) if p["metadata"]["labels"].get(label) == str(slot))


def wait_again(folder: Path, rank: int, before: list[str]) -> str:
    """The world that this rank makes steps in, once it is not one of `before`."""
    return wait_until(f"rank {rank} is back", lambda: [e for e in worlds(folder, rank) if e not in before])[
        -1
    ]


@pytest.mark.parametrize("victim", [1, 3, 4], ids=["worker", "chief", "server"])
def test_a_killed_rank_comes_back_alone(running: Cluster, name: str, tmp_path: Path, victim: int):
    before, pods, old = pids(running, name), running.pods(name, None), worlds(tmp_path, victim)
    os.kill(before[victim], signal.SIGKILL)
    wait_again(tmp_path, victim, old)
    after = pids(running, name)
    assert [rank for rank in RANKS if after[rank] != before[rank]] == [victim]
    assert [p["metadata"]["uid"] for p in running.pods(name, None)] == [p["metadata"]["uid"] for p in pods]
    (seen,) = wait_until("the incident", lambda: running.status(name).get("incidents"))
    assert (seen["cause"], seen["rank"]) == ("Signal", victim)
    for rank in RANKS:
        order(tmp_path, rank, "exit 0")
    running.wait_condition(name, "Complete")
    assert len(running.status(name)["incidents"]) == 1
    memory = Path(config.memory_folder(pods[0]["metadata"]["uid"]))
    wait_until("its memory ends with its agent", lambda: not memory.exists())


def test_a_deleted_worker_pod_is_replaced_alone(running: Cluster, name: str, tmp_path: Path):
    before, old = pids(running, name), worlds(tmp_path, 1)
    running.delete_pod(pod_of(running, name, 1)["metadata"]["name"])
    wait_again(tmp_path, 1, old)
    after = pids(running, name)
    assert [rank for rank in RANKS if after[rank] != before[rank]] == [1]
    assert len(wait_until("the incident", lambda: running.status(name).get("incidents"))) == 1


def test_with_a_servers_pod_all_go_back(running: Cluster, name: str, tmp_path: Path):
    before, old = pids(running, name), [worlds(tmp_path, rank) for rank in RANKS]
    memory = environment(before[4])[config.MEMORY]
    assert Path(memory).is_dir()
    running.delete_pod(pod_of(running, name, 4)["metadata"]["name"])
    back = {wait_again(tmp_path, rank, old[rank]) for rank in RANKS}
    assert len(back) == 1
    after = pids(running, name)
    assert [rank for rank in RANKS if after[rank] == before[rank]] == []
    wait_until("it ends with its pod", lambda: not Path(memory).exists())
    assert environment(after[4])[config.MEMORY] != memory


def test_ranks_know_workers_and_servers(running: Cluster, name: str):
    found = {rank: environment(pid) for rank, pid in pids(running, name).items()}
    roles = [(f["ROLE_NAME"], f["ROLE_RANK"], f["ROLE_WORLD_SIZE"]) for f in found.values()]
    assert roles == [("worker", str(n), "3") for n in range(3)] + [("server", str(n), "2") for n in range(2)]
    assert {f["WORLD_SIZE"] for f in found.values()} == {"5"}
    plans = [codec.decode(RankPlan, f[config.RANK_PLAN]) for f in found.values()]
    addresses = [pod_of(running, name, slot)["status"]["podIP"] for slot in SERVERS]
    assert {plan.servers for plan in plans} == {tuple(f"{ip}:29404" for ip in addresses)}
    assert len({plan.secret for plan in plans}) == 1
    assert len(plans[0].secret) == 64
