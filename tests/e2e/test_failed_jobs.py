"""However a job fails: its pods end and hold nothing, and the logs of all ranks stay.

Thirty kinds of failure. Most ranks do not import torch: it is the end that is looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.local.cluster import Cluster
from lab.local.failures import KINDS, holding, made
from lab.waiting import wait_until


@pytest.mark.parametrize("what", KINDS)
def test_pods_of_a_failed_job_end_and_its_logs_stay(cluster: Cluster, name: str, what: str, tmp_path: Path):
    kind = KINDS[what]
    cluster.create(made(name, kind, tmp_path))
    if kind.later:
        wait_until("its ranks", lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        cluster.patch(name, kind.later)
    condition = cluster.wait_condition(name, "Failed")
    assert condition["reason"] == kind.reason, condition
    wait_until(f"the pods of {name} hold nothing", lambda: not holding(cluster, name))
    pods = cluster.pods(name)
    if kind.spec.get("cleanPodPolicy") == "All":
        assert "deleted with their logs" in condition["message"]
        wait_until("its pods are gone", lambda: not cluster.pods(name))
        return
    assert len(pods) == 2, "nobody has deleted them"
    for rank, pod in enumerate(sorted(pods, key=lambda pod: pod["metadata"]["name"])):
        (container,) = pod["status"]["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == 4
        log = cluster.logs(pod["metadata"]["name"])
        assert f"the job has failed: {kind.reason}: " in log
        assert not kind.begins or f"rank {rank} begins" in log
    assert cluster.leftovers(cluster.uid(name)) == []
