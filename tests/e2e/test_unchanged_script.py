"""examples/plain_ddp was written for torchrun and knows nothing of us: a killed rank restarts it in place."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import yaml
from lab.local.cluster import Cluster
from lab.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_ddp"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def manifest(name: str) -> list[dict[str, Any]]:
    """The example as it stands, but for names, the script's folder and more steps."""
    text = (EXAMPLE / "job.yaml").read_text().replace("plain-ddp", name)
    text = text.replace("examples/plain_ddp/train.py, ", f"{EXAMPLE}/train.py, --steps, '400', ")
    return list(yaml.safe_load_all(text))


def begun(cluster: Cluster, pod: str) -> list[int]:
    """After which step each start of the script in this pod began."""
    return [int(step) for step in re.findall(r" begins after step (\d+)", cluster.logs(pod))]


def saved(cluster: Cluster, pod: str) -> int:
    """The last step that rank 0 saved."""
    return max((int(step) for step in re.findall(r"step (\d+) loss", cluster.logs(pod))), default=0)


def kill_and_watch(cluster: Cluster, name: str, victim: int) -> None:
    """The ranks of both pods start again in their pods, from the script's own last checkpoint."""
    pods = [f"{name}-{slot}-1" for slot in range(2)]
    before, starts = saved(cluster, pods[0]), len(begun(cluster, pods[0]))
    wait_until("a new torch.save", lambda: saved(cluster, pods[0]) > before)
    os.kill(cluster.wait_rank(name, victim), signal.SIGKILL)
    wait_until("a new start in both", lambda: all(len(begun(cluster, pod)) == starts + 1 for pod in pods))
    again, beside = (begun(cluster, pod)[-1] for pod in pods)
    assert again == beside > before
    assert again % 10 == 0


def test_an_unchanged_ddp_script_goes_on_in_its_pods(cluster: Cluster, name: str):
    job, claim = manifest(name)
    cluster.call("POST", CLAIMS, claim)
    cluster.create(job)
    cluster.wait_condition(name, "Running")
    uids = cluster.pod_uids(name)
    wait_until("a first start", lambda: begun(cluster, f"{name}-0-1"))
    kill_and_watch(cluster, name, 0)
    kill_and_watch(cluster, name, 1)
    cluster.wait_condition(name, "Complete")
    assert re.search(r"accuracy 0\.[89]", cluster.logs(f"{name}-0-1"))
    assert cluster.pod_uids(name) == uids, "no pod was replaced"
    assert all(s["restartCount"] == 0 for p in cluster.pods(name) for s in p["status"]["containerStatuses"])
    seen = [(each["cause"], each["rank"]) for each in cluster.status(name)["incidents"]]
    assert seen == [("Signal", 0), ("Signal", 1)]
