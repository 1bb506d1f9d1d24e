"""A recipe trained by parameter servers, from the manifest, through one fault after the other."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from lab.local.cluster import Cluster
from lab.waiting import wait_until
from tests.e2e.test_servers import pod_of
from tests.e2e.test_strategy import STEPS, recipe
from tests.e2e.test_training import surviving, wait_step

pytestmark = pytest.mark.timeout(400)
WORKERS, SERVERS = 2, 2
HANGS = {"recovery": {"hangSeconds": 6}}
SERVED = {"sync": {"type": "ParameterServer", "parameterServer": {"servers": SERVERS}}}


def recovered(cluster: Cluster, name: str, incidents: int) -> bool:
    """A rank that has made no step since its start is not taken to hang for a long time."""
    seen = cluster.status(name).get("incidents", [])
    return len(seen) == incidents and bool(seen[-1]["recoveryMilliseconds"].get("firstStep"))


def test_who_dies_or_hangs_comes_back_alone_with_nothing_lost(cluster: Cluster, name: str, tmp_path: Path):
    """A worker, the chief and the other server are killed, then all three hang: one after the other in one
    job, whose start costs more than all the rest. The others wait meanwhile, twice as long as a step may
    take, and nobody else is blamed.
    """
    made = recipe(name, tmp_path, SERVED, epochs=1000)  # more than all faults last, on any machine
    made["spec"] |= HANGS
    cluster.create(made)
    wait_step(tmp_path, 8)
    ranks = range(WORKERS + SERVERS)
    faults = [(rank, "Signal") for rank in (1, WORKERS, WORKERS + 1)]
    faults += [(rank, "Hang") for rank in (WORKERS, WORKERS + 1, 1)]
    before = {rank: cluster.wait_rank(name, rank) for rank in ranks}
    for number, (rank, cause) in enumerate(faults, start=1):
        os.kill(before[rank], signal.SIGKILL if cause == "Signal" else signal.SIGSTOP)
        cluster.wait_rank(name, rank, before[rank])
        wait_until(f"a step after fault {number}", partial(recovered, cluster, name, number))
        after = {each: cluster.wait_rank(name, each) for each in ranks}
        assert {each for each in ranks if after[each] != before[each]} == {rank}
        before = after
    wait_step(tmp_path, STEPS)
    cluster.patch(name, {"suspend": True})
    cluster.wait_condition(name, "Suspended")
    status = cluster.status(name)
    assert [(seen["rank"], seen["cause"], seen.get("stepsLost")) for seen in status["incidents"]] == [
        (rank, cause, 0) for rank, cause in faults
    ]
    zero, one = surviving(tmp_path, 0), surviving(tmp_path, 1)
    assert list(zero) == list(one) == list(range(1, status["checkpoint"]["step"] + 1))
    for step in zero:
        assert not set(zero[step]["samples"]) & set(one[step]["samples"]), step
    begin, end = (float.fromhex(zero[step]["loss"]) for step in (1, max(zero)))
    assert end < 0.5 * begin, "it learned through all of it"


def test_a_suspended_job_and_one_without_a_servers_pod_go_on_from_the_checkpoint(
    cluster: Cluster, name: str, tmp_path: Path
):
    cluster.create(recipe(name, tmp_path, SERVED))
    wait_step(tmp_path, 15)
    cluster.patch(name, {"suspend": True})
    cluster.wait_condition(name, "Suspended")
    stopped = cluster.status(name)["checkpoint"]["step"]
    assert stopped == max(surviving(tmp_path, 0)), "nothing was lost"
    cluster.patch(name, {"suspend": False})
    wait_step(tmp_path, stopped + 15, world_number=2)
    cluster.delete_pod(pod_of(cluster, name, WORKERS)["metadata"]["name"])
    cluster.wait_condition(name, "Complete")
    zero, one = surviving(tmp_path, 0), surviving(tmp_path, 1)
    assert list(zero) == list(one) == list(range(1, STEPS + 1))
